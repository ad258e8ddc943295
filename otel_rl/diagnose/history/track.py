"""Series of a run in columns of machine numbers, a third of the memory of Python's lists."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import le
from sys import getsizeof
from typing import Any, Final, TypeAlias

_Ints: TypeAlias = MutableSequence[int]
_Floats: TypeAlias = MutableSequence[float]

_INT: Final = "q"
_FLOAT: Final = "d"


@dataclass(slots=True, eq=False)
class Track:
    """One series, in columns of one length that only grow.

    Equal series have equal bits, so NaN equals NaN.

    Attributes:
        steps: Step in progress at each value.
        times_s: Time of each value, in s since the first record of the run.
        values: Values, which may be NaN or infinite.
    """

    steps: _Ints = field(default_factory=lambda: array(_INT))
    times_s: _Floats = field(default_factory=lambda: array(_FLOAT))
    values: _Floats = field(default_factory=lambda: array(_FLOAT))
    # Number of the first ones that were found to be in order.
    _steps_in_order: int = field(default=0, init=False)
    _times_in_order: int = field(default=0, init=False)

    def __eq__(self, other: object) -> bool:
        return self._bits() == other._bits() if isinstance(other, Track) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows

    @classmethod
    def of(cls, steps: Iterable[int], times_s: Iterable[float], values: Iterable[float]) -> "Track":
        return cls(array(_INT, steps), array(_FLOAT, times_s), array(_FLOAT, values))

    def add(self, step: int, time_s: float, value: float) -> None:
        self.steps.append(step)
        self.times_s.append(time_s)
        self.values.append(value)

    def place_of(self, step: int) -> int | None:
        """Return the place of the last value of a step; None without one."""
        if self.is_in_order(by_step=True):
            place = bisect_right(self.steps, step) - 1
            return place if place >= 0 and self.steps[place] == step else None
        places = range(len(self.steps) - 1, -1, -1)
        return next((place for place in places if self.steps[place] == step), None)

    def beside(self) -> "Track":
        """Return an empty series that shares the steps and times, so that only values are added."""
        return Track(self.steps, self.times_s)

    def head(self, count: int) -> "Track":
        return Track(self.steps[:count], self.times_s[:count], self.values[:count])

    def copy(self) -> "Track":
        """Return a copy that shares no column."""
        return Track(self.steps[:], self.times_s[:], self.values[:])

    def memory_bytes(self) -> int:
        return getsizeof(self.steps) + getsizeof(self.times_s) + getsizeof(self.values)

    def finite(self) -> "Track":
        if all(map(math.isfinite, self.values)):
            return self
        return self._of(at for at, value in enumerate(self.values) if math.isfinite(value))

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Return an iterator over the step of each value and the value."""
        return zip(self.steps, self.values, strict=True)

    def before(self, step: int) -> list[float]:
        return [value for at, value in self.pairs() if at < step]

    def since(self, step: int) -> list[float]:
        return [value for at, value in self.pairs() if at >= step]

    def between(self, first: int, last: int) -> "Track":
        if self.is_in_order(by_step=True):
            part = slice(bisect_left(self.steps, first), bisect_right(self.steps, last))
            return Track(self.steps[part], self.times_s[part], self.values[part])
        return self._of(at for at, step in enumerate(self.steps) if first <= step <= last)

    def is_in_order(self, *, by_step: bool) -> bool:
        """Return whether no value is before its predecessor, by step, or by time and then step.

        A live run is looked at again and again, so only its new values are compared.
        """
        known = self._steps_in_order if by_step else self._times_in_order
        if known < len(self.steps):
            new = self._marks(by_step=by_step, since=max(0, known - 1))
            if not all(map(le, new, islice(new, 1, None))):
                return False
            if by_step:
                self._steps_in_order = len(self.steps)
            else:
                self._times_in_order = len(self.steps)
        return True

    def _bits(self) -> tuple[bytes, bytes, bytes]:
        return (
            array(_INT, self.steps).tobytes(),
            array(_FLOAT, self.times_s).tobytes(),
            array(_FLOAT, self.values).tobytes(),
        )

    def _of(self, places: Iterable[int]) -> "Track":
        part = Track()
        for at in places:
            part.add(self.steps[at], self.times_s[at], self.values[at])
        return part

    def _marks(self, *, by_step: bool, since: int = 0) -> Sequence[Any]:
        steps, times_s = self.steps[since:], self.times_s[since:]
        return steps if by_step else [*zip(times_s, steps, strict=True)]


def in_order(track: Track, *, by_step: bool) -> Track:
    """Return a series in order of its steps, or of its times; equal ones keep their order.

    One export may report several steps, all at its own time: these are in order of steps.
    """
    if track.is_in_order(by_step=by_step):
        return track
    marks = track._marks(by_step=by_step)  # noqa: SLF001  # its own
    return track._of(sorted(range(len(marks)), key=marks.__getitem__))  # noqa: SLF001


def gaps_s(times_s: Sequence[float]) -> list[float]:
    return [later_s - at_s for at_s, later_s in pairwise(times_s)]


def newest_s(tracks: Mapping[str, Track]) -> float:
    """Return the time of the newest value of several series, since the first record; 0 if none."""
    return max((track.times_s[-1] for track in tracks.values() if track.times_s), default=0.0)
