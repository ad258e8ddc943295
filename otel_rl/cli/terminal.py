"""What a command keeps up to date on a terminal: a live line, its own progress, or all of it."""

import os
import re
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TextIO, TypeVar

from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.cli.run_snapshot import RunWatch, summary
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey
from otel_rl.redaction import shown

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
                    watch = watches.setdefault(run.key, RunWatch())
                    said = summary(watch.look(connection, run))
                    return said if run.key == key else f"{run.key}: {said}"
        except JournalError as exc:
            return f"{key}: {exc}"
        return f"{key}: nothing is reported yet"

    with LiveLine(sys.stderr, text):
        yield


class LiveLine:
    """Last row of a terminal, written every second by a thread until the context ends.

    Args:
        text: Returns the line; called by that thread.
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

News = Callable[[str], None]
"""Takes what is being done, in words."""

T = TypeVar("T")


@contextmanager
def progress(text: str) -> Iterator[News]:
    """Keep one line on standard error up to date while the context lasts, and remove it then.

    Nothing is written if it is no terminal, or a dumb one.

    Args:
        text: What is being done, until there are news.
    """
    if not is_live(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console  # takes long

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status(shown(f"otel-rl: {text}")) as status:
        yield lambda news: status.update(shown(f"otel-rl: {news}"))


def counted(items: Sequence[T], what: str, news: News) -> Iterator[T]:
    """Yield each item, and tell how many there were of all."""
    for place, item in enumerate(items):
        if place % 64 == 0:
            news(f"{what}, {place / len(items):.0%}")
        yield item


# A screen that one can scroll

_EVERY_S: Final = 2.0
_LOOK_S: Final = 0.25
_KEY: Final = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_LINES: Final = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1}
_PAGES: Final = {b"\x1b[5~": -1, b"b": -1, b"\x1b[6~": 1, b" ": 1}
_FIRST: Final = {b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"g"}
_LAST: Final = {b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"G"}


class Line(NamedTuple):
    """Line of text in a style of ``rich``."""

    text: str
    style: str = ""


class Screen(NamedTuple):
    """What is shown: lines that stay at the top, and lines that scroll below."""

    head: Sequence[Line]
    body: Sequence[Line]


def keep_on_screen(look: Callable[[int], Screen]) -> None:
    """Show a screen until q, Ctrl-C or SIGTERM, after which the terminal is as it was.

    Args:
        look: Returns the screen of now for so many columns.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, markup=False)
    first = 0  # line of the body that is shown

    def shown_lines() -> Sequence[Line]:
        nonlocal first
        rows = console.size.height - len(screen.head)
        if len(screen.body) <= rows:
            first = 0
            return [*screen.head, *screen.body]
        rows = max(1, rows - 1)  # the last one tells where one is
        first = max(0, min(first, len(screen.body) - rows))
        where = (
            f"{first + 1} to {first + rows} of {len(screen.body)}; arrow keys, PgUp, PgDn; q ends"
        )
        return [*screen.head, *screen.body[first : first + rows], Line(where, "dim")]

    def renderable() -> Group:
        lines = shown_lines()
        return Group(
            *(Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in lines)
        )

    screen, next_s = look(console.size.width), time.monotonic() + _EVERY_S
    with (
        suppress(KeyboardInterrupt),
        _keys_at_once(),
        Live(get_renderable=renderable, console=console, screen=True, auto_refresh=False) as live,
    ):
        size = console.size
        live.refresh()
        while True:
            page = max(1, console.size.height - len(screen.head) - 1)
            for key in (keys := _keys()):
                if key == b"q":
                    return
                first += _LINES.get(key, 0) + _PAGES.get(key, 0) * page
                first = 0 if key in _FIRST else len(screen.body) if key in _LAST else first
            is_due = time.monotonic() >= next_s
            if is_due or console.size != size:
                size = console.size
                screen, next_s = look(size.width), time.monotonic() + _EVERY_S
                live.refresh()
            elif keys:
                live.refresh()


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let the terminal hand over each key as it is pressed, and show none."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _keys() -> Sequence[bytes]:
    """Return the keys that are pressed now, or in a moment."""
    if not sys.stdin.isatty():
        time.sleep(_LOOK_S)
        return ()
    ready, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
    return _KEY.findall(os.read(sys.stdin.fileno(), 1024)) if ready else ()
