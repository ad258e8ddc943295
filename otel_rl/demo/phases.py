"""Exclusive time per phase of one iteration."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["PhaseClock"]


class PhaseClock:
    """Adds up the seconds spent in each phase. One thread.

    A phase inside another one stops the outer one, so no second counts twice and the phases of an
    iteration never add up to more than its length.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since_s = now_s()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the ``with`` block, minus that of the phases within it."""
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the ``with`` block, and go on counting it for the phase around it."""
        begun_s = self._now_s()
        try:
            yield
        finally:
            self._add(name, self._now_s() - begun_s)

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call."""
        self._settle()
        taken, self._seconds = self._seconds, {}
        return taken

    def _settle(self) -> None:
        now_s = self._now_s()
        if self._open:
            self._add(self._open[-1], now_s - self._since_s)
        self._since_s = now_s

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
