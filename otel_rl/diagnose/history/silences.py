"""Times in which nothing was heard of any worker: all stood still together, or the way here did.

A person suspends a job and resumes it, or a cluster moves it: no part of the run takes longer by
itself. So steps and work are as old as the time in which some worker was heard.
"""

from collections.abc import Iterator
from typing import Final

__all__ = ["Silences"]

_LEAST_S: Final = 10.0
_FAR: Final = 2.5  # times the mean of all other times between two exports


class Silences:
    """Silences of a run, from the last export before each to the first one after it."""

    def __init__(self) -> None:
        self._begun_s = self._heard_s = 0.0
        self._exports = 0
        self._gaps: list[tuple[float, float]] = []

    def hear(self, time_s: float) -> None:
        """Add the time of an export of any worker, in order."""
        if not self._exports:
            self._begun_s = time_s
        elif time_s - self._heard_s > _LEAST_S:
            self._gaps.append((self._heard_s, time_s))
        self._exports += 1
        self._heard_s = time_s

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Yield the begin and the end of each that is over."""
        heard_s, others = self._heard_s - self._begun_s, self._exports - 2
        for begin_s, end_s in self._gaps:
            took_s = end_s - begin_s
            if others > 0 and took_s > _FAR * (heard_s - took_s) / others:
                yield begin_s, end_s

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of silence between two times, with all since the last export."""
        silent_s = 0.0
        for begin, end in [*self, (self._heard_s, end_s)] if self._exports else ():
            silent_s += max(0.0, min(end, end_s) - max(begin, begin_s))
        return silent_s
