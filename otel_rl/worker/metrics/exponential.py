"""Exponential buckets of numbers that are not negative, filled many at a time.

https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
"""

import math
from collections.abc import Sequence
from typing import Final

from otel_rl.worker.otlp.step_shares import Buckets

__all__ = ["ExponentialBuckets"]

_MAX_BUCKETS: Final = 160
"""The SDK's default: an error of at most 4 % where the values span five orders of magnitude."""

_MAX_SCALE: Final = 20


class ExponentialBuckets:
    """Distribution of the numbers so far, with the best resolution that 160 buckets allow.

    Attributes are those of ``Buckets``.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total: float = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self.zeros = 0
        self.scale = _MAX_SCALE
        self.counts: dict[int, int] = {}

    def extend(self, values: Sequence[float]) -> None:
        """Add numbers, none of them negative or infinite."""
        if not values:
            return
        self.count += len(values)
        self.total += sum(values)
        self.minimum = min(self.minimum, *values)
        self.maximum = max(self.maximum, *values)
        logarithms = [math.log2(value) for value in values if value > 0]
        self.zeros += len(values) - len(logarithms)
        if not logarithms:
            return
        low, high = min(logarithms), max(logarithms)
        self._fit(_index(low, self.scale), _index(high, self.scale))
        factor, counts = math.ldexp(1, self.scale), self.counts
        for logarithm in logarithms:
            index = math.ceil(logarithm * factor) - 1
            counts[index] = counts.get(index, 0) + 1

    def merge(self, other: "ExponentialBuckets") -> None:
        """Add the numbers of ``other``, which must not be used any more."""
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.zeros += other.zeros
        if self.scale > other.scale:
            self.shift(self.scale - other.scale)
        elif other.scale > self.scale:
            other.shift(other.scale - self.scale)
        for index, number in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + number
        if self.counts:
            self._fit(min(self.counts), max(self.counts))

    def taken(self) -> Buckets | None:
        """Return the distribution; None if it is empty."""
        if not self.count:
            return None
        return Buckets(
            self.count,
            self.total,
            self.minimum,
            self.maximum,
            self.zeros,
            self.scale,
            self.counts,
        )

    def shift(self, shift: int) -> None:
        """Halve the resolution so many times."""
        if not shift:
            return
        merged: dict[int, int] = {}
        for index, number in self.counts.items():
            merged[index >> shift] = merged.get(index >> shift, 0) + number
        self.counts = merged
        self.scale -= shift

    def _fit(self, first: int, last: int) -> None:
        """Lower the scale until these buckets, and those with numbers, are few enough."""
        if self.counts:
            first, last = min(first, *self.counts), max(last, *self.counts)
        shift = 0
        while (last >> shift) - (first >> shift) >= _MAX_BUCKETS:
            shift += 1
        self.shift(shift)


def _index(logarithm: float, scale: int) -> int:
    return math.ceil(logarithm * math.ldexp(1, scale)) - 1
