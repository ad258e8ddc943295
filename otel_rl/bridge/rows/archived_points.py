"""Accepted values of a run, in columns, as its archive gets them."""

from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from otel_rl.bridge.journal.state import (
    Count,
    Floats,
    Integers,
    Number,
    Stored,
    encode,
    prepared,
)
from otel_rl.records import (
    HistogramPoint,
    Measurements,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
)
from otel_rl.semconv.spec import Instrument

__all__ = ["ArchivedDetail", "ArchivedPart", "ArchivedPoints", "ArchivedSeries"]

_NONE: Final = -(1 << 63)
_LARGEST: Final = (1 << 63) - 1

_PART_VALUES: Final = 16_384
"""Values of a part: some hundred kilobytes."""

_MAX_KNOWN: Final = 20_000
"""Series whose encoding is kept, of some 200 bytes each."""

_MEASURED: Final = 0
_KINDS: Final = {Temporality.CUMULATIVE: 1, Temporality.DELTA: 2}
_SHARE: Final = 3


class ArchivedSeries(
    msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False
):
    """A series with its worker."""

    role: str
    instance: str
    index: int | None
    name: str
    unit: str
    attributes: tuple[tuple[str, str], ...]
    instrument: Instrument
    data: str
    scope: str


class ArchivedDetail(Stored, gc=False):
    """Values of a histogram or summary beside its time and step; ``place`` has a column."""

    place: Count
    count: Count
    total: Number | None
    minimum: Number | None
    maximum: Number | None
    buckets: Sequence[tuple[Number, Number, Count]]
    quantiles: Sequence[tuple[Number, Number]]


class ArchivedPart(Stored, gc=False):
    """Accepted values of a run, in columns.

    The first four have an element for each run of values of one series: its place in ``series``,
    the number of values, the start of the counted interval, and 0 for measurements, 1 for a
    cumulative point, 2 for a delta, 3 for a share of a step. The other three have one for each
    value. The lowest integer stands for no start and no step.
    """

    series: Sequence[ArchivedSeries]
    places: Integers
    lengths: Integers
    starts_ns: Integers
    kinds: bytes
    times_ns: Integers
    steps: Integers
    values: Floats
    details: Sequence[ArchivedDetail]


class ArchivedPoints:
    """Values since the last commit. One thread."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._parts: list[tuple[int, bytes]] = []
        self._begin()

    def _begin(self) -> None:
        # Place of each series in the part, by the number of its stream.
        self._order: dict[int, int] = {}
        self._series: list[Any] = []
        self._places, self._lengths = array("q"), array("q")
        self._starts_ns, self._kinds = array("q"), bytearray()
        self._times_ns, self._steps, self._values = array("q"), array("q"), array("d")
        self._details: list[ArchivedDetail] = []

    def measured(self, number: int, measured: Measurements) -> None:
        times_ns, steps = measured.times_ns, measured.steps
        length = len(times_ns)
        if length == 1:
            step = steps[0]
            self._add(number, measured.series, _NONE, _MEASURED, times_ns[0], step)
            self._values.append(measured.values[0])
            return
        self._run(number, measured.series, length, _NONE, _MEASURED)
        self._times_ns.extend(times_ns)
        self._values.extend(measured.values)
        self._steps.extend([_NONE if step is None else step for step in steps])

    def measured_each(
        self,
        numbers: Sequence[int],
        series: Sequence[Series],
        times_ns: Sequence[int],
        values: Sequence[float],
        steps: Sequence[int | None],
    ) -> None:
        """Add a measurement of each of some streams, as ``measured`` does."""
        if len(self._values) >= _PART_VALUES:
            self._end_part()
        order, known, n = self._order, self._known, len(numbers)
        if not order.keys() >= {*numbers}:
            for number, one in zip(numbers, series, strict=True):
                if number not in order:
                    order[number] = len(self._series)
                    self._series.append(known.get(number) or self._encoded(number, one))
        self._places.extend([order[number] for number in numbers])
        self._lengths.extend([1] * n)
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
        """Return everything since the last call, in parts: number of values and encoding."""
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
        """Add all of one value but the value itself."""
        # A start is not checked at the door, unlike a time.
        self._run(number, series, 1, min(start_ns, _LARGEST) or _NONE, kind)
        self._times_ns.append(time_ns)
        self._steps.append(_NONE if step is None else step)

    def _run(self, number: int, series: Series, length: int, start_ns: int, kind: int) -> None:
        if len(self._values) >= _PART_VALUES:
            self._end_part()
        place = self._order.get(number)
        if place is None:
            place = self._order[number] = len(self._series)
            self._series.append(self._encoded(number, series))
        self._places.append(place)
        self._lengths.append(length)
        self._starts_ns.append(start_ns)
        self._kinds.append(kind)

    def _encoded(self, number: int, series: Series) -> Any:
        known = self._known.get(number)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            worker = series.worker
            known = self._known[number] = prepared(
                ArchivedSeries(
                    worker.role,
                    worker.instance,
                    worker.index,
                    series.name,
                    series.unit,
                    series.attributes,
                    series.instrument,
                    series.data,
                    series.scope,
                )
            )
        return known

    def _end_part(self) -> None:
        part = ArchivedPart(
            self._series,
            self._places,
            self._lengths,
            self._starts_ns,
            bytes(self._kinds),
            self._times_ns,
            self._steps,
            self._values,
            self._details,
        )
        self._parts.append((len(self._values), encode(part)))
        self._begin()
