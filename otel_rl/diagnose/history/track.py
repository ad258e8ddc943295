"""Series of a run in columns of machine numbers: a third of the memory of lists of Python's."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import le
from sys import getsizeof
from typing import Final, TypeAlias

__all__ = ["Track", "gaps_s", "in_order", "newest_s"]

_Ints: TypeAlias = MutableSequence[int]
_Floats: TypeAlias = MutableSequence[float]

_INT: Final = "q"
_FLOAT: Final = "d"


@dataclass(slots=True, eq=False)
class Track:
    """One series. The columns have one length, and only grow.

    Equal series have the same bits, so NaN is NaN.

    Attributes:
        steps: Step in progress at each value.
        times_s: Since the first record of the run.
        values: May hold NaN and infinities.
    """

    steps: _Ints = field(default_factory=lambda: array(_INT))
    times_s: _Floats = field(default_factory=lambda: array(_FLOAT))
    values: _Floats = field(default_factory=lambda: array(_FLOAT))
    # Number of the first ones that were found to be in order.
    _steps_in_order: int = field(default=0, init=False)
    _times_in_order: int = field(default=0, init=False)

    def __eq__(self, other: object) -> bool:
        """Compare all columns."""
        return self._bits() == other._bits() if isinstance(other, Track) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows

    @classmethod
    def of(cls, steps: Iterable[int], times_s: Iterable[float], values: Iterable[float]) -> "Track":
        """Return the series of these columns."""
        return cls(array(_INT, steps), array(_FLOAT, times_s), array(_FLOAT, values))

    def add(self, step: int, time_s: float, value: float) -> None:
        """Append a value."""
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
        """Return an empty series that shares the steps and times: only values are added to it."""
        return Track(self.steps, self.times_s)

    def head(self, count: int) -> "Track":
        """Return the first values."""
        return Track(self.steps[:count], self.times_s[:count], self.values[:count])

    def copy(self) -> "Track":
        """Return a copy that shares no column."""
        return Track(self.steps[:], self.times_s[:], self.values[:])

    def memory_bytes(self) -> int:
        """Return the memory of all columns."""
        return getsizeof(self.steps) + getsizeof(self.times_s) + getsizeof(self.values)

    def finite(self) -> "Track":
        """Return the finite values."""
        if all(map(math.isfinite, self.values)):
            return self
        return self._of(at for at, value in enumerate(self.values) if math.isfinite(value))

    def before(self, step: int) -> list[float]:
        """Return the values before a step."""
        return [value for at, value in zip(self.steps, self.values, strict=True) if at < step]

    def since(self, step: int) -> list[float]:
        """Return the values from a step on."""
        return [value for at, value in zip(self.steps, self.values, strict=True) if at >= step]

    def between(self, first: int, last: int) -> "Track":
        """Return the values of these steps, inclusive."""
        if self.is_in_order(by_step=True):
            part = slice(bisect_left(self.steps, first), bisect_right(self.steps, last))
            return Track(self.steps[part], self.times_s[part], self.values[part])
        return self._of(at for at, step in enumerate(self.steps) if first <= step <= last)

    def is_in_order(self, *, by_step: bool) -> bool:
        """Return whether no value is before its predecessor, by step or by time.

        A live run is looked at again and again: only its new values are compared.
        """
        known = self._steps_in_order if by_step else self._times_in_order
        marks: _Ints | _Floats = self.steps if by_step else self.times_s
        if known < len(marks):
            new = marks[max(0, known - 1) :]
            if not all(map(le, new, islice(new, 1, None))):
                return False
            if by_step:
                self._steps_in_order = len(marks)
            else:
                self._times_in_order = len(marks)
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

    def _sorted_by(self, marks: _Ints | _Floats) -> "Track":
        return self._of(sorted(range(len(marks)), key=marks.__getitem__))


def in_order(track: Track, *, by_step: bool) -> Track:
    """Return a series in order of its steps, or times; equal ones stay as they are."""
    if track.is_in_order(by_step=by_step):
        return track
    return track._sorted_by(track.steps if by_step else track.times_s)  # noqa: SLF001  # its own


def gaps_s(times_s: Sequence[float]) -> list[float]:
    """Return the times from each of these to the next one."""
    return [later_s - at_s for at_s, later_s in pairwise(times_s)]


def newest_s(tracks: Mapping[str, Track]) -> float:
    """Return the time of the newest value of several series, since the first record; 0 of none."""
    return max((track.times_s[-1] for track in tracks.values() if track.times_s), default=0.0)
