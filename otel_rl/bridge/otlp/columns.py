"""One pass over a metrics request: bytes become columns, for any sender.

    request ─> resource ─> scope ─> metrics ─> points of a gauge: one row each, of five numbers
                                           └─> all others: one object each

Nothing is learned from earlier messages but identities (``identities.py``). Numbers are checked in
bulk: the receiving side gives rules, and checks each item of a resource by itself if something in
it is new or in doubt. The row stage gets the columns that the receiving side has made; after a
restart, or in a backlog, it makes them from the stored bytes in the same way.

A gauge point is read by its exemplars if they are complete or carry steps, else by its own value
(docs/adr/0000). The step is removed from the attributes of every kind of point. Repeats are
recognised as described in ``Covered``.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, Final, cast, overload

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    DataPointFlags,
    Metric,
    ResourceMetrics,
)

from otel_rl.bridge.otlp.counts_of_steps import step_sums
from otel_rl.bridge.otlp.exemplars import ExemplarColumns, read_exemplars
from otel_rl.bridge.otlp.identities import (
    STEP,
    Identified,
    Identity,
    Scope,
    Sender,
    identified,
    measure,
    serialized,
    split_step,
)
from otel_rl.bridge.otlp.layouts import FIRST_TAGS, Layouts
from otel_rl.bridge.otlp.spread_points import (
    InDoubt,
    PointRules,
    covered,
    spread_points,
    start_of,
    temporality_of,
)
from otel_rl.bridge.otlp.views import NumberView, RawMetrics, exemplars_of
from otel_rl.records import (
    PART,
    Covered,
    Decoded,
    Export,
    HistogramPoint,
    Measurements,
    Point,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument

__all__ = [
    "REPEATED",
    "SIBLING",
    "Columns",
    "InDoubt",
    "JoinedColumns",
    "OtherPoint",
    "PointRules",
    "ResourceReading",
    "decoded_parts",
    "read_resources",
]

REPEATED: Final = -1
"""Stands in ``ends_ns`` for a value that its sender repeats in every export, see ``Measurements``;
``starts_ns`` then has the start that the sender gives."""

SIBLING: Final = -2
"""Stands in ``ends_ns`` for a further measurement of the point of the row before: if one is a
repeat, so is the other."""

# Cost of a resource without points, in values.
_RESOURCE: Final = 4

_NO_VALUE: Final = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

# Tags of a NumberDataPoint: field number << 3 | wire type.
_START, _TIME, _DOUBLE, _INT = 0x11, 0x19, 0x21, 0x31
_EXEMPLAR, _ATTRIBUTE, _FLAGS = 0x2A, 0x3A, 0x40

_LAYOUTS: Final = Layouts(
    {_START: "Q", _TIME: "Q", _DOUBLE: "d", _INT: "q"},
    {_START: "start", _TIME: "time", _DOUBLE: "value", _INT: "value"},
    required=("time",),
    texts=(_EXEMPLAR, _ATTRIBUTE),
    flags=_FLAGS,
)

_LONG_BYTES: Final = 1 << 10
"""A longer point has many exemplars, which are read by column themselves."""


OtherPoint = SumPoint | HistogramPoint | SummaryPoint
"""A point of anything but a gauge."""


class Columns(Sequence[Point]):
    """Points, the gauges in columns. Objects of points are made when they are read.

    All columns have one length: the number of measurements of gauges.

    Attributes:
        series: Identity of each measurement.
        steps: Step of each measurement; None for a time-driven one.
        starts_ns: See ``Covered``; 0 for none.
        ends_ns: See ``Covered``; 0 if a repeat is recognised by its time and step, ``REPEATED``,
            and ``SIBLING``.
        others: All other points, as objects.
    """

    __slots__ = ("ends_ns", "others", "series", "starts_ns", "steps", "times_ns", "values")

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.steps: list[int | None] = []
        self.times_ns: list[int] = []
        self.values: list[float] = []
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []
        self.others: list[OtherPoint] = []

    @classmethod
    def of(cls, points: Iterable[Point]) -> "Columns":
        found = cls()
        for point in points:
            if isinstance(point, Measurements):
                found.add(point)
            else:
                found.others.append(point)
        return found

    def add(self, point: Measurements) -> None:
        """Add the measurements of a point, those of one time and step side by side."""
        rows = [*zip(point.times_ns, point.steps, point.values, strict=True)]
        covers, start_ns, end_ns = point.covers, 0, 0
        if covers is not None:
            start_ns, end_ns = covers
        elif point.told_since_ns is not None:
            start_ns, end_ns = point.told_since_ns, REPEATED
        elif len({row[:2] for row in rows}) < len(rows):
            rows.sort(key=_time_and_step)
        before = None
        for row in rows:
            is_sibling = before is not None and (covers is not None or row[:2] == before[:2])
            self.series.append(point.series)
            self.times_ns.append(row[0])
            self.steps.append(row[1])
            self.values.append(row[2])
            self.starts_ns.append(start_ns)
            self.ends_ns.append(SIBLING if is_sibling else end_ns)
            before = row

    def rows(self) -> Iterator[tuple[Series, int | None, int, float, int, int]]:
        return zip(
            self.series,
            self.steps,
            self.times_ns,
            self.values,
            self.starts_ns,
            self.ends_ns,
            strict=True,
        )

    def part(self, start: int, end: int) -> "Columns":
        n = len(self.series)
        if start <= 0 and end >= self.size:
            return self
        found = Columns()
        for name in ("series", "steps", "times_ns", "values", "starts_ns", "ends_ns"):
            setattr(found, name, getattr(self, name)[start:end])
        found.others = self.others[max(0, start - n) : max(0, end - n)]
        return found

    @property
    def size(self) -> int:
        """Return the number of measurements of gauges and of other points."""
        return len(self.series) + len(self.others)

    def __len__(self) -> int:
        return self.size - self.ends_ns.count(SIBLING)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Point]: ...
    def __getitem__(self, place: int | slice) -> Point | Sequence[Point]:
        return [*self][place]

    def __iter__(self) -> Iterator[Point]:
        made: Measurements | None = None
        for series, step, time_ns, value, start_ns, end_ns in self.rows():
            if made is not None:
                if end_ns == SIBLING:
                    made.times_ns = (*made.times_ns, time_ns)
                    made.values, made.steps = (*made.values, value), (*made.steps, step)
                    continue
                yield made
            covers = Covered(start_ns, end_ns) if end_ns > 0 else None
            since_ns = start_ns if end_ns == REPEATED else None
            made = Measurements(series, (time_ns,), (value,), (step,), covers, since_ns)
        if made is not None:
            yield made
        yield from self.others

    def filled(self, place: int, size: int, most: int) -> tuple[int, int]:
        """Return the end of a part that starts at ``place``, and the part's size in values.

        The part has at least one point.
        """
        n, first = len(self.series), place
        if place < n:
            place = min(n, place + max(1, most - size))
            while place < n and self.ends_ns[place] == SIBLING:
                place += 1
            size += place - first
        while place < self.size and (size < most or place == first):
            size += _size(self.others[place - n])
            place += 1
        return place, size

    def latest_ns(self) -> int:
        others = max((point.time_ns for point in self.others), default=0)
        return max(max(self.times_ns, default=0), others)


class JoinedColumns(Sequence[Point]):
    """Points of several parts of a request, in the order of the parts."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Columns]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Point]: ...
    def __getitem__(self, place: int | slice) -> Point | Sequence[Point]:
        return [*self][place]

    def __iter__(self) -> Iterator[Point]:
        return chain.from_iterable(self.parts)


def _time_and_step(row: tuple[int, int | None, float]) -> tuple[int, bool, int]:
    return row[0], row[1] is None, row[1] or 0


def _size(point: OtherPoint) -> int:
    """Return the work that a point makes, as a number of single values."""
    return 1 + (len(point.buckets.counts) >> 2 if isinstance(point, HistogramPoint) else 0)


_Row = tuple[
    tuple[bytes, ...],
    int | None,
    int,
    int,
    float | None,
    int,
    tuple[bytes, ...],
    tuple[int, float, int | None] | None,
]
"""A number point: its attributes and its step of them, start, time, value, flags and exemplars; and
time, value and step of the exemplar, if it is a gauge with one."""


_Owner = tuple[Scope, str, str]
"""Scope, name and unit of the metric of a point."""


@dataclass(slots=True)
class _Waiting:
    """Points that wait to be read together.

    Attributes:
        gauges: Serialized points of gauges.
        owners: Scope and metric of each gauge point.
        others: Points of other metrics, with their metric and kind.
    """

    n: int = 0
    gauges: list[bytes] = field(default_factory=list)
    owners: list[_Owner] = field(default_factory=list)
    others: list[tuple[_Owner, Metric, str, Sequence[Any]]] = field(default_factory=list)


class ResourceReading:
    """One pass over a resource of a request.

    Args:
        part: Part of a request that was parsed as ``RawMetrics``.
        now_ns: Time for points that have none.
        rules: Rules of the receiving side; None if it has accepted the request already.
        is_checked: Whether each item was checked, so that new identities are sound.

    Attributes:
        beat_ns: The latest time of a gauge point without a value that was read so far; 0 if there
            is none.
        points: Number of points read so far, points without a value included.
    """

    def __init__(
        self,
        part: ResourceMetrics,
        resource: Identified,
        now_ns: int,
        rules: PointRules | None = None,
        *,
        is_checked: bool = False,
    ) -> None:
        self._part = part
        self._resource = resource
        self._now_ns = now_ns
        self._mark = None if rules is None else rules.mark
        self._rules = None if is_checked else rules
        self.sender: Sender = resource.sender
        self.beat_ns = 0
        self.points = 0
        self._kept: Sequence[Columns] | None = None

    def keep(self) -> None:
        """Read all points, and store them in place of the message.

        Raises:
            DecodeError: See ``columns``.
            InDoubt: See ``columns``.
        """
        self._kept = list(self.columns())
        self._part = ResourceMetrics()

    def columns(self) -> Iterator[Columns]:
        """Yield the points as they are read, in parts of about ``PART``.

        The points of a part are in the request's order, except that gauges come first.

        Raises:
            DecodeError: A point, an exemplar or an attribute cannot be parsed.
            InDoubt: Each item must be checked by itself.
        """
        return self._columns() if self._kept is None else iter(self._kept)

    def _columns(self) -> Iterator[Columns]:
        """Read the points (see ``columns``), and account for new identities among them."""
        try:
            yield from self._parts()
        finally:
            measure(self._resource)

    def _parts(self) -> Iterator[Columns]:
        waiting, rules, mark = _Waiting(), self._rules, self._mark
        for of_scope in self._part.scope_metrics:
            scope = self._resource.scope(of_scope.scope.SerializeToString())
            metrics = of_scope.metrics
            if rules is not None and (scope.sound_for is not mark or not metrics):
                raise InDoubt
            if mark is not None:
                scope.sound_for = mark
            for metric in metrics:
                kind = metric.WhichOneof("data")
                points = () if kind is None else getattr(metric, kind).data_points
                n = len(points)
                if kind is None or not n:
                    if rules is not None:
                        raise InDoubt  # of its name
                    continue
                owner = scope, metric.name, metric.unit
                for some in (points,) if n <= PART else _pieces(points):
                    if kind == "gauge":
                        waiting.gauges += some
                        waiting.owners += repeat(owner, len(some)) if n > 1 else (owner,)
                    else:
                        waiting.others.append((owner, metric, kind, some))
                    waiting.n += len(some)
                    if waiting.n >= PART:
                        yield self._read(waiting)
                        waiting = _Waiting()
        if waiting.n:
            yield self._read(waiting)

    def _read(self, waiting: _Waiting) -> Columns:
        self.points += waiting.n
        found = Columns()
        self._gauges(waiting, found)
        of_sums = [points for _, _, kind, points in waiting.others if kind == "sum"]
        sums = self._rows([*chain.from_iterable(of_sums)], has_measurements=False)
        for owner, metric, kind, points in waiting.others:
            if kind == "sum":
                found.others += self._sums(owner, metric, islice(sums, len(points)))
            else:
                find = partial(self._series, *owner)
                made = spread_points(
                    metric, kind, points, find, self.sender, self._now_ns, self._rules
                )
                found.others += made
        return found

    def _identity(
        self,
        scope: Scope,
        name: str,
        unit: str,
        instrument: Instrument,
        data: str,
        attributes: tuple[bytes, ...],
    ) -> Identity:
        found = scope.known.get((name, unit, instrument, data, attributes))
        if found is None:
            found = scope.identity(name, unit, instrument, data, attributes)
        if found.sound_for is not self._mark:
            if self._rules is not None:
                raise InDoubt
            if self._mark is not None:
                found.sound_for = self._mark
        return found

    def _series(
        self,
        scope: Scope,
        name: str,
        unit: str,
        instrument: Instrument,
        data: str,
        attributes: tuple[bytes, ...],
    ) -> Series:
        return self._identity(scope, name, unit, instrument, data, attributes).series

    # For every measurement of a run: no calls.
    def _gauges(self, waiting: _Waiting, found: Columns) -> None:  # one loop
        now_ns, exact = self._now_ns, self.sender.exact
        all_series, steps, times_ns = found.series, found.steps, found.times_ns
        values, starts_ns, ends_ns = found.values, found.starts_ns, found.ends_ns
        rows, mark = self._rows(waiting.gauges, has_measurements=True), self._mark
        gauge = Instrument.GAUGE  # an enumeration finds its member by a call
        for owner, row in zip(waiting.owners, rows, strict=True):
            scope, name, unit = owner
            attributes, step, start_ns, end_ns, sent, flags, exemplars, measured = row
            one = scope.known.get((name, unit, gauge, "", attributes))
            if one is None or one.sound_for is not mark:
                one = self._identity(scope, name, unit, gauge, "", attributes)
            series = one.series
            if flags & _NO_VALUE:
                self.beat_ns = max(self.beat_ns, end_ns)
                continue
            if one.is_level:
                found.others += self._shares(owner, one, row)
                found.others.append(self._sum(one, series, Temporality.CUMULATIVE, row))
                continue
            if measured is not None and (exact or measured[2] is not None):
                time_ns, value, own = measured
                step = step if own is None else own
                if not exact:
                    start_ns = end_ns = 0
                elif start_ns >= end_ns:
                    start_ns = 0
            else:
                if len(exemplars) > 1:
                    several = self._several(series, row)
                    if several is not None:
                        found.add(several)
                        continue
                value = 0.0 if sent is None else sent if one.scale == 1 else sent * one.scale
                time_ns = end_ns
                # A stock SDK keeps a point for every set of attributes, so for every past step.
                if step is not None:
                    since_ns = start_ns if start_ns <= end_ns else 0
                    start_ns, end_ns = (0, 0) if exact else (since_ns, REPEATED)
                elif not exact or start_ns >= end_ns:
                    start_ns = 0
            all_series.append(series)
            steps.append(step)
            times_ns.append(time_ns or now_ns)
            values.append(value)
            starts_ns.append(start_ns)
            ends_ns.append(end_ns)

    def _several(self, series: Series, row: _Row) -> Measurements | None:
        """Return the measurements of a gauge point with several exemplars.

        None if the point's own value counts: other SDKs sample exemplars, and only those with a
        step are worth a row.
        """
        _, step, start_ns, end_ns, _, _, exemplars, _ = row
        times_ns, values, steps = read_exemplars(exemplars)
        covers = None
        if self.sender.exact:
            covers = covered(self.sender, start_ns, end_ns, tiles=True)
        elif None in steps:
            kept = [one for one in zip(times_ns, values, steps, strict=True) if one[2] is not None]
            if not kept:
                return None
            times_ns, values, steps = zip(*kept, strict=True)
        if 0 in times_ns:
            times_ns = [time_ns or self._now_ns for time_ns in times_ns]
        if step is not None:
            steps = [step if own is None else own for own in steps]
        return Measurements(series, times_ns, values, steps, covers)

    def _sums(self, owner: _Owner, metric: Metric, rows: Iterable[_Row]) -> Iterator[SumPoint]:
        instrument = Instrument.COUNTER if metric.sum.is_monotonic else Instrument.UP_DOWN_COUNTER
        temporality = temporality_of(metric.sum.aggregation_temporality)
        data = "delta" if temporality is Temporality.DELTA else ""
        for row in rows:
            one = self._identity(*owner, instrument, data, row[0])
            if row[5] & _NO_VALUE:
                continue
            if row[6]:
                yield from self._shares(owner, one, row)
            yield self._sum(one, one.series, temporality, row)

    def _sum(
        self, identity: Identity, series: Series, temporality: Temporality, row: _Row
    ) -> SumPoint:
        _, step, start_ns, end_ns, sent, *_ = row
        tiles = temporality is Temporality.DELTA and step is None
        value = 0.0 if sent is None else sent
        return SumPoint(
            series=series,
            start_ns=start_of(self.sender, start_ns),
            time_ns=end_ns or self._now_ns,
            value=value if identity.scale == 1 else value * identity.scale,
            temporality=temporality,
            covers=covered(self.sender, start_ns, end_ns, tiles=tiles),
            step=step,
            is_scraped=self.sender.is_scraped,
        )

    def _shares(self, owner: _Owner, identity: Identity, row: _Row) -> Iterator[SumPoint]:
        """Yield the counts of single steps, from the exemplars of a point (ADR 15)."""
        assert identity.series is not None  # asked before
        scope, name, unit = owner
        for of_step in step_sums(row[6]):
            share = scope.share(name, unit, identity.series.instrument, row[0])
            yield SumPoint(
                series=share,
                start_ns=of_step.begun_ns,
                time_ns=of_step.time_ns or self._now_ns,
                value=of_step.value,
                temporality=Temporality.DELTA,
                covers=of_step.covers,
                step=of_step.step,
                is_share=True,
            )

    def _rows(self, points: Sequence[bytes], *, has_measurements: bool) -> Iterator[_Row]:
        alike = [(len(one), one[FIRST_TAGS]) for one in points]
        if len({*alike}) <= 1:
            return iter(self._run(points, has_measurements=has_measurements) if points else ())
        runs: dict[tuple[int, bytes], list[int]] = {}
        for place, key in enumerate(alike):
            runs.setdefault(key, []).append(place)
        rows: list[_Row] = [_NO_ROW] * len(points)
        for places in runs.values():
            read = self._run([points[place] for place in places], has_measurements=has_measurements)
            for place, row in zip(places, read, strict=True):
                rows[place] = row
        return iter(rows)

    def _run(self, run: Sequence[bytes], *, has_measurements: bool) -> Iterable[_Row]:
        """Read number points of one length; there is at least one."""
        found = _LAYOUTS.read(run) if len(run[0]) <= _LONG_BYTES else None
        if found is None:
            return [self._by_message(one, has_measurements=has_measurements) for one in run]
        places, columns, n = found.layout.places, found.columns, len(run)
        attributes: Sequence[tuple[bytes, ...]] = [()] * n
        steps: Sequence[int | None] = [None] * n
        if _ATTRIBUTE in places:
            of_points = [cast("tuple[bytes, ...]", columns[at]) for at in places[_ATTRIBUTE]]
            attributes = list(zip(*of_points, strict=True))
            if any(STEP in b"".join(column) for column in of_points):
                self._check(sum(map(len, attributes[0])) <= self._short_bytes)
                split = {one: split_step(one) for one in {*attributes}}
                attributes, steps = zip(*[split[one] for one in attributes], strict=True)
        exemplars: Sequence[tuple[bytes, ...]] = [()] * n
        measured: Iterable[tuple[int, float, int | None] | None] = repeat(None)
        if _EXEMPLAR in places:
            of_points = [cast("tuple[bytes, ...]", columns[at]) for at in places[_EXEMPLAR]]
            exemplars = list(zip(*of_points, strict=True))
            read = [
                self._exemplars(column, has_measurements=has_measurements) for column in of_points
            ]
            if len(read) == 1 and read[0] is not None:
                measured = zip(*read[0], strict=True)
            self._check_number(len(read))
        (time,) = places[_TIME]
        times_ns = cast("tuple[int, ...]", columns[time])
        (start,) = places.get(_START, (None,))
        (value,) = places.get(_DOUBLE) or places.get(_INT) or (None,)
        flags = found.layout.flags
        if self._rules is not None:
            self._check(value is not None or flags & _NO_VALUE != 0)
            self._check(self._rules.earliest_ns <= min(times_ns))
            self._check(max(times_ns) <= self._rules.latest_ns)
        return zip(
            attributes,
            steps,
            [0] * n if start is None else cast("tuple[int, ...]", columns[start]),
            times_ns,
            [None] * n if value is None else cast("tuple[float, ...]", columns[value]),
            repeat(flags),
            exemplars,
            measured,
        )

    def _by_message(self, serialized_point: bytes, *, has_measurements: bool) -> _Row:
        point = NumberView.FromString(serialized_point)
        attributes, step = tuple(serialized(point.attributes)), None
        if any(STEP in one for one in attributes):
            self._check(sum(map(len, attributes)) <= self._short_bytes)
            attributes, step = split_step(attributes)
        exemplars = tuple(exemplars_of(point))
        measured = None
        if exemplars:
            read = self._exemplars(exemplars, has_measurements=has_measurements)
            if len(exemplars) == 1 and read is not None:
                ((measured),) = zip(*read, strict=True)
            self._check_number(len(exemplars))
        which = point.WhichOneof("value")
        # Integers stay integers, so that sums of them are exact.
        value = None if which is None else getattr(point, which)
        if self._rules is not None:
            self._check(value is not None or point.flags & _NO_VALUE != 0)
            self._check(self._rules.earliest_ns <= point.time_unix_nano <= self._rules.latest_ns)
        return (
            attributes,
            step,
            point.start_time_unix_nano,
            point.time_unix_nano,
            value,
            point.flags,
            exemplars,
            measured,
        )

    def _exemplars(
        self, exemplars: Sequence[bytes], *, has_measurements: bool
    ) -> ExemplarColumns | None:
        """Read exemplars if they are measurements, or if they must be checked."""
        if self._rules is None and not has_measurements:
            return None
        read = read_exemplars(exemplars)
        if self._rules is not None:
            self._check(max(map(len, exemplars)) <= self._short_bytes)
            self._check(self._rules.earliest_ns <= min(read.times_ns))
            self._check(max(read.times_ns) <= self._rules.latest_ns)
        return read if has_measurements else None

    def _check_number(self, exemplars: int) -> None:
        self._check(self._rules is None or exemplars <= self._rules.max_exemplars)

    @property
    def _short_bytes(self) -> int:
        return sys.maxsize if self._rules is None else self._rules.short_bytes

    def _check(self, is_sound: bool) -> None:  # noqa: FBT001  # it reads as an assertion
        if self._rules is not None and not is_sound:
            raise InDoubt


_NO_ROW: Final[_Row] = ((), None, 0, 0, None, 0, (), None)


def _pieces(points: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (points[start : start + PART] for start in range(0, len(points), PART))


def read_resources(payload: bytes, now_ns: int) -> Iterator[ResourceReading]:
    for part in RawMetrics.FromString(payload).resource_metrics:
        yield ResourceReading(part, identified(part.resource.SerializeToString()), now_ns)


def decoded_parts(resources: Iterable[ResourceReading], most: int = PART) -> Iterator[Decoded]:
    """Yield the points of resources in parts of about ``most`` values; the cuts never vary.

    Facts about the whole, such as the progress of its workers, are in the last part.

    Raises:
        DecodeError: See ``ResourceReading.columns``.
    """
    points: list[Columns] = []
    exports: dict[Worker, Export] = {}
    size = 0
    for reading in resources:
        sender, latest_ns = reading.sender, None
        for columns in reading.columns():
            if columns and not sender.exact:
                latest_ns = max(latest_ns or 0, columns.latest_ns())
            place = 0
            while place < columns.size:
                end, size = columns.filled(place, size, most)
                points.append(columns.part(place, end))
                place = end
                if size >= most:
                    yield Decoded(JoinedColumns(points), (), has_more=True)
                    points, size = [], 0
        sent_ns = reading.beat_ns if latest_ns is None else latest_ns
        before_ns = exports[sender.worker].time_ns if sender.worker in exports else 0
        exports[sender.worker] = Export(
            sender.worker,
            max(before_ns, sent_ns),
            sender.exact,
            host=sender.host,
            pid=sender.pid,
        )
        size += _RESOURCE
    yield Decoded(JoinedColumns(points), list(exports.values()))
