"""Progress of a long command on the terminal of its user; nothing anywhere else."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TextIO, TypeVar

from otel_rl.redaction import shown

__all__ = ["News", "counted", "progress"]

_AFTER_S: Final = 1.0  # what is done sooner needs no line
_EVERY_S: Final = 0.25
_CLEAR_LINE: Final = "\r\x1b[K"

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
    if not (stream.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}):
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
                self._write(f"{_CLEAR_LINE}{line[: self._columns() - 1]}")
                is_shown = True
                self._is_over.wait(_EVERY_S)
            if is_shown:
                self._write(_CLEAR_LINE)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
