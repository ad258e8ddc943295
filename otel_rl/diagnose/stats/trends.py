"""Detects departures from a trend, for series that change all the time.

An entropy falls and a KL grows in every run that learns. A fault is a sudden departure from both
the straight line and the exponential of the values so far.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import NamedTuple

from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.stats.changes import least_noise
from otel_rl.diagnose.thresholds import (
    FEWEST_BEFORE,
    HALF,
    MANY,
    NOISE_OF_MANY,
    SEVERAL,
)

_ROUNDING = 1e-9  # of the values: a line through equal ones is off by the last digits

# Last values that leave a trend, all together in units of its noise, each, and steps they go on.
_HEADING, _EVIDENCE, _EACH, _AHEAD = (6, 5, 4, 3), 16.0, 1.5, 8
_TWO = 2  # values of a fall: what rises may be a spike

_MOST = 700.0  # up to which the exponential is finite


class TrendWindow(NamedTuple):
    """A window of values since a departure.

    Attributes:
        expected: Extrapolations of the straight line and of the exponential through the earlier
            values; equal if some of these are not positive.
        found: Median of the window's values.
    """

    expected: tuple[float, float]
    found: float


class TrendDeparture(NamedTuple):
    """Departure of a series from its trend.

    Attributes:
        step: The first step that is off.
        before: The last value by the earlier trend.
        after: The median of the last half of the values since then.
        windows: All values since then, in windows: an extrapolation loses precision with distance.
        is_sure: Whether two lines fit the series much better than one.
    """

    step: int
    before: float
    after: float
    windows: tuple[TrendWindow, ...]
    is_sure: bool


class _Line(NamedTuple):
    """A straight line through points, and the sum of its squared residuals."""

    offset: float
    slope: float
    missed: float

    def at(self, place: float) -> float:
        return self.offset + self.slope * place


def departure(track: Track) -> TrendDeparture | None:
    """Find the clearest departure of a series; None if the series is too short.

    Args:
        track: Finite series, in order of its steps.
    """
    values, n = track.values, len(track.values)
    if n < FEWEST_BEFORE + SEVERAL:
        return None
    is_positive = min(values) > 0
    # On a logarithmic scale if possible: a collapse ends in a flat line near 0.
    scaled = [math.log(value) for value in values] if is_positive else values
    lines = _Lines(scaled)
    place = min(
        range(FEWEST_BEFORE, n - SEVERAL + 1),
        key=lambda cut: lines.through(0, cut).missed + lines.through(cut, n).missed,
    )
    begun = _begun(lines, scaled, place)
    parted = lines.through(0, place).missed + lines.through(place, n).missed
    straight, curved = _Lines(values).through(0, place), lines.through(0, place)

    def window(first: int, end: int) -> TrendWindow:
        middle = (first + end - 1) / 2
        line = straight.at(middle)
        # Far ahead, an exponential soon exceeds a float.
        curve = math.exp(min(curved.at(middle), _MOST)) if is_positive else line
        return TrendWindow((line, curve), median(values[first:end]))

    return TrendDeparture(
        track.steps[begun],
        straight.at(place - 1),
        median(values[(place + n) // 2 :]),
        tuple(window(first, first + SEVERAL) for first in range(place, n - SEVERAL + 1, SEVERAL)),
        parted < HALF * lines.through(0, n).missed,
    )


def heading(track: Track, *, times: float, is_up: bool) -> TrendDeparture | None:
    """Find a departure in the last few values that will soon be ``times`` times off its trend.

    The departure is continued by its growth if it rises, and by a straight line if it falls. Each
    value is farther off than the one before, and all together are far beyond the noise.

    Args:
        track: Finite series, in order of its steps.
        times: Factor by which the series will be off.
        is_up: Whether the series rises.
    """
    values = track.values
    if len(values) < FEWEST_BEFORE + _TWO or min(values) <= 0:
        return None
    lines = _Lines([math.log(value) for value in values])
    counts = _HEADING if is_up else (*_HEADING, _TWO)
    for place in (len(values) - count for count in counts):
        if place >= FEWEST_BEFORE and _is_heading(values, lines, place, times, is_up=is_up):
            before, after = values[place - 1], values[-1]
            return TrendDeparture(track.steps[place], before, after, (), is_sure=True)
    return None


def _is_heading(
    values: Sequence[float], lines: "_Lines", place: int, times: float, *, is_up: bool
) -> bool:
    line, n, sign = lines.through(0, place), len(values), 1 if is_up else -1
    noise = math.sqrt(line.missed / place) * max(1.0, 2 * _unsure(place, n - place)) + 1e-3
    # Off both the exponential and the straight line, as any trend may be either.
    straight, most = _Lines(values).through(0, place), max if is_up else min
    expected = [most(math.exp(line.at(at)), straight.at(at)) for at in range(place, n)]
    if min(expected) <= 0:
        return False
    off = [
        sign * math.log(value / one) for value, one in zip(values[place:], expected, strict=True)
    ]
    if off[0] <= _EACH * noise or sum(off) < _EVIDENCE * noise:
        return False
    if any(later <= one for one, later in pairwise(off)):
        return False
    if is_up:
        return off[-1] + _AHEAD * fmean(b - a for a, b in pairwise(off)) > math.log(times)
    move = (values[-1] - values[place - 1]) / (n - place)
    return times * (values[-1] + _AHEAD * move) < expected[-1]


def _unsure(before: int, ahead: float) -> float:
    """Return the standard error of a line ``ahead`` of the values that it goes through."""
    return math.sqrt(1 / before + 12 * ahead**2 / before**3)  # of least squares


def _begun(lines: "_Lines", values: Sequence[float], place: int) -> int:
    """Return the first value of a gradual departure whose clearest bend is at ``place``.

    From that value on all values are off the earlier trend, in the direction of those that follow.
    """
    end = min(len(values), place + SEVERAL)
    is_up = median(values[place:end]) > lines.through(0, place).at(place)
    rounding = _ROUNDING * max(map(abs, values))
    for first in range(max(FEWEST_BEFORE, place - MANY), place):
        line = lines.through(0, first)
        least = NOISE_OF_MANY * math.sqrt(line.missed / first) + rounding
        off = (values[at] - line.at(at) for at in range(first, place))
        if all((one if is_up else -one) > least for one in off):
            return first
    return place


def beyond_trend(track: Track, step: int, *, fewest: int = SEVERAL) -> float | None:
    """Return how far the values since a step are above the earlier trend, in units of noise.

    Far from the earlier values the trend is uncertain, which counts as noise.

    Return None if there are too few earlier or later values.
    """
    place = next((place for place, at in enumerate(track.steps) if at >= step), len(track.steps))
    n = len(track.values)
    if place < FEWEST_BEFORE or n - place < fewest:
        return None
    line = _Lines(track.values).through(0, place)
    since = (place + n) // 2
    found = sum(track.values[at] - line.at(at) for at in range(since, n)) / (n - since)
    ahead = (since + n - place) / 2
    noise = math.sqrt(line.missed / place) * max(1.0, 2 * _unsure(place, ahead))
    return found / max(noise, least_noise(max(map(abs, track.values))))


class _Lines:
    """Least squares over any part of a series, each in constant time."""

    def __init__(self, values: Sequence[float]) -> None:
        # Centred, so that squares lose no precision.
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
