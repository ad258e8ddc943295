"""Cumulative points to increments, with reset detection. Pure.

A sum or histogram point counts from its start time. A delta point's start moves with each point; a
cumulative point's stays until the process restarts. Whichever arrives, the sum of the increments
equals what was counted: https://opentelemetry.io/docs/specs/otel/metrics/data-model/
"""

import bisect
import math
from dataclasses import dataclass, field

from otel_rl.records import HistogramPoint, SumPoint, Temporality

__all__ = ["CounterStream", "HistogramStream", "Increment"]

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Increment:
    """What was counted, and over how long.

    Attributes:
        value: Counted since the point before. 0 when nothing happened.
        seconds: Duration that ``value`` covers; 0.0 if it is not known.
    """

    value: float
    seconds: float


@dataclass(slots=True)
class CounterStream:
    """One monotonic sum series, one point after the other."""

    start_ns: int = 0
    time_ns: int = 0
    value: float = 0

    def advance(self, point: SumPoint) -> Increment | None:
        """Take the next point.

        Returns:
            The increment; None for a point that says nothing new: one that is older than the last
            (a cumulative point is superseded by a later one), or the first of a stream whose start
            nobody knows.
        """
        if point.temporality is Temporality.DELTA:
            return Increment(point.value, _seconds(point.start_ns, point.time_ns))
        known = self.time_ns > 0
        if known and point.time_ns <= self.time_ns:
            return None
        restarted = known and (point.start_ns > self.start_ns or point.value < self.value)
        if not known and not point.start_ns:
            increment = None
        elif not known:
            increment = Increment(point.value, _seconds(point.start_ns, point.time_ns))
        elif restarted:
            # What the process counted before it died is in; all it counted since is new.
            since_ns = max(point.start_ns, self.time_ns)
            increment = Increment(point.value, _seconds(since_ns, point.time_ns))
        else:
            increment = Increment(point.value - self.value, _seconds(self.time_ns, point.time_ns))
        self.start_ns, self.time_ns, self.value = point.start_ns, point.time_ns, point.value
        return increment


@dataclass(slots=True)
class HistogramStream:
    """One histogram series, one point after the other."""

    start_ns: int = 0
    time_ns: int = 0
    count: int = 0
    total: float | None = None
    buckets: dict[tuple[float, float], int] = field(default_factory=dict)

    def advance(self, point: HistogramPoint) -> HistogramPoint | None:
        """Take the next point.

        Returns:
            The point with only what is new since the one before, as a delta; None if nothing is.
            The extremes of a cumulative point are of the whole time, so they survive only in the
            first point after a start.
        """
        if point.temporality is Temporality.DELTA:
            return point if point.count else None
        known = self.time_ns > 0
        if known and point.time_ns <= self.time_ns:
            return None
        fresh = not known or point.start_ns > self.start_ns or point.count < self.count
        new: HistogramPoint | None = None
        if fresh and (known or point.start_ns):
            new = _as_delta(point, since_ns=max(point.start_ns, self.time_ns))
        elif not fresh:
            new = self._difference(point)
        self.start_ns, self.time_ns = point.start_ns, point.time_ns
        self.count, self.total = point.count, point.total
        self.buckets = {(lower, upper): n for lower, upper, n in point.buckets}
        return new if new is not None and new.count else None

    def _difference(self, point: HistogramPoint) -> HistogramPoint:
        before = self._rebucketed(point.buckets)
        buckets = tuple(
            (lower, upper, n - old)
            for (lower, upper, n), old in zip(point.buckets, before, strict=True)
            if n > old
        )
        total = None
        if point.total is not None and self.total is not None:
            total = point.total - self.total
        return HistogramPoint(
            series=point.series,
            start_ns=self.time_ns,
            time_ns=point.time_ns,
            temporality=Temporality.DELTA,
            count=point.count - self.count,
            total=total,
            minimum=None,
            maximum=None,
            buckets=buckets,
        )

    def _rebucketed(self, buckets: tuple[tuple[float, float, int], ...]) -> list[int]:
        """The counts of the point before, in the buckets of this one.

        An exponential histogram halves its resolution when its range grows, so an old bucket may
        lie inside a wider new one. It is found by its middle, because the bounds of the two scales
        are computed differently and may differ in the last bit.
        """
        uppers = [upper for _, upper, _ in buckets]
        counts = [0] * len(buckets)
        for (lower, upper), number in self.buckets.items():
            middle = lower + (upper - lower) / 2 if math.isfinite(upper - lower) else upper
            place = bisect.bisect_left(uppers, middle)
            if place < len(counts):
                counts[place] += number
        return counts


def _as_delta(point: HistogramPoint, *, since_ns: int) -> HistogramPoint:
    return HistogramPoint(
        series=point.series,
        start_ns=since_ns,
        time_ns=point.time_ns,
        temporality=Temporality.DELTA,
        count=point.count,
        total=point.total,
        minimum=point.minimum,
        maximum=point.maximum,
        buckets=point.buckets,
    )


def _seconds(start_ns: int, end_ns: int) -> float:
    return max(end_ns - start_ns, 0) / _NS_PER_S if start_ns else 0.0
