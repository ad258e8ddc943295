"""One live line about a run at the bottom of a terminal, below the output of its command.

The command shares the terminal. So its lines scroll in a region that ends above the last row, and
the live line is written with one call that leaves the cursor where it was: progress bars that
rewrite their line, and lines without an end, stay as they are.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.cli.run_snapshot import RunWatch, Snapshot, counted
from otel_rl.errors import JournalError
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey
from otel_rl.redaction import shown

__all__ = ["LiveLine", "has_room_for", "live_line", "summary"]

_EVERY_S: Final = 1.0
_FEWEST_ROWS: Final = 5

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor
_CLEAR_LINE = "\x1b[2K"


@contextmanager
def live_line(journal: Path, key: ExperimentKey, *, is_wanted: bool) -> Iterator[None]:
    """Show the run in the last row of the terminal, for the length of the context.

    Until it reports, the run that the command does report to is shown. Nothing is shown where
    standard error is no terminal, or a dumb one.
    """
    if not (is_wanted and has_room_for(sys.stderr, os.environ)):
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


def has_room_for(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal that can have a live line."""
    return (
        stream.isatty()
        and environment.get("TERM", "dumb") not in {"", "dumb"}
        and shutil.get_terminal_size().lines >= _FEWEST_ROWS
    )


def summary(snapshot: Snapshot) -> str:
    """Return a run in one line."""
    parts = ["no step yet" if snapshot.step is None else f"step {snapshot.step}"]
    if snapshot.steps_per_s is not None:
        parts.append(f"{snapshot.steps_per_s:.2g} steps/s")
    if snapshot.reward is not None:
        parts.append(f"reward {snapshot.reward:.3g}")
    parts.append(f"workers {counted(snapshot)}")
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
        self, stream: TextIO, text: Callable[[], str], *, every_s: float = _EVERY_S
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
