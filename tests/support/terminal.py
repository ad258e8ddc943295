"""A terminal: what a program has drawn on it, read through a pseudo-terminal."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyte

_DEADLINE_S = 120.0


class Terminal:
    """A program in a terminal of its own. Use it as a context; it ends with it.

    Attributes:
        raw: All bytes so far.
        screen: As it is after them.
        process: The program.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        rows: int = 24,
        columns: int = 100,
    ) -> None:
        self.raw = b""
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        self._is_closed = False
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**_without_size(environment), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # one thread
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if not self._is_closed:
            self.close_the_window()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the kernel tells the program."""
        self.screen.resize(rows, columns)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def close_the_window(self) -> None:
        """Take the terminal away from the program, as the end of an ssh connection does."""
        self._is_closed = True
        os.close(self._ours)

    def until(self, is_so: Callable[[Sequence[str]], bool]) -> Sequence[str]:
        """Return the rows of the screen, without blanks at their ends, once they are so."""
        ends_s = time.monotonic() + _DEADLINE_S
        while not is_so(rows := [row.rstrip() for row in self.screen.display]):
            has_more = self._read(ends_s)
            assert has_more, (rows, self.process.poll(), self.raw[-2_000:])
        return rows

    def status(self) -> int:
        """Return the exit status, after all output was read."""
        ends_s = time.monotonic() + _DEADLINE_S
        while self._read(ends_s):
            pass
        return self.process.wait(max(1.0, ends_s - time.monotonic()))

    def _read(self, ends_s: float) -> bool:
        """Read some output. Returns whether there was any; there is none after the end."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, ends_s - time.monotonic()))
        try:
            some = os.read(self._ours, 65536) if ready else b""
        except OSError:  # every process has closed it
            some = b""
        self.raw += some
        self._stream.feed(some)
        return bool(some)


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out the size of the terminal of the tests, which would hide that of this one."""
    return {name: text for name, text in environment.items() if name not in {"COLUMNS", "LINES"}}
