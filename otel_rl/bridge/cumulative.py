"""Cumulative points to increments, with reset detection. Pure.

A sum or histogram point counts from its start time. A delta point's start moves with each point; a
cumulative point's stays until the process restarts. Whichever arrives, the sum of the increments
equals what was counted: https://opentelemetry.io/docs/specs/otel/metrics/data-model/
"""

import bisect
import math
from dataclasses import dataclass, field, replace

from otel_rl.records import HistogramPoint, SumPoint, Temporality

__all__ = ["CounterRecord", "CounterStream", "HistogramStream", "Increment"]

_NS_PER_S = 1_000_000_000

# Lives of a series whose last points may still come after the first of the next one. Where the
# process has an id of its own, each life is another series.
_MAX_EARLIER = 4

CounterRecord = tuple[int, int, float, "CounterRecord | None"]
"""What ``CounterStream.to_tuple`` gives."""


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
    """One monotonic sum series, one point after the other.

    Attributes:
        start_ns: Of the last point.
        time_ns: Of the last point; 0 before the first.
        value: Of the last point.
        earlier: What was counted before the series began anew, whose last points may still come.
    """

    start_ns: int = 0
    time_ns: int = 0
    value: float = 0
    earlier: "CounterStream | None" = None

    def advance(self, point: SumPoint, *, lives: int = _MAX_EARLIER) -> Increment | None:
        """Take the next point.

        Args:
            point: Of this series.
            lives: How many earlier lives of the series may be remembered.

        Returns:
            The increment; None for a point that says nothing new: one that is older than the last
            (a cumulative point is superseded by a later one), of a life so long ago that nobody
            knows whether it was counted, or the first of a stream whose start nobody knows, which
            has none or one at its own time.
        """
        if point.temporality is Temporality.DELTA:
            return Increment(point.value, _seconds(point.start_ns, point.time_ns))
        known = self.time_ns > 0
        if known and point.start_ns < self.start_ns and point.time_ns <= self.start_ns:
            if not lives:
                return None
            if self.earlier is None:
                self.earlier = CounterStream()
            return self.earlier.advance(point, lives=lives - 1)
        begun_anew = known and point.start_ns > self.start_ns
        if known and not begun_anew and self._is_older(point):
            return None
        # A Collector that scrapes, and knows no start, says it was when it looked first.
        start_is_known = 0 < point.start_ns < point.time_ns
        if not known and not start_is_known:
            increment = None
        elif not known:
            increment = Increment(point.value, _seconds(point.start_ns, point.time_ns))
        elif begun_anew and not start_is_known and point.value >= self.value:
            increment = Increment(point.value - self.value, _seconds(self.time_ns, point.time_ns))
        elif begun_anew or point.value < self.value:
            # What the process counted before it died is in; all it counted since is new.
            since_ns = max(point.start_ns, self.time_ns)
            increment = Increment(point.value, _seconds(since_ns, point.time_ns))
        else:
            increment = Increment(point.value - self.value, _seconds(self.time_ns, point.time_ns))
        if begun_anew and lives:
            self.earlier = CounterStream(self.start_ns, self.time_ns, self.value, self.earlier)
            _cut_off(self.earlier, lives)
        self.start_ns, self.value = point.start_ns, point.value
        self.time_ns = point.time_ns if begun_anew else max(point.time_ns, self.time_ns)
        return increment

    def _is_older(self, point: SumPoint) -> bool:
        """Whether the point says nothing that the last one did not.

        Within a life, which a start names, the larger value is the later one, even if the clock
        has stepped back. Where no start is given, time tells, and a smaller value is a new life.
        """
        if 0 < point.start_ns == self.start_ns:
            return point.value < self.value or (
                point.value == self.value and point.time_ns <= self.time_ns
            )
        return point.time_ns <= self.time_ns

    def to_tuple(self) -> CounterRecord:
        """The state in the form that is quickest to pickle."""
        earlier = None if self.earlier is None else self.earlier.to_tuple()
        return self.start_ns, self.time_ns, self.value, earlier

    @classmethod
    def from_tuple(cls, record: CounterRecord) -> "CounterStream":
        """The opposite of ``to_tuple``."""
        start_ns, time_ns, value, earlier = record
        return cls(start_ns, time_ns, value, None if earlier is None else cls.from_tuple(earlier))


@dataclass(slots=True)
class HistogramStream:
    """One histogram series, one point after the other. Times are as in ``CounterStream``."""

    start_ns: int = 0
    time_ns: int = 0
    count: int = 0
    total: float | None = None
    buckets: dict[tuple[float, float], int] = field(default_factory=dict)
    earlier: "HistogramStream | None" = None

    def advance(self, point: HistogramPoint, *, lives: int = _MAX_EARLIER) -> HistogramPoint | None:
        """Take the next point.

        Args:
            point: Of this series.
            lives: As for ``CounterStream``.

        Returns:
            The point with only what is new since the one before, as a delta; None if nothing is.
            The extremes of a cumulative point are of the whole time, so they survive only in the
            first point after a start.
        """
        if point.temporality is Temporality.DELTA:
            return point if point.count else None
        known = self.time_ns > 0
        if known and point.start_ns < self.start_ns and point.time_ns <= self.start_ns:
            if not lives:
                return None
            if self.earlier is None:
                self.earlier = HistogramStream()
            return self.earlier.advance(point, lives=lives - 1)
        begun_anew = known and point.start_ns > self.start_ns
        if known and not begun_anew and self._is_older(point):
            return None
        fresh = not known or begun_anew or point.count < self.count
        new: HistogramPoint | None = None
        if fresh and (known or point.start_ns):
            new = _as_delta(point, since_ns=max(point.start_ns, self.time_ns))
        elif not fresh:
            new = self._difference(point)
        if begun_anew and lives:
            self.earlier = replace(self)
            _cut_off(self.earlier, lives)
        self.time_ns = point.time_ns if begun_anew else max(point.time_ns, self.time_ns)
        self.start_ns = point.start_ns
        self.count, self.total = point.count, point.total
        self.buckets = {(lower, upper): n for lower, upper, n in point.buckets}
        return new if new is not None and new.count else None

    def _is_older(self, point: HistogramPoint) -> bool:
        """As in ``CounterStream``."""
        if 0 < point.start_ns == self.start_ns:
            return point.count <= self.count
        return point.time_ns <= self.time_ns

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


def _cut_off(stream: CounterStream | HistogramStream, lives: int) -> None:
    """Forget all but the last ``lives`` of a series that begins anew again and again."""
    last: CounterStream | HistogramStream | None = stream
    while last is not None and lives > 1:
        last, lives = last.earlier, lives - 1
    if last is not None:
        last.earlier = None


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
