"""Accepted values of a run in columns, for the run's archive."""

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from otel_rl.bridge.journal.state import (
    Count,
    Floats,
    Integers,
    Number,
    Stored,
    encode,
)
from otel_rl.records import (
    HistogramPoint,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument

_NONE: Final = -(1 << 63)
_LARGEST: Final = (1 << 63) - 1

_PART_VALUES: Final = 16_384
"""Values of a part: some hundred kilobytes."""

_MAX_KNOWN: Final = 100_000
"""Streams whose worker and metric are remembered, each in some 200 bytes."""

_MEASURED: Final = 0
_KINDS: Final = {Temporality.CUMULATIVE: 1, Temporality.DELTA: 2}
_SHARE: Final = 3


class ArchivedWorker(
    msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False
):
    """The process that reports a series."""

    role: str
    instance: str
    index: int | None


class ArchivedMetric(
    msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False
):
    """What a series is of, beside its worker."""

    name: str
    unit: str
    attributes: tuple[tuple[str, str], ...]
    instrument: Instrument
    data: str
    scope: str


_METRIC: Final = attrgetter("name", "unit", "attributes", "instrument", "data", "scope")
"""What a metric is, of one of its series."""


class ArchivedDetail(Stored, gc=False):
    """Further values of a histogram or summary; ``place`` has a column for its time and step."""

    place: Count
    count: Count
    total: Number | None
    minimum: Number | None
    maximum: Number | None
    buckets: Sequence[tuple[Number, Number, Count]]
    quantiles: Sequence[tuple[Number, Number]]


class ArchivedPart(Stored, gc=False):
    """Accepted values of a run, in columns.

    ``workers`` and ``metrics`` say by whom and of what the values are, each under a number of this
    part. The columns have an element for each value: its worker, its metric, the start of the
    counted interval, and the kind: 0 for a measurement, 1 for a cumulative point, 2 for a delta, 3
    for a share of a step; its time, its step, and itself. The lowest integer stands for no start
    and no step.
    """

    workers: dict[Count, ArchivedWorker]
    metrics: dict[Count, ArchivedMetric]
    of_workers: Integers
    of_metrics: Integers
    starts_ns: Integers
    kinds: bytes
    times_ns: Integers
    steps: Integers
    values: Floats
    details: Sequence[ArchivedDetail]


class ArchivedPoints:
    """Accepted values since the last commit. One thread uses the object."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, bytes]] = []
        # Numbers of workers and of metrics, and both of each stream.
        self._workers: dict[Worker, int] = {}
        self._metrics: dict[tuple[Any, ...], int] = {}
        self._known: dict[int, tuple[int, int]] = {}
        self._begin()

    def _begin(self) -> None:
        if len(self._known) > _MAX_KNOWN:
            self._workers, self._metrics, self._known = {}, {}, {}
        self._of_workers, self._of_metrics = array("q"), array("q")
        self._starts_ns, self._kinds = array("q"), bytearray()
        self._times_ns, self._steps, self._values = array("q"), array("q"), array("d")
        self._details: list[ArchivedDetail] = []

    def measured(
        self,
        numbers: Sequence[int],
        series: Sequence[Series],
        times_ns: Sequence[int],
        values: Sequence[float],
        steps: Sequence[int | None],
    ) -> None:
        """Add measurements of gauges, given in columns, with the numbers of their streams."""
        if len(self._values) >= _PART_VALUES:
            self._end_part()
        known, n = self._known, len(numbers)
        if not known.keys() >= {*numbers}:
            for number, one in zip(numbers, series, strict=True):
                self._numbers(number, one)
        of_workers, of_metrics = zip(*[known[number] for number in numbers], strict=True)
        self._of_workers.extend(of_workers)
        self._of_metrics.extend(of_metrics)
        self._starts_ns.extend([_NONE] * n)
        self._kinds.extend(bytes([_MEASURED]) * n)
        self._times_ns.extend(times_ns)
        self._steps.extend([_NONE if step is None else step for step in steps])
        self._values.extend(values)

    def counted(self, number: int, point: SumPoint) -> None:
        kind = _SHARE if point.is_share else _KINDS[point.temporality]
        self._add(number, point.series, point.start_ns, kind, point.time_ns, point.step)
        self._values.append(point.value)

    def distributed(self, number: int, point: HistogramPoint) -> None:
        kind = _SHARE if point.is_share else _KINDS[point.temporality]
        self._add(number, point.series, point.start_ns, kind, point.time_ns, point.step)
        self._details.append(
            ArchivedDetail(
                len(self._values),
                point.count,
                point.total,
                point.minimum,
                point.maximum,
                [*point.buckets],
                (),
            )
        )
        self._values.append(0.0)

    def summarized(self, number: int, point: SummaryPoint) -> None:
        cumulative = _KINDS[Temporality.CUMULATIVE]
        self._add(number, point.series, point.start_ns, cumulative, point.time_ns, point.step)
        self._details.append(
            ArchivedDetail(
                len(self._values), point.count, point.total, None, None, (), point.quantiles
            )
        )
        self._values.append(0.0)

    def take(self) -> Sequence[tuple[int, bytes]]:
        """Return the values since the last call in parts: number of values and encoding of each."""
        if self._values:
            self._end_part()
        parts, self._parts = self._parts, []
        return parts

    def _add(
        self,
        number: int,
        series: Series,
        start_ns: int,
        kind: int,
        time_ns: int,
        step: int | None,
    ) -> None:
        if len(self._values) >= _PART_VALUES:
            self._end_part()
        of_worker, of_metric = self._numbers(number, series)
        self._of_workers.append(of_worker)
        self._of_metrics.append(of_metric)
        # A start is not checked at the door, unlike a time.
        self._starts_ns.append(min(start_ns, _LARGEST) or _NONE)
        self._kinds.append(kind)
        self._times_ns.append(time_ns)
        self._steps.append(_NONE if step is None else step)

    def _numbers(self, number: int, series: Series) -> tuple[int, int]:
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = (
                self._workers.setdefault(series.worker, len(self._workers)),
                self._metrics.setdefault(_METRIC(series), len(self._metrics)),
            )
        return known

    def _end_part(self) -> None:
        workers, metrics = [*self._workers], [*self._metrics]
        part = ArchivedPart(
            {
                number: ArchivedWorker(one.role, one.instance, one.index)
                for number, one in [(number, workers[number]) for number in {*self._of_workers}]
            },
            {number: ArchivedMetric(*metrics[number]) for number in {*self._of_metrics}},
            self._of_workers,
            self._of_metrics,
            self._starts_ns,
            bytes(self._kinds),
            self._times_ns,
            self._steps,
            self._values,
            self._details,
        )
        self._parts.append((len(self._values), encode(part)))
        self._begin()
