"""Where a series left the way that it was on, for series that move all the time.

An entropy falls and a KL grows in every run that learns. What matters is that it suddenly goes
elsewhere than it went: off the straight line and off the exponential that it has followed.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from otel_rl.diagnose.history import Track

__all__ = ["Departure", "Window", "beyond_trend", "departure"]

_FEWEST_BEFORE = 10
_FEWEST_AFTER = 6

_MOST = 700.0  # of which the exponential is finite


class Window(NamedTuple):
    """Some values since a series left its way.

    Attributes:
        expected: What they would have come to, as the straight line and as the exponential through
            the values before have it; the same twice if some of these are not positive.
        found: Their median.
    """

    expected: tuple[float, float]
    found: float


class Departure(NamedTuple):
    """Where a series left its way.

    Attributes:
        step: The first step that is off.
        before: The last value by the trend before it.
        after: The median of the last half of the values since then.
        windows: All values since then, in parts: a trend says less and less of what is far ahead.
        is_sure: Whether two lines say much more of the series than one does.
    """

    step: int
    before: float
    after: float
    windows: tuple[Window, ...]
    is_sure: bool


class _Line(NamedTuple):
    """A straight line through points, and the sum of the squares of what it misses them by."""

    offset: float
    slope: float
    missed: float

    def at(self, place: float) -> float:
        return self.offset + self.slope * place


def departure(track: Track) -> Departure | None:
    """Where a series left its way most clearly; None if there is too little of it.

    Args:
        track: Finite, in order of its steps.
    """
    values, n = track.values, len(track.values)
    if n < _FEWEST_BEFORE + _FEWEST_AFTER:
        return None
    is_positive = min(values) > 0
    # By orders of magnitude if possible: a collapse ends in a flat line near 0.
    scaled = [math.log(value) for value in values] if is_positive else values
    lines = _Lines(scaled)
    place = min(
        range(_FEWEST_BEFORE, n - _FEWEST_AFTER + 1),
        key=lambda cut: lines.through(0, cut).missed + lines.through(cut, n).missed,
    )
    parted = lines.through(0, place).missed + lines.through(place, n).missed
    straight, curved = _Lines(values).through(0, place), lines.through(0, place)

    def window(first: int, end: int) -> Window:
        middle = (first + end - 1) / 2
        line = straight.at(middle)
        # Far ahead, an exponential is soon more than a float can hold.
        curve = math.exp(min(curved.at(middle), _MOST)) if is_positive else line
        return Window((line, curve), median(values[first:end]))

    return Departure(
        track.steps[place],
        straight.at(place - 1),
        median(values[(place + n) // 2 :]),
        tuple(
            window(first, first + _FEWEST_AFTER)
            for first in range(place, n - _FEWEST_AFTER + 1, _FEWEST_AFTER)
        ),
        parted < 0.5 * lines.through(0, n).missed,
    )


def beyond_trend(track: Track, step: int) -> float | None:
    """How far the values since a step are above the trend before it, in units of its noise.

    None if there are too few of either.
    """
    place = next((place for place, at in enumerate(track.steps) if at >= step), len(track.steps))
    n = len(track.values)
    if place < _FEWEST_BEFORE or n - place < _FEWEST_AFTER:
        return None
    line = _Lines(track.values).through(0, place)
    since = (place + n) // 2
    found = sum(track.values[at] - line.at(at) for at in range(since, n)) / (n - since)
    noise = math.sqrt(line.missed / place)
    return found / max(noise, 1e-9 + 1e-3 * max(map(abs, track.values)))


class _Lines:
    """Least squares through any part of a series, each in constant time."""

    def __init__(self, values: Sequence[float]) -> None:
        # About the middle, so that squares lose nothing.
        self._center = sum(values) / len(values)
        centered = [value - self._center for value in values]
        self._y = [0.0, *accumulate(centered)]
        self._xy = [0.0, *accumulate(place * y for place, y in enumerate(centered))]
        self._yy = [0.0, *accumulate(y * y for y in centered)]

    def through(self, first: int, end: int) -> _Line:
        n = end - first
        mean_x = (first + end - 1) / 2
        y, xy, yy = (sums[end] - sums[first] for sums in (self._y, self._xy, self._yy))
        spread_x = n * (n * n - 1) / 12
        together = xy - mean_x * y
        slope = together / spread_x if spread_x else 0.0
        missed = max(0.0, yy - y * y / n - slope * together)
        return _Line(self._center + y / n - slope * mean_x, slope, missed)
