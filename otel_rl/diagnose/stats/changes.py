"""Detects a change of level by ranks, independent of outliers and units.

The place of a change is the one that best separates the values before and after it (Mann-Whitney's
U at every place, as in Pettitt's test). O(n log n).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

__all__ = ["Change", "find_change", "spread"]

_TINY = 1e-12


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
    ranks = _ranks(values)
    sums = list(accumulate(ranks))
    best, best_z, best_u = 0, 0.0, 0.0
    for place in range(shortest, n - shortest + 1):
        # Number of pairs of an earlier and a later value in which the later one is higher.
        u = sums[-1] - sums[place - 1] - (n - place) * (n - place + 1) / 2
        deviation = math.sqrt(place * (n - place) * (n + 1) / 12)
        z = (u - place * (n - place) / 2) / deviation
        if abs(z) > abs(best_z):
            best, best_z, best_u = place, z, u
    if not best:
        return None
    before, after = median(values[:best]), median(values[best:])
    residuals = [abs(v - before) for v in values[:best]] + [abs(v - after) for v in values[best:]]
    order = 2 * best_u / (best * (n - best)) - 1
    return Change(best, before, after, 1.4826 * median(residuals), order, n)


def spread(values: Sequence[float]) -> float:
    """Return the median absolute deviation from the median, times 1.4826."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks, from 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return ranks
