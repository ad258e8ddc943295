"""Converts cumulative points to increments, with reset detection. Pure.

A sum or histogram point counts from its start time. The start of a delta point moves with each
point; that of a cumulative point stays until the process restarts. In any order of arrival, the sum
of the increments equals the true count:
https://opentelemetry.io/docs/specs/otel/metrics/data-model/

A *life* is the count since one start. One series may have several lives at a time: a process that
hangs and its replacement under one ``service.instance.id`` report in turns, and the last points of
a life may arrive after the first of the next. So every life has a total of its own.

A start that is missing, or that equals the point's own time, is unknown: a scraping Collector sends
its first scrape like that. Counts before that scrape are not the run's. When another Collector
takes over, its first scrape continues the last reported life, under a second start.

Ruby's SDK moves the start of a cumulative exponential histogram like that of a delta. A start at
the time of the latest point, to the nanosecond, with no smaller total, continues its life.

One case cannot be detected: if the second scrape of a Collector arrives before its first, its start
precedes its time like any other, and the whole total counts.
"""

import bisect
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Generic, NamedTuple, Self, TypeVar

from otel_rl.bridge.journal.state import Int64, Number, Stored
from otel_rl.records import Buckets, HistogramPoint, SumPoint, Temporality

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000

# Lives of a series without steps. Where the process has an id of its own, each life is another
# series, so more than two are rare. Go and Node create no id by default: all replicas of a service
# are then lives of one series.
_MAX_LIVES = 64

# Lives of a series with steps, each of which a stock SDK counts by itself. SDKs keep 2,000 sets of
# attributes and count the rest as one.
_MAX_STEPS = 2048

# The start of an SDK's point is taken as a nanosecond earlier, see ``start_ns`` in ``decode.py``.
_MOVED_NS = 1

# Intervals of deltas in a row that overlap. A process that ends beside its replacement has two.
_OVERLAPS = 3

_Key = tuple[int, Int64 | None]
"""Start and step."""

_Interval = tuple[int, int, tuple[float, ...]]

_NO_INTERVAL: _Interval = (0, 0, ())

# Amounts of one interval that are told apart.
_MAX_AMOUNTS = 64


class Increment(NamedTuple):
    """Count of an interval, with the time that it adds.

    Attributes:
        value: Count since the previous point; 0 without events.
        seconds: Duration that ``value`` covers and no earlier increment covers; 0.0 if unknown.
    """

    value: float
    seconds: float


class _Life(Stored, gc=False):
    """Total of one life.

    Attributes:
        time_ns: Time of the life's latest point.
        amount: The total of a counter, or the number of measurements of a histogram.
    """

    time_ns: Int64
    amount: Number


class _HistogramLife(_Life, gc=False):
    total: Number | None
    minimum: Number | None
    maximum: Number | None
    layout: tuple[tuple[float, float], ...]
    counts: Sequence[int]

    def goes_on(self, point: HistogramPoint) -> None:
        """Update in place to a later point, because a life may be filed under several starts."""
        self.time_ns = max(self.time_ns, point.time_ns)
        self.amount, self.total = point.count, point.total
        self.minimum, self.maximum = point.minimum, point.maximum
        self.layout, self.counts = point.buckets.layout, point.buckets.counts

    def without_empty_buckets(self) -> "_HistogramLife":
        """Return the life as the journal stores it: most buckets of most histograms are empty."""
        return _HistogramLife(
            self.time_ns,
            self.amount,
            self.total,
            self.minimum,
            self.maximum,
            tuple(compress(self.layout, self.counts)),
            [*filter(None, self.counts)],
        )


_LifeT = TypeVar("_LifeT", bound=_Life)

_StoredLives = tuple[Int64, tuple[int, Int64] | None, list[tuple[list[_Key], _LifeT]]]

CounterLives = _StoredLives[_Life]
"""A ``CounterStream`` in the journal: each life once, with all its keys."""

HistogramLives = _StoredLives[_HistogramLife]
"""A ``HistogramStream`` in the journal."""


@dataclass(slots=True)
class _Lives(Generic[_LifeT]):
    """Lives of one cumulative series, or the last interval of a series of deltas.

    Attributes:
        time_ns: Time of the latest point of all lives; 0 before the first.
        lives: Lives by start and step. A life has several starts if several Collectors scraped it.
        lost_step: Start and step of the latest forgotten life with a step; all earlier lives are
            forgotten, too. None if no life is.
        last: Start, end and amounts of the last interval of deltas; not in the journal.
        other: The same of the last delta of the other type, integers or floats: an SDK may have two
            counters of one name; not in the journal.
        repeated: Number of consecutive intervals that have several amounts; not in the journal.
        overlaps: Number of recent deltas that overlap with the one before; not in the journal.
    """

    time_ns: int = 0
    lives: dict[_Key, _LifeT] = field(default_factory=dict)
    lost_step: tuple[int, int] | None = None
    last: _Interval = _NO_INTERVAL
    other: _Interval = _NO_INTERVAL
    repeated: int = 0
    overlaps: int = 0

    def stored(self) -> _StoredLives[_LifeT]:
        return self.time_ns, self.lost_step, _with_keys(self.lives)

    @classmethod
    def restored(cls, kept: _StoredLives[_LifeT]) -> Self:
        time_ns, lost_step, lives = kept
        stream = cls(time_ns, lost_step=lost_step)
        for keys, life in lives:
            stream.lives.update(dict.fromkeys(keys, life))
        return stream

    def before(
        self,
        start_ns: int,
        time_ns: int,
        amount: float,
        step: int | None,
        *,
        may_move: bool = False,
    ) -> tuple[_LifeT | None, bool] | None:
        """Find the life of a point, whose start ``may_move``.

        Returns:
            The life to subtract, None for the first point of a life; and whether the point, or the
            difference, was counted in this run, unlike the first scrape of a Collector. None if the
            point has nothing new, or if its life is forgotten.
        """
        life = self.lives.get((start_ns, step))
        if life is not None:
            if start_ns > 0 and life.time_ns == time_ns and not _is_same(life.amount, amount):
                self.repeated = _OVERLAPS  # one of the two is lost
            return None if _is_older(life, start_ns, time_ns, amount) else _since(life, amount)
        if self._is_lost(start_ns, step):
            return None
        # A clock that was set back puts the time before the start.
        is_known = 0 < start_ns != time_ns
        if is_known and not may_move:
            return None, True
        continued = self._latest(step)
        if is_known:
            return (continued if _is_moved(continued, start_ns, amount) else None), True
        if continued is None or time_ns <= continued.time_ns:
            return None, False
        return _since(continued, amount)

    @property
    def is_shared(self) -> bool:
        """Return whether several processes share the series.

        If so, an older life has points after the newest life, or intervals of deltas overlap: those
        of one process never do, whatever its clock.
        """
        if self.overlaps >= _OVERLAPS:
            return True
        # Those of integers and of floats may be two counters of one process, see ``_start_of``.
        newest: dict[bool, tuple[int, int]] = {}  # start and time
        last_ns: dict[bool, int] = {}
        for (start_ns, step), life in self.lives.items():
            if step is None:
                kind = isinstance(life.amount, int)
                newest[kind] = max(newest.get(kind, (0, 0)), (start_ns, life.time_ns))
                if start_ns > 0:
                    last_ns[kind] = max(last_ns.get(kind, 0), life.time_ns)
        return any(time_ns > newest[kind][1] for kind, time_ns in last_ns.items())

    def note_interval(self, start_ns: int, end_ns: int, amount: float) -> None:
        """Compare the interval of a counted delta with the interval before."""
        if self._other_is_of(amount):
            self.last, self.other = self.other, self.last
        first_ns, last_ns, amounts = self.last
        if (start_ns, end_ns) == (first_ns, last_ns):
            self.repeated += len(amounts) == 1
            self.last = (start_ns, end_ns, (*amounts, amount))
            return
        is_overlapping = 0 < start_ns < last_ns - _MOVED_NS and first_ns + _MOVED_NS < end_ns
        self.overlaps = self.overlaps + 1 if is_overlapping else 0
        self.repeated = self.repeated if len(amounts) > 1 else 0
        self.last = (start_ns, end_ns, (amount,))

    def place_of(self, start_ns: int, end_ns: int, amount: float) -> int | None:
        """Return the place of a delta among those of its interval; None for a repetition.

        A repetition has the same amount. Other deltas come from a second counter of the name, from
        another resource, or from Micrometer's counts between its last export and its end.
        """
        known = [
            one
            for first_ns, last_ns, amounts in (self.last, self.other)
            if (first_ns, last_ns) == (start_ns, end_ns)
            for one in amounts
        ]
        if len(known) >= _MAX_AMOUNTS or any(_is_same(one, amount) for one in known):
            return None
        return len(known)

    @property
    def is_torn(self) -> bool:
        return self.repeated >= _OVERLAPS

    def _told_ns(self, start_ns: int, end_ns: int, amount: float) -> int:
        """Return the end of the latest interval that deltas of the same type have covered."""
        last, other = (
            (self.other, self.last) if self._other_is_of(amount) else (self.last, self.other)
        )
        return end_ns if last[:2] == (start_ns, end_ns) else other[1]

    def _other_is_of(self, amount: float) -> bool:
        """Return whether ``other`` holds the last delta of the same type as ``amount``."""
        amounts = self.last[2]
        return bool(amounts) and isinstance(amounts[0], int) != isinstance(amount, int)

    def note(self, start_ns: int, step: int | None, life: _LifeT) -> None:
        if life.time_ns > self.time_ns:
            self.time_ns = life.time_ns
        self.lives[start_ns, step] = life
        if len(self.lives) > _MAX_LIVES:
            self._lose_oldest(step)

    def _is_lost(self, start_ns: int, step: int | None) -> bool:
        """Return whether a life of this start and step may have been counted and forgotten."""
        if step is not None:
            return self.lost_step is not None and (start_ns, step) <= self.lost_step
        # There is no room for a life that is older than all known ones.
        starts = [start for start, step in self.lives if step is None]
        return start_ns > 0 and len(starts) >= _MAX_LIVES and start_ns < min(starts)

    def _latest(self, step: int | None) -> _LifeT | None:
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
    """Return whether a point of a life is no newer than the life's latest point.

    Within a life with a known start, the larger total is the later one, even if the clock has
    stepped back. Without a start, time decides, and a smaller total is a new life.
    """
    if start_ns > 0:
        return amount < life.amount or (amount == life.amount and time_ns <= life.time_ns)
    return time_ns <= life.time_ns


def _is_moved(life: _Life | None, start_ns: int, amount: float) -> bool:
    """Return whether a start is the time of a life's latest point, and the total continues.

    With a clock of milliseconds another process may start at that very time.
    """
    if life is None or life.time_ns % _NS_PER_MS == 0:
        return False
    return 0 <= life.time_ns - start_ns <= _MOVED_NS and amount >= life.amount


def _is_same(one: float, other: float) -> bool:
    is_alike = isinstance(one, int) == isinstance(other, int)
    return is_alike and (one == other or (math.isnan(one) and math.isnan(other)))


def _is_alike(life: _Life, point: SumPoint) -> bool:
    return isinstance(life.amount, int) == isinstance(point.value, int)


def _is_beside(life: _Life, point: SumPoint) -> bool:
    """Return whether a point of the other number type must belong to another counter.

    It does if its total differs at the same time, or is smaller at a later time.
    """
    if life.time_ns == point.time_ns:
        return point.value != life.amount
    return life.time_ns < point.time_ns and point.value < life.amount


def _since(life: _LifeT, amount: float) -> tuple[_LifeT | None, bool]:
    """Return the life to subtract; None where the total has shrunk and so began again."""
    return None if amount < life.amount else life, True


@dataclass(slots=True)
class CounterStream(_Lives[_Life]):
    """State of one monotonic sum series, updated point by point."""

    @classmethod
    def counted(cls, point: SumPoint) -> "CounterStream":
        """Make the stream of a series whose totals include all counts up to ``point`` already."""
        stream = cls()
        stream.note(point.start_ns, point.step, _Life(point.time_ns, point.value))
        return stream

    def advance(self, point: SumPoint) -> Increment | None:
        """Take the next point.

        Returns:
            The increment; None for a point without news: a point older than the last of its life (a
            later cumulative point supersedes it), a point of a life so old that it may have been
            counted and forgotten, or the first point of a stream with an unknown start, which is
            missing or at the point's own time.
        """
        if point.temporality is Temporality.DELTA:
            # The other counter of the name has told of the same time.
            told_ns = self._told_ns(point.start_ns, point.time_ns, point.value)
            since_ns = max(point.start_ns, told_ns) if point.start_ns else 0
            return Increment(point.value, _seconds(since_ns, point.time_ns))
        time_ns, value, step = point.time_ns, point.value, point.step
        start_ns = self._start_of(point)
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

    def _start_of(self, point: SumPoint) -> int:
        """Return the start under which a point's life is filed.

        A counter of integers and one of floats may have one name, and then the same start and
        times. The second counter's life is filed one nanosecond earlier: so it is never ahead of
        the newest.
        """
        start_ns = point.start_ns
        life = self.lives.get((start_ns, point.step))
        if life is None or start_ns <= 1 or _is_alike(life, point):
            return start_ns
        other = self.lives.get((start_ns - 1, point.step))
        is_second = _is_beside(life, point) if other is None else _is_alike(other, point)
        return start_ns - 1 if is_second else start_ns


@dataclass(slots=True)
class HistogramStream(_Lives[_HistogramLife]):
    """State of one histogram series, updated point by point."""

    @classmethod
    def counted(cls, point: HistogramPoint) -> "HistogramStream":
        """Make the stream of a series whose totals include all counts up to ``point`` already."""
        stream = cls()
        stream.note(point.start_ns, point.step, _histogram_life(point))
        return stream

    def stored(self) -> HistogramLives:
        time_ns, lost_step, lives = _Lives.stored(self)
        return time_ns, lost_step, [(keys, life.without_empty_buckets()) for keys, life in lives]

    def advance(self, point: HistogramPoint) -> HistogramPoint | None:
        """Take the next point.

        Returns:
            The point reduced to what is new since the previous one, as a delta; None if nothing is
            new. The extremes of a cumulative point hold for its whole life. They are the delta's
            extremes only if they have changed, or if the point is the first of its life; otherwise
            they are bounds of the delta.
        """
        if point.temporality is Temporality.DELTA:
            return point if point.count else None
        before = self.before(
            point.start_ns, point.time_ns, point.count, point.step, may_move=bool(point.buckets)
        )
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
            life.goes_on(point)
        self.note(point.start_ns, point.step, life)
        return new if new is not None and new.count else None


def _with_keys(lives: Mapping[_Key, _LifeT]) -> list[tuple[list[_Key], _LifeT]]:
    """Return each life once, with all its keys: points under any of them continue one total."""
    if len(lives) == 1:  # nearly always
        ((key, life),) = lives.items()
        return [([key], life)]
    found: dict[int, tuple[list[_Key], _LifeT]] = {}
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
        point.buckets.layout,
        point.buckets.counts,
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
    total = None
    # After a NaN, every later sum of the life is NaN: the new part is unknown.
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
        buckets=_new_in(point.buckets, life),
        bounds=(point.minimum, point.maximum),
    )


def _if_beyond(extreme: float | None, before: float | None) -> float | None:
    """Return an extreme of a whole life if it has moved in the latest interval, else None."""
    return None if before is None or extreme == before else extreme


def _new_in(buckets: Buckets, life: _HistogramLife) -> Buckets:
    """Return the counts that buckets have gained since the previous point.

    An exponential histogram halves its resolution when its range grows, so an old bucket may lie
    inside a wider new one. The new bucket is found by the old one's middle, because the bounds of
    the two scales are computed differently and may differ in the last bit.
    """
    if life.layout == buckets.layout:  # nearly always
        grown = [*map(operator.sub, buckets.counts, life.counts)]
        if min(grown, default=0) >= 0:
            return Buckets(buckets.layout, grown)
    old = {bounds: n for bounds, n in zip(life.layout, life.counts, strict=True) if n}
    counts = [old.get((lower, upper), 0) for lower, upper, _ in buckets]
    if sum(counts) != sum(old.values()):
        uppers = [upper for _, upper, _ in buckets]
        counts = [0] * len(uppers)
        for (lower, upper), number in old.items():
            middle = lower + (upper - lower) / 2 if math.isfinite(upper - lower) else upper
            place = bisect.bisect_left(uppers, middle)
            if place < len(counts):
                counts[place] += number
    return Buckets.of(
        (lower, upper, max(0, n - before))
        for (lower, upper, n), before in zip(buckets, counts, strict=True)
    )


def _seconds(start_ns: int, end_ns: int) -> float:
    return max(end_ns - start_ns, 0) / _NS_PER_S if start_ns else 0.0
