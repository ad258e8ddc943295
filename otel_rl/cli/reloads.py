"""Reads files of tokens and certificates again when they have changed."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError

_RETRY_S: Final = 30.0  # a full table of files, or a file system that was away, is no lasting fault


class Reloads:
    """Reads files again at each ``look`` that finds a change, and says so on standard error.

    A change is noticed once it is complete: at the second look that is alike. After a failure the
    files are read again half a minute later, too, until they can be used.

    Args:
        read: Reads the files again; raises ``ConfigError`` if one cannot be used.
        what: Words for what is in them.
    """

    def __init__(
        self,
        read: Callable[[], None],
        paths: Sequence[Path],
        what: str = "tokens and certificates",
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._paths = paths
        self._what = what
        self._clock_s = clock_s
        self._known = self._last = self._look()
        self._retry_s = math.inf
        self._told = ""

    def look(self) -> None:
        """Read the files if they have changed, or could not be used half a minute ago."""
        before, self._last = self._last, self._look()
        if self._last != self._known and self._last == before:
            self.read("changed files")
        elif self._clock_s() >= self._retry_s:
            self._try("another try", told=self._told)

    def read(self, why: str) -> None:
        self._known = self._last = self._look()
        self._try(why)

    def _try(self, why: str, *, told: str = "") -> None:
        self._retry_s = math.inf
        try:
            self._read()
        except ConfigError as exc:
            self._retry_s = self._clock_s() + _RETRY_S
            self._told = str(exc)
            if self._told != told:
                say(f"{why}: {self._what} stay as they were. {exc}")
        else:
            say(f"{why}: the files of {self._what} are read again; no other setting is")

    def _look(self) -> Sequence[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path in self._paths:
            try:
                of = path.stat()  # of a link's target: an orchestrator replaces the link
            except (OSError, ValueError):
                found.append(())
            else:
                # The time of a change of its owner and rights, too.
                found.append((of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns))
        return found
