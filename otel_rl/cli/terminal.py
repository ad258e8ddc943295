"""What a command keeps up to date on a terminal: the live line of a run, or its own progress."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO, TypeVar

from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.cli.run_snapshot import RunWatch, Snapshot
from otel_rl.cli.run_snapshot import counted as workers_of
from otel_rl.errors import JournalError
from otel_rl.goodput import duration
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey
from otel_rl.redaction import shown

__all__ = ["LiveLine", "News", "counted", "is_live", "live_line", "progress", "summary"]

# The command shares the terminal with the live line. So its lines scroll in a region that ends
# above the last row, and the live line is written with one call that leaves the cursor where it
# was: progress bars that rewrite their line, and lines without an end, stay as they are.

_LINE_EVERY_S: Final = 1.0
_FEWEST_ROWS: Final = 5

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor
_CLEAR_LINE = "\x1b[2K"


def is_live(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which lines can be rewritten."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}


@contextmanager
def live_line(journal: Path, key: ExperimentKey, *, is_wanted: bool) -> Iterator[None]:
    """Show the run in the last row of the terminal, for the length of the context.

    Until it reports, the run that the command does report to is shown. Nothing is shown where
    standard error is no terminal, or a dumb one.
    """
    has_room = shutil.get_terminal_size().lines >= _FEWEST_ROWS
    if not (is_wanted and is_live(sys.stderr) and has_room):
        yield
        return
    watches: dict[ExperimentKey, RunWatch] = {}

    def text() -> str:
        try:
            with looking(journal) as connection:
                runs = read_runs(connection, journal)
                if runs:
                    run = max(runs, key=lambda one: (one.key == key, one.changed_ns))
                    watch = watches.setdefault(run.key, RunWatch(run.key))
                    said = summary(watch.look(connection, run))
                    return said if run.key == key else f"{run.key}: {said}"
        except JournalError as exc:
            return f"{key}: {exc}"
        return f"{key}: nothing is reported yet"

    with LiveLine(sys.stderr, text):
        yield


def summary(snapshot: Snapshot) -> str:
    """Return a run in one line."""
    of = "" if snapshot.total_steps is None else f"/{snapshot.total_steps}"
    parts = ["no step yet" if snapshot.step is None else f"step {snapshot.step}{of}"]
    if snapshot.steps_per_s is not None:
        parts.append(f"{snapshot.steps_per_s:.2g} steps/s")
    if snapshot.left_s is not None:
        parts.append(f"{duration(snapshot.left_s)} left")
    if snapshot.reward is not None:
        parts.append(f"reward {snapshot.reward:.3g}")
    parts.append(f"workers {workers_of(snapshot)}")
    if snapshot.lag_rows:
        parts.append(f"lag {many(snapshot.lag_rows, 'row')}")
    if snapshot.drops:
        parts.append(f"dropped {snapshot.drops}")
    if snapshot.verdict and snapshot.verdict != "healthy":
        parts.append(snapshot.verdict)
    return "  ".join(parts)


class LiveLine:
    """Last row of a terminal, written every second by a thread until the context ends.

    Args:
        stream: The terminal.
        text: Returns the line; called by that thread.
        every_s: How often.
    """

    def __init__(
        self, stream: TextIO, text: Callable[[], str], *, every_s: float = _LINE_EVERY_S
    ) -> None:
        self._stream = stream
        self._text = text
        self._every_s = every_s
        self._rows = 0  # of the terminal, when it was written last
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go, name="otel-rl-live-line", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._rows:  # the whole terminal scrolls again, and the row is empty
            with suppress(OSError):  # the terminal is gone
                self._write(f"{_SAVE}\x1b[r\x1b[{self._rows};1H{_CLEAR_LINE}{_RESTORE}")

    def _go(self) -> None:
        with suppress(OSError):  # the terminal is gone
            while not self._is_over.is_set():
                self._show(self._text())
                self._is_over.wait(self._every_s)

    def _show(self, text: str) -> None:
        columns, rows = os.get_terminal_size(self._stream.fileno())
        if rows < _FEWEST_ROWS:
            return
        begin = ""
        if rows != self._rows:
            if self._rows:  # resized: the old row is an ordinary one now
                begin += f"{_SAVE}\x1b[r\x1b[{self._rows};1H{_CLEAR_LINE}{_RESTORE}"
            # A line feed and a step back move the cursor off the last row, and keep its column.
            begin += f"\x1bD\x1b[A{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}"
            self._rows = rows
        # A wrapped line would scroll.
        line = shown(f"otel-rl: {text}")[: columns - 1]
        self._write(f"{begin}{_SAVE}\x1b[{rows};1H{_CLEAR_LINE}\x1b[2m{line}\x1b[m{_RESTORE}")

    def _write(self, text: str) -> None:
        os.write(self._stream.fileno(), text.encode())


# Progress of a long command

_AFTER_S: Final = 1.0  # what is done sooner needs no line
_EVERY_S: Final = 0.25
_CLEAR_FROM_START: Final = "\r\x1b[K"

News = Callable[[str], None]
"""Takes what is being done, in words."""

T = TypeVar("T")


@contextmanager
def progress(
    text: str, stream: TextIO | None = None, *, after_s: float = _AFTER_S
) -> Iterator[News]:
    """Keep one line up to date while the context lasts, and remove it then.

    Args:
        text: What is being done, until there are news.
        stream: Default: standard error. Nothing is written if it is no terminal, or a dumb one.
        after_s: Time without a line.
    """
    stream = sys.stderr if stream is None else stream
    line = _Line(stream, text)
    if not is_live(stream):
        yield line.set
        return
    thread = threading.Thread(
        target=line.keep, args=(after_s,), name="otel-rl-progress", daemon=True
    )
    thread.start()
    try:
        yield line.set
    finally:
        line.end()
        thread.join()


def counted(items: Sequence[T], what: str, news: News) -> Iterator[T]:
    """Yield each item, and tell how many there were of all."""
    for place, item in enumerate(items):
        if place % 64 == 0:
            news(f"{what}, {place / len(items):.0%}")
        yield item


class _Line:
    """Line at the end of the terminal's output."""

    def __init__(self, stream: TextIO, text: str) -> None:
        self._stream = stream
        self._text = text
        self._begun_s = time.monotonic()
        self._is_over = threading.Event()

    def set(self, text: str) -> None:
        """Take what is being done."""
        self._text = text

    def end(self) -> None:
        """Let ``keep`` return."""
        self._is_over.set()

    def keep(self, after_s: float) -> None:
        """Write the line now and then, until the end."""
        with suppress(OSError):  # the terminal is gone
            self._is_over.wait(after_s)
            is_shown = False
            while not self._is_over.is_set():
                seconds = time.monotonic() - self._begun_s
                line = shown(f"otel-rl: {self._text} ({seconds:.0f} s)")
                self._write(f"{_CLEAR_FROM_START}{line[: self._columns() - 1]}")
                is_shown = True
                self._is_over.wait(_EVERY_S)
            if is_shown:
                self._write(_CLEAR_FROM_START)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
