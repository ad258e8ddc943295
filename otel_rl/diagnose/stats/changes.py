"""Detects a change of level by ranks, independent of outliers and units.

The place of a change is the one that best separates the values before and after it (Mann-Whitney's
U at every place, as in Pettitt's test). The search takes O(n log n).
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import mul, sub
from statistics import median
from typing import NamedTuple

from otel_rl.diagnose.thresholds import (
    A_FEW,
    FAR,
    FELT,
    FEWEST_BEFORE,
    FEWEST_SINCE,
    MANY,
    NEARLY_ALL,
    SEVERAL,
)

_TINY = 1e-12

DEVIATION = 1.4826
"""Standard deviation of normal values, in units of their median absolute deviation."""

LEAST_DIVISOR = 1e-9
"""What a time or count that may be 0 is taken for where something is divided by it."""

_LEAST_NOISE = 1e-3
"""Noise of equal values, as a part of them: a change that is smaller says nothing."""


# Few values are a change if they are far from the level before, the farther the fewer they are: in
# units of its noise, all together, and times its farthest value, beyond 1.
_EVIDENCE, _BEYOND = 16.0, 2.0
_FEWEST_SUDDEN = 2


_LENGTHS = 16  # of series: those of one run have a few


@dataclass(frozen=True)
class Change:
    """Change of the level of a series at one place. The order of most shows that they are none.

    Attributes:
        place: Index of the first value of the new level.
        order: Cliff's delta, from -1 (every earlier value is higher) to 1 (every earlier value is
            lower).
    """

    values: Sequence[float] = field(repr=False)
    place: int
    order: float

    @property
    def length(self) -> int:
        return len(self.values)

    @cached_property
    def before(self) -> float:
        """Return the median of the values before the place."""
        return median(self.values[: self.place])

    @cached_property
    def after(self) -> float:
        """Return the median of the values from the place on."""
        return median(self.values[self.place :])

    @cached_property
    def noise(self) -> float:
        """Return the median absolute deviation of the values from their level, times 1.4826.

        The result is the standard deviation if the values are normal.
        """
        off = [abs(value - self.before) for value in self.values[: self.place]]
        off += [abs(value - self.after) for value in self.values[self.place :]]
        return DEVIATION * median(off)

    @cached_property
    def relative_noise(self) -> float:
        """Return the noise as a part of the level before; 1 if that level is 0.

        Work that takes four times as long varies by four times as many seconds: the noise is at
        most that of the noisier side in units of its own level.
        """
        if self.before <= 0:
            return 1.0
        sides = (self.values[: self.place], self.before), (self.values[self.place :], self.after)
        noisier = max(
            median(abs(value - usual) for value in side) / max(usual, self.before)
            for side, usual in sides
        )
        return min(self.noise / self.before, DEVIATION * noisier)

    @property
    def ratio(self) -> float:
        """Return the ratio of after to before; infinite if before is 0."""
        if abs(self.before) < _TINY:
            return 1.0 if abs(self.after) < _TINY else math.inf
        return self.after / self.before

    @property
    def chance(self) -> float:
        """Return the approximate probability of so clear an order in a series without a change.

        Pettitt's approximation is good below 0.5.
        """
        k = abs(self.order) * self.place * (self.length - self.place)
        return min(1.0, 2 * math.exp(-6 * k * k / (self.length**3 + self.length**2)))

    @property
    def size(self) -> float:
        """Return the difference of the levels in units of the noise."""
        difference = self.after - self.before
        if abs(difference) < _TINY:
            return 0.0
        return difference / max(self.noise, _TINY, _LEAST_NOISE * abs(self.before))


def least_noise(value: float) -> float:
    """Return the noise that a series of about this value has at least."""
    return LEAST_DIVISOR + _LEAST_NOISE * abs(value)


def find_change(values: Sequence[float], *, shortest: int = FEWEST_SINCE) -> Change | None:
    """Find the place of the clearest change.

    Args:
        values: Finite values, in order of time.
        shortest: Fewest values on either side.

    Returns:
        The change; None if there are too few values, or all are equal.
    """
    n = len(values)
    if n < 2 * shortest:
        return None
    middles, weights = _expected(n, shortest)
    sums = [*accumulate(_ranks(values))]
    # How far the ranks before each place are below those of a series without a change.
    below = [*map(sub, middles, sums[shortest - 1 : n - shortest])]
    clear = [*map(mul, map(abs, below), weights)]
    clearest = max(clear)
    if not clearest:
        return None
    at = clear.index(clearest)
    place = at + shortest
    return Change(values, place, 2 * below[at] / (place * (n - place)))


@lru_cache(maxsize=_LENGTHS)
def _expected(n: int, shortest: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return the expected sum of ranks before each place, and what makes places comparable."""
    places = range(shortest, n - shortest + 1)
    middles = [place * (n + 1) / 2 for place in places]
    return middles, [1 / math.sqrt(place * (n - place)) for place in places]


def find_step(values: Sequence[float], *, shortest: int = FEWEST_SINCE) -> Change | None:
    """Find the place of the largest rise, if nearly all later values are above the earlier ones.

    Args:
        values: Finite values, in order of time.
        shortest: Fewest values on either side.

    Returns:
        The rise; None if there is none, or some values are not positive.
    """
    if len(values) < 2 * shortest or min(values) <= 0:
        return None
    if median(values[-shortest:]) <= FELT * median(values[:shortest]):
        return None  # most series end as they have begun
    logs = [math.log(value) for value in values]
    n, total, before = len(logs), sum(logs), 0.0
    best, most = 0, 0.0
    for place, value in enumerate(logs[: n - shortest + 1]):
        rise = before * n - total * place  # of the means of logarithms, times both lengths
        if place >= shortest and rise < 0:
            square = rise * rise / (place * (n - place))
            if square > most:
                best, most = place, square
        before += value
    if not best:
        return None
    first, last = values[:best], sorted(values[best:])
    pairs = sum(len(last) - bisect_right(last, value) for value in first)
    order = 2 * pairs / (best * (n - best)) - 1
    return Change(values, best, order) if order >= NEARLY_ALL else None


def find_sudden(values: Sequence[float], *, shown: float = -math.inf) -> Change | None:
    """Find the last few values far above all before them: the fewer, the farther.

    Distances are in units of the noise of the earlier values, and of the farthest of them, which
    this run has shown.

    Args:
        values: Finite values, in order of time.
        shown: The farthest value that similar series have shown.

    Returns:
        The change; None if there are too few values, or they are not so far.
    """
    if min(values[-_FEWEST_SUDDEN:], default=0.0) <= max(values[:-A_FEW], default=0.0):
        return None
    for count in range(A_FEW, _FEWEST_SUDDEN - 1, -1):
        before, after = values[:-count], values[-count:]
        if len(before) < FEWEST_BEFORE:
            continue
        middle, noise = median(before), spread(before)
        farthest = (1 + _BEYOND / count**2) * (max(*before, shown) - middle)
        if noise > _TINY and min(after) - middle > max(_EVIDENCE / count * noise, farthest):
            return Change(values, len(before), 1.0)
    return None


class Fall(NamedTuple):
    """Fall of a score that ends clearly below its best level.

    Attributes:
        place: Place of the best level.
        noise: Noise of the moves from value to value.
    """

    place: int
    best: float
    last: float
    noise: float


def find_fall(values: Sequence[float], *, part: float) -> Fall | None:
    """Return the fall of a score by a part of its best level, far beyond its noise."""
    n = len(values)
    if n < SEVERAL:
        return None
    smooth = running_medians(values, A_FEW if n < MANY else max(FEWEST_SINCE, n // 8))
    place = max(range(len(smooth)), key=smooth.__getitem__)
    noise = spread([b - a for a, b in pairwise(values)])
    found = Fall(place, smooth[place], smooth[-1], noise)
    drop = found.best - found.last
    return found if drop >= max(FAR * noise, LEAST_DIVISOR, part * abs(found.best)) else None


def spread(values: Sequence[float]) -> float:
    """Return the median absolute deviation from the median, times 1.4826."""
    middle = median(values)
    return DEVIATION * median(abs(value - middle) for value in values)


def running_medians(values: Sequence[float], width: int) -> list[float]:
    """Return the median of each ``width`` neighbours, in order.

    Args:
        values: Finite values, at least ``width``.
    """
    window = sorted(values[:width])
    low, high = (width - 1) // 2, width // 2
    found = [(window[low] + window[high]) / 2]
    for gone, new in zip(values, values[width:], strict=False):
        del window[bisect_left(window, gone)]
        insort(window, new)
        found.append((window[low] + window[high]) / 2)
    return found


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks, from 1; equal values share the mean of their ranks."""
    ordered = sorted(values)
    last = dict(zip(ordered, range(1, len(ordered) + 1), strict=True))
    if len(last) == len(ordered):
        return [*map(last.__getitem__, values)]
    first = dict(zip(reversed(ordered), range(len(ordered), 0, -1), strict=True))
    return [(first[value] + last[value]) / 2 for value in values]
