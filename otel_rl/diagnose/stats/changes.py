"""Detects a change of level by ranks, independent of outliers and units.

The place of a change is the one that best separates the values before and after it (Mann-Whitney's
U at every place, as in Pettitt's test). O(n log n).
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

__all__ = ["Change", "find_change", "find_step", "find_sudden", "running_medians", "spread"]

_TINY = 1e-12

# Few values are a change if they are far from the level before, the farther the fewer they are: in
# units of its noise, all together, and times its farthest value, beyond 1.
_EVIDENCE, _BEYOND = 16.0, 2.0
_MOST_SUDDEN, _FEWEST_SUDDEN = 3, 2
_FEWEST_BEFORE = 10

_NEARLY_ALL = 0.95
_RISE = 1.05


@dataclass(frozen=True, slots=True)
class Change:
    """Change of the level of a series at one place.

    Attributes:
        place: Index of the first value of the new level.
        before: Median of the values before.
        after: Median of the values from there on.
        noise: Median absolute deviation of the values from their level, times 1.4826: the standard
            deviation if they were normal.
        order: From -1 (every value before is higher) to 1 (every value before is lower): Cliff's
            delta.
        length: Of the series.
    """

    place: int
    before: float
    after: float
    noise: float
    order: float
    length: int

    @property
    def ratio(self) -> float:
        """Return the ratio of after to before; infinite if before is 0."""
        if abs(self.before) < _TINY:
            return 1.0 if abs(self.after) < _TINY else math.inf
        return self.after / self.before

    @property
    def chance(self) -> float:
        """Return the approximate probability of so clear an order in a series without a change.

        Pettitt's approximation, good below 0.5.
        """
        k = abs(self.order) * self.place * (self.length - self.place)
        return min(1.0, 2 * math.exp(-6 * k * k / (self.length**3 + self.length**2)))

    @property
    def size(self) -> float:
        """Return the difference in units of the noise."""
        difference = self.after - self.before
        if abs(difference) < _TINY:
            return 0.0
        return difference / max(self.noise, _TINY, 1e-3 * abs(self.before))


def find_change(values: Sequence[float], *, shortest: int = 4) -> Change | None:
    """Find the place of the clearest change.

    Args:
        values: Finite, in order of time.
        shortest: Fewest values on either side.

    Returns:
        None if there are too few, or all are equal.
    """
    n = len(values)
    if n < 2 * shortest:
        return None
    sums = [*accumulate(_ranks(values))]
    total = sums[-1]
    best, best_z, best_u = 0, 0.0, 0.0
    for place, before in enumerate(sums[shortest - 1 : n - shortest], shortest):
        left = n - place
        pairs = place * left
        # Number of pairs of an earlier and a later value in which the later one is higher.
        u = total - before - left * (left + 1) / 2
        z = (u - pairs / 2) / math.sqrt(pairs * (n + 1) / 12)
        if abs(z) > abs(best_z):
            best, best_z, best_u = place, z, u
    if not best:
        return None
    return _change(values, best, 2 * best_u / (best * (n - best)) - 1)


def _change(values: Sequence[float], place: int, order: float) -> Change:
    before, after = median(values[:place]), median(values[place:])
    residuals = [abs(v - before) for v in values[:place]] + [abs(v - after) for v in values[place:]]
    return Change(place, before, after, 1.4826 * median(residuals), order, len(values))


def find_step(values: Sequence[float], *, shortest: int = 4) -> Change | None:
    """Find the place of the largest rise, if nearly all values after it are above those before.

    Args:
        values: Finite, in order of time.
        shortest: Fewest values on either side.

    Returns:
        None if there is none, or some are not positive.
    """
    if len(values) < 2 * shortest or min(values) <= 0:
        return None
    if median(values[-shortest:]) <= _RISE * median(values[:shortest]):
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
    return _change(values, best, order) if order >= _NEARLY_ALL else None


def find_sudden(values: Sequence[float], *, shown: float = -math.inf) -> Change | None:
    """Find the last few values far above all before them: the fewer, the farther.

    In units of the noise of those, and of the farthest of them, which is what this run has shown.

    Args:
        values: Finite, in order of time.
        shown: The farthest value that similar series have shown.

    Returns:
        None if there are too few, or they are not so far.
    """
    if min(values[-_FEWEST_SUDDEN:], default=0.0) <= max(values[:-_MOST_SUDDEN], default=0.0):
        return None
    for count in range(_MOST_SUDDEN, _FEWEST_SUDDEN - 1, -1):
        before, after = values[:-count], values[-count:]
        if len(before) < _FEWEST_BEFORE:
            continue
        middle, noise = median(before), spread(before)
        farthest = (1 + _BEYOND / count**2) * (max(*before, shown) - middle)
        if noise > _TINY and min(after) - middle > max(_EVIDENCE / count * noise, farthest):
            return _change(values, len(before), 1.0)
    return None


def spread(values: Sequence[float]) -> float:
    """Return the median absolute deviation from the median, times 1.4826."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def running_medians(values: Sequence[float], width: int) -> list[float]:
    """Return the median of each ``width`` neighbours, in order.

    Args:
        values: Finite, at least ``width``.
        width: Number of neighbours.
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
    first = dict(zip(reversed(ordered), range(len(ordered), 0, -1), strict=True))
    return [(first[value] + last[value]) / 2 for value in values]
