"""Cumulative points to increments, with reset detection. Pure.

A sum or histogram point counts from its start time. A delta point's start moves with each point; a
cumulative point's stays until the process restarts. Whichever arrives, the sum of the increments
equals what was counted: https://opentelemetry.io/docs/specs/otel/metrics/data-model/

A *life* is what is counted since one start. One series may have several lives at a time: a process
that hangs and its replacement under one ``service.instance.id`` report in turns, and the last
points of a life may come after the first of the next. So every life has a total of its own.

A start that is missing, or that equals the point's own time, is unknown: a Collector that scrapes
sends its first look so. What was counted before that look is not the run's. When another Collector
takes over, its first look continues the life that was reported last, under a second start.

One thing cannot be told from the points: if the second look of a Collector arrives before its
first, its start lies before its time like any other, and the whole total counts.
"""

import bisect
import math
import operator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from otel_rl.records import HistogramPoint, SumPoint, Temporality

__all__ = ["CounterRecord", "CounterStream", "HistogramStream", "Increment"]

_NS_PER_S = 1_000_000_000

# Lives of a series without steps. Where the process has an id of its own, each life is another
# series, so more than two are rare. Go and Node make no id by default: all replicas of a service
# are then the lives of one series.
_MAX_LIVES = 64

# Lives of a series with steps, of which a stock SDK counts each by itself. SDKs keep 2,000 sets of
# attributes and count the rest as one.
_MAX_STEPS = 2048

_Key = tuple[int, int | None]
"""Start and step."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What was counted, and over how long.

    Attributes:
        value: Counted since the point before. 0 when nothing happened.
        seconds: Duration that ``value`` covers and that no increment before it covers; 0.0 if it
            is not known.
    """

    value: float
    seconds: float


@dataclass(slots=True)
class _Life:
    """The total of one life.

    Attributes:
        time_ns: Of the latest point.
        amount: The total of a counter, the number of measurements of a histogram.
    """

    time_ns: int
    amount: float


@dataclass(slots=True)
class _HistogramLife(_Life):
    """The state of one life of a histogram, as of its latest point."""

    total: float | None
    minimum: float | None
    maximum: float | None
    buckets: dict[tuple[float, float], int]


_LifeT = TypeVar("_LifeT", bound=_Life)


@dataclass(slots=True)
class _Lives(Generic[_LifeT]):
    """The lives of one cumulative series.

    Attributes:
        time_ns: Of the latest point of all; 0 before the first.
        lives: By start and step. One life has several starts if several Collectors looked at it.
        lost_step: Start and step of the latest life with a step that is not remembered; those
            before it are not, either. None if none is lost.
    """

    time_ns: int = 0
    lives: dict[_Key, _LifeT] = field(default_factory=dict)
    lost_step: tuple[int, int] | None = None

    def before(
        self, start_ns: int, time_ns: int, amount: float, step: int | None
    ) -> tuple[_LifeT | None, bool] | None:
        """Find the life that a point tells of.

        Returns:
            The life to subtract, None if the point is the first one of its life; and whether the
            point, or the difference, was counted in this run, as the first look of a Collector was
            not. None if the point says nothing new, or is of a life that is not remembered.
        """
        life = self.lives.get((start_ns, step))
        if life is not None:
            return None if _is_older(life, start_ns, time_ns, amount) else _since(life, amount)
        if self._is_lost(start_ns, step):
            return None
        # A clock that was set back puts the time before the start.
        if 0 < start_ns != time_ns:
            return None, True
        continued = self._latest(step)
        if continued is None or time_ns <= continued.time_ns:
            return None, False
        return _since(continued, amount)

    @property
    def is_shared(self) -> bool:
        """An older life is told of later than the newest: two processes are one series."""
        starts = [(start_ns, life) for (start_ns, step), life in self.lives.items() if step is None]
        _, newest = max(starts, key=operator.itemgetter(0), default=(0, None))
        return newest is not None and any(
            start_ns > 0 and life is not newest and life.time_ns > newest.time_ns
            for start_ns, life in starts
        )

    def note(self, start_ns: int, step: int | None, life: _LifeT) -> None:
        """Remember ``life`` as the one of a start, after a point of it."""
        if life.time_ns > self.time_ns:
            self.time_ns = life.time_ns
        self.lives[start_ns, step] = life
        if len(self.lives) > _MAX_LIVES:
            self._lose_oldest(step)

    def _is_lost(self, start_ns: int, step: int | None) -> bool:
        """Return whether a life of this start and step may have been counted and forgotten."""
        if step is not None:
            return self.lost_step is not None and (start_ns, step) <= self.lost_step
        # There is no room for one that is older than all that are remembered.
        starts = [start for start, step in self.lives if step is None]
        return start_ns > 0 and len(starts) >= _MAX_LIVES and start_ns < min(starts)

    def _latest(self, step: int | None) -> _LifeT | None:
        """Return the life of the step that was reported last."""
        lives = [life for (_, of), life in self.lives.items() if of == step]
        return max(lives, key=lambda life: life.time_ns, default=None)

    def _lose_oldest(self, step: int | None) -> None:
        if step is None:
            starts = [start for start, step in self.lives if step is None]
            if len(starts) > _MAX_LIVES:
                del self.lives[min(starts), None]
        elif len(self.lives) > _MAX_LIVES + _MAX_STEPS:
            oldest_life = min((start, step) for start, step in self.lives if step is not None)
            self.lost_step = max(self.lost_step or oldest_life, oldest_life)
            del self.lives[oldest_life]


def _is_older(life: _Life, start_ns: int, time_ns: int, amount: float) -> bool:
    """Return whether a point of a life says nothing that the latest one did not.

    Within a life, which a start names, the larger total is the later one, even if the clock has
    stepped back. Where no start is given, time tells, and a smaller total is a new life.
    """
    if start_ns > 0:
        return amount < life.amount or (amount == life.amount and time_ns <= life.time_ns)
    return time_ns <= life.time_ns


def _since(life: _LifeT, amount: float) -> tuple[_LifeT | None, bool]:
    """A total that has shrunk was counted anew."""
    return None if amount < life.amount else life, True


_CounterLife = tuple[tuple[_Key, ...], int, float]

CounterRecord = tuple[int, tuple[int, int] | None, tuple[_CounterLife, ...]]
"""What ``CounterStream.to_tuple`` gives."""


@dataclass(slots=True)
class CounterStream(_Lives[_Life]):
    """One monotonic sum series, one point after the other."""

    @classmethod
    def counted(cls, point: SumPoint) -> "CounterStream":
        """Make the stream of a series whose totals are in already, as far as ``point`` knows."""
        stream = cls()
        stream.note(point.start_ns, point.step, _Life(point.time_ns, point.value))
        return stream

    def advance(self, point: SumPoint) -> Increment | None:
        """Take the next point.

        Args:
            point: Of this series.

        Returns:
            The increment; None for a point that says nothing new: one that is older than the last
            of its life (a cumulative point is superseded by a later one), of a life so long ago
            that nobody knows whether it was counted, or the first of a stream whose start nobody
            knows, which has none or one at its own time.
        """
        if point.temporality is Temporality.DELTA:
            return Increment(point.value, _seconds(point.start_ns, point.time_ns))
        start_ns, time_ns, value, step = point.start_ns, point.time_ns, point.value, point.step
        before = self.before(start_ns, time_ns, value, step)
        if before is None:
            return None
        life, counts = before
        since_ns = max(self.time_ns, start_ns if life is None else life.time_ns)
        increment = None
        if counts:
            grown = value if life is None else value - life.amount
            increment = Increment(grown, _seconds(since_ns, time_ns))
        if life is None:
            life = _Life(time_ns, value)
        else:
            life.amount, life.time_ns = value, max(time_ns, life.time_ns)
        self.note(start_ns, step, life)
        return increment

    def to_tuple(self) -> CounterRecord:
        """The state in the form that is quickest to pickle."""
        lives = [(tuple(keys), life.time_ns, life.amount) for keys, life in _with_keys(self.lives)]
        return self.time_ns, self.lost_step, tuple(lives)

    @classmethod
    def from_tuple(cls, record: CounterRecord) -> "CounterStream":
        """The opposite of ``to_tuple``."""
        time_ns, lost_step, lives = record
        stream = cls(time_ns, {}, lost_step)
        for keys, life_time_ns, amount in lives:
            life = _Life(life_time_ns, amount)
            stream.lives.update(dict.fromkeys(keys, life))
        return stream


@dataclass(slots=True)
class HistogramStream(_Lives[_HistogramLife]):
    """One histogram series, one point after the other."""

    @classmethod
    def counted(cls, point: HistogramPoint) -> "HistogramStream":
        """Make the stream of a series whose totals are in already, as far as ``point`` knows."""
        stream = cls()
        stream.note(point.start_ns, point.step, _histogram_life(point))
        return stream

    def advance(self, point: HistogramPoint) -> HistogramPoint | None:
        """Take the next point.

        Args:
            point: Of this series.

        Returns:
            The point with only what is new since the one before, as a delta; None if nothing is.
            The extremes of a cumulative point are of its whole life. They are those of what is new
            only if they have changed, or if the point is the first of its life; else they are
            bounds of it.
        """
        if point.temporality is Temporality.DELTA:
            return point if point.count else None
        before = self.before(point.start_ns, point.time_ns, point.count, point.step)
        if before is None:
            return None
        life, counts = before
        since_ns = max(self.time_ns, point.start_ns if life is None else life.time_ns)
        new: HistogramPoint | None = None
        if counts:
            new = _all_of(point, since_ns) if life is None else _difference(life, point, since_ns)
        if life is None:
            life = _histogram_life(point)
        else:
            # The same object, because a life may be known by several starts.
            life.time_ns = max(life.time_ns, point.time_ns)
            life.amount, life.total = point.count, point.total
            life.minimum, life.maximum = point.minimum, point.maximum
            life.buckets = {(lower, upper): n for lower, upper, n in point.buckets}
        self.note(point.start_ns, point.step, life)
        return new if new is not None and new.count else None


def _with_keys(lives: dict[_Key, _Life]) -> list[tuple[list[_Key], _Life]]:
    """Each life once, with all its keys."""
    found: dict[int, tuple[list[_Key], _Life]] = {}
    for key, life in lives.items():
        found.setdefault(id(life), ([], life))[0].append(key)
    return list(found.values())


def _histogram_life(point: HistogramPoint) -> _HistogramLife:
    return _HistogramLife(
        point.time_ns,
        point.count,
        point.total,
        point.minimum,
        point.maximum,
        {(lower, upper): n for lower, upper, n in point.buckets},
    )


def _all_of(point: HistogramPoint, since_ns: int) -> HistogramPoint:
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


def _difference(life: _HistogramLife, point: HistogramPoint, since_ns: int) -> HistogramPoint:
    before = _rebucketed(life.buckets, point.buckets)
    buckets = tuple(
        (lower, upper, n - old)
        for (lower, upper, n), old in zip(point.buckets, before, strict=True)
        if n > old
    )
    total = None
    # Once NaN was measured, every later sum of the life is NaN: what is new is not known.
    if point.total is not None and life.total is not None and math.isfinite(life.total):
        total = point.total - life.total
    return HistogramPoint(
        series=point.series,
        start_ns=since_ns,
        time_ns=point.time_ns,
        temporality=Temporality.DELTA,
        count=int(point.count - life.amount),
        total=total,
        minimum=_if_beyond(point.minimum, life.minimum),
        maximum=_if_beyond(point.maximum, life.maximum),
        buckets=buckets,
        bounds=(point.minimum, point.maximum),
    )


def _if_beyond(extreme: float | None, before: float | None) -> float | None:
    """An extreme of a whole life is that of the latest interval if it has moved in it."""
    return None if before is None or extreme == before else extreme


def _rebucketed(
    old: dict[tuple[float, float], int], buckets: tuple[tuple[float, float, int], ...]
) -> list[int]:
    """The counts of the point before, in the buckets of this one.

    An exponential histogram halves its resolution when its range grows, so an old bucket may lie
    inside a wider new one. It is found by its middle, because the bounds of the two scales are
    computed differently and may differ in the last bit.
    """
    uppers = [upper for _, upper, _ in buckets]
    counts = [0] * len(buckets)
    for (lower, upper), number in old.items():
        middle = lower + (upper - lower) / 2 if math.isfinite(upper - lower) else upper
        place = bisect.bisect_left(uppers, middle)
        if place < len(counts):
            counts[place] += number
    return counts


def _seconds(start_ns: int, end_ns: int) -> float:
    return max(end_ns - start_ns, 0) / _NS_PER_S if start_ns else 0.0
