"""What a diagnosis and an archive read of a run: who measured what, and when."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import field

from otel_rl.bridge.journal.state import (
    Count,
    Floats,
    Int64,
    Integers,
    Number,
    Stored,
    encode,
    prepared,
)
from otel_rl.bridge.rows.series.streams import Stream, WorkerStanding, WorkerState
from otel_rl.bridge.rows.spans import SpanSteps
from otel_rl.diagnose.history.records import (
    ALL_RECORDED,
    MOST_EXTREME,
    Facts,
    RowFacts,
    SpanFacts,
    StepFacts,
    WorkerFields,
)
from otel_rl.records import (
    ExperimentStatus,
    HistogramPoint,
    Measurements,
    Series,
    SpanRecord,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
    WorkerFailure,
)
from otel_rl.semconv.spec import TOOL_SPAN, Instrument

__all__ = [
    "MAX_KEYS",
    "ArchivedDetail",
    "ArchivedPart",
    "ArchivedPoints",
    "ArchivedSeries",
    "HistoryRecords",
    "HistoryWriter",
    "KeptHistory",
    "MeasuredCells",
]

MAX_KEYS: Final = 4_096
"""Tracker keys of one record."""

# Steps of one worker in one message that are recorded separately.
_MAX_STEPS: Final = 8

# Measurements between two records that are separated by step.
_MAX_CELLS: Final = 4_096

_Place = tuple[WorkerState, int | None]
_Fields = tuple[str, int | None, int, float, int]  # of ``WorkerFacts``


class MeasuredCells:
    """Measurements of each worker in a step, by tracker key: number, sum and odd values."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[_Place, list[float]]] = {}
        self._n_cells = 0
        # By keys and step: exports of workers, with a value of each key, that stand in no cell.
        self._exports: dict[
            tuple[tuple[str, ...], int | None], tuple[list[WorkerState], list[Sequence[float]]]
        ] = {}
        self._exported: set[_Place] = set()

    def __bool__(self) -> bool:
        return bool(self._cells or self._exports)

    def add(
        self, stream: Stream, values: Sequence[float], steps: Sequence[int | None] = ()
    ) -> None:
        """Record measurements or counts of a worker.

        Args:
            stream: Of the worker.
            values: At least one.
            steps: Of each value; empty without steps.
        """
        of = self._cells.get(stream.group.key)
        if of is None:
            if len(self._cells) >= MAX_KEYS:
                return
            of = self._cells[stream.group.key] = {}
        worker, before = stream.worker, len(of)
        if steps and len(steps) <= _MAX_STEPS and self._n_cells < _MAX_CELLS:
            for value, step in zip(values, steps, strict=True):
                cell = of.get((worker, step))
                if cell is None:
                    cell = of[worker, step] = [0, 0.0, 0]
                if value - value == 0:  # finite
                    cell[0] += 1
                    cell[1] += value
                else:
                    cell[2] += 1
        else:  # too many to separate, or without a step
            place = worker, steps[-1] if steps else None
            cell = of.get(place)
            if cell is None:
                cell = of[place] = [0, 0.0, 0]
            _put(cell, values)
        self._n_cells += len(of) - before

    def add_export(
        self, keys: tuple[str, ...], worker: WorkerState, step: int | None, values: Sequence[float]
    ) -> None:
        """Record a measurement of each of a worker's keys in a step, as ``add`` does.

        Without a step, too.
        """
        place = worker, step
        if place in self._exported:
            self._put_export(keys, place, values)
            return
        self._exported.add(place)
        workers, rows = self._exports.setdefault((keys, step), ([], []))
        workers.append(worker)
        rows.append(values)
        self._n_cells += len(keys)

    def fields(self) -> WorkerFields:
        """Return the fields of the facts of a record. Exports whose keys have cells get cells."""
        names, found = _Names(), dict[str, list[_Fields]]()
        of_step: dict[int | None, set[str]] = {}
        for (keys, step), (workers, rows) in self._exports.items():
            columns = [*zip(*rows, strict=True)]
            before = of_step.setdefault(step, set())
            is_once = len({*keys}) == len(keys) and self._cells.keys().isdisjoint(keys)
            # Of many workers, those with other keys, too, the outstanding ones are recorded.
            is_once = is_once and before.isdisjoint(keys)
            if is_once and all(map(math.isfinite, map(sum, columns))):
                before.update(keys)
                labels = [names[worker] for worker in workers]
                for key, column in zip(keys, columns, strict=True):
                    if key in found or len(found) + len(self._cells) < MAX_KEYS:
                        found.setdefault(key, []).extend(_of_column(labels, step, column))
            else:
                for worker, values in zip(workers, rows, strict=True):
                    self._put_export(keys, (worker, step), values)
        for key, cells in self._cells.items():
            if key in found or len(found) < MAX_KEYS:
                found.setdefault(key, []).extend(_of_cells(cells, names))
        return WorkerFields(found)

    def _put_export(self, keys: tuple[str, ...], place: _Place, values: Sequence[float]) -> None:
        for key, value in zip(keys, values, strict=True):
            of = self._cells.get(key)
            if of is None:
                if len(self._cells) >= MAX_KEYS:
                    continue
                of = self._cells[key] = {}
            cell = of.get(place)
            if cell is None:
                cell = of[place] = [0, 0.0, 0]
                self._n_cells += 1
            if value - value == 0:  # finite
                cell[0] += 1
                cell[1] += value
            else:
                cell[2] += 1


class _Names(dict[WorkerState, str]):
    """Names of workers, each made once."""

    def __missing__(self, of: WorkerState) -> str:
        name = self[of] = f"{of.role}/{of.label}"
        return name


def _put(cell: list[float], values: Sequence[float]) -> None:
    total = sum(values)
    if math.isfinite(total):
        cell[0] += len(values)
        cell[1] += total
        return
    finite = [value for value in values if math.isfinite(value)]
    cell[0] += len(finite)
    cell[1] += sum(finite)
    cell[2] += len(values) - len(finite)


def _of_column(
    labels: Sequence[str], step: int | None, values: Sequence[float]
) -> Iterator[_Fields]:
    """Return the fields of one finite measurement by each of some workers, in one step.

    Of many, as ``_outstanding`` does.
    """
    if len(values) > ALL_RECORDED:
        order = sorted(range(len(values)), key=values.__getitem__)
        order = order[: MOST_EXTREME // 2] + order[-MOST_EXTREME // 2 :]
        labels, values = [labels[n] for n in order], [values[n] for n in order]
    totals = [0.0 + value for value in values]  # as in a cell
    return zip(labels, repeat(step), repeat(1), totals, repeat(0))


def _of_cells(cells: Mapping[_Place, Sequence[float]], names: _Names) -> Iterator[_Fields]:
    for (of, step), (count, total, oddities) in _recorded(cells):
        yield names[of], step, int(count), total, int(oddities)


def _recorded(
    cells: Mapping[_Place, Sequence[float]],
) -> Iterable[tuple[_Place, Sequence[float]]]:
    """Return the cells to record, by step."""
    if len({step for _, step in cells}) == 1:  # nearly always
        return _outstanding([*cells.items()])
    of_step: dict[int | None, list[tuple[_Place, Sequence[float]]]] = {}
    for cell in cells.items():
        of_step.setdefault(cell[0][1], []).append(cell)
    return chain.from_iterable(map(_outstanding, of_step.values()))


def _outstanding(
    cells: list[tuple[_Place, Sequence[float]]],
) -> list[tuple[_Place, Sequence[float]]]:
    """Return the cells with the lowest and the highest means, where there are many.

    Before they are made into facts: of 512 workers with 40 keys, that is most of the work.
    """
    if len(cells) <= ALL_RECORDED:
        return cells
    cells.sort(key=_oddities_and_mean)
    return cells[: MOST_EXTREME // 2] + cells[-MOST_EXTREME // 2 :]


def _oddities_and_mean(cell: tuple[_Place, Sequence[float]]) -> tuple[float, float]:
    _, (count, total, oddities) = cell
    return oddities, total / (count or 1)


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
        """Add measurements.

        Args:
            number: Of the stream.
            measured: Of it.
        """
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
        """Add a measurement of each of some streams, as ``measured`` does.

        Args:
            numbers: Numbers of the streams.
            series: Series of the streams.
            times_ns: Time of each measurement.
            values: The measurements.
            steps: Step of each.
        """
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
        """Add a point of a counter."""
        kind = _SHARE if point.is_share else _KINDS[point.temporality]
        self._add(number, point.series, point.start_ns, kind, point.time_ns, point.step)
        self._values.append(point.value)

    def distributed(self, number: int, point: HistogramPoint) -> None:
        """Add a point of a histogram."""
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
        """Add a point of a summary."""
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


_NS_PER_S: Final = 1_000_000_000
_EVERY_NS: Final = _NS_PER_S
_AHEAD_NS: Final = 1_500_000_000  # a clock that is ahead; less is of the way

_MAX_PHASES: Final = 256
_MAX_PARENTS: Final = 10_000

# Number of parts for which the size of stored records is tracked.
_MAX_PARTS: Final = 64


class HistoryRecords(NamedTuple):
    """Records, to be stored beside the state until they are forgotten.

    Attributes:
        newest_ns: Time of their creation.
        body: ``Facts.encode``.
    """

    newest_ns: int
    body: bytes


class KeptHistory(Stored):
    """The history that is stored.

    Attributes:
        parts: Newest time and bytes of its records, some of them together.
        forgotten_ns: No history up to this time, by ``newest_ns``, is needed any more.
    """

    parts: list[tuple[Int64, Count]] = field(default_factory=list)
    forgotten_ns: Int64 = 0


class HistoryWriter:
    """Collects data and returns records. The open record is not stored.

    Args:
        kept: As in the journal; None for a new run.

    Attributes:
        measured: Measurements of the open record.
        kept: What is stored.
    """

    def __init__(self, kept: KeptHistory | None = None) -> None:
        self.kept = kept or KeptHistory()
        self._span_steps = SpanSteps()
        self._begin()
        # Those before a restart were reported.
        self._lost: set[Worker] | None = set() if kept is None else None
        self._reported: tuple[Sequence[WorkerFailure], str] = (), ""
        # Workers whose places are in no record yet, in order.
        self._placed: dict[WorkerState, None] = {}
        self._has_forgotten_places = False

    def _begin(self) -> None:
        self._made_ns = 0
        self.measured = MeasuredCells()
        self._spans: dict[tuple[int, str, str, str], list[float]] = {}
        # Time of nested spans whose parent has not arrived yet; oldest first.
        self._within: dict[tuple[bytes, str], int] = {}
        self._lags: dict[WorkerState, float] = {}
        self._ahead: dict[str, float] = {}  # of spans that end after their arrival
        self._rows: list[RowFacts] = []
        self._steps: list[StepFacts] = []

    @property
    def forgotten_ns(self) -> int:
        """Return the time up to which no history by ``newest_ns`` is needed any more."""
        return self.kept.forgotten_ns

    def spanned(
        self,
        spans: Iterable[SpanRecord],
        step_at: Callable[[int], int | None],
        arrived_ns: int | None = None,
    ) -> None:
        """Record ended spans.

        Args:
            spans: New spans of one message, grouped by scope and not ordered by their ends.
            step_at: Returns the step in progress at a time in ns; None where no metric tells it.
            arrived_ns: When the message came, by the bridge's clock; None compares no clocks.
        """
        # A nested span precedes its parent, also if both end together.
        in_order = sorted(spans, key=lambda span: (span.end_ns, -span.start_ns))
        for span, step in self._span_steps.of(in_order, step_at):
            inside_ns = self._within.pop((span.span_id, span.worker), 0)
            took_ns = span.end_ns - span.start_ns
            if span.parent_id is not None:
                parent = span.parent_id, span.worker
                self._within[parent] = self._within.get(parent, 0) + took_ns
                if len(self._within) > _MAX_PARENTS:
                    del self._within[next(iter(self._within))]
            place = step, span.role, _phase_of(span), span.worker
            cell = self._spans.get(place)
            if cell is None:
                if len(self._spans) >= _MAX_PHASES * MOST_EXTREME:
                    continue
                cell = self._spans[place] = [span.is_wait, 0, 0.0, 0.0, 0]
            own_s = max(0, took_ns - inside_ns) / _NS_PER_S
            cell[1] += 1
            cell[2] += own_s
            cell[3] = max(cell[3], own_s)
            cell[4] += span.failed
            # No span ends after its arrival. One long before may have waited: it proves nothing.
            if arrived_ns is not None and span.end_ns - arrived_ns >= _AHEAD_NS:
                lag_s = (arrived_ns - span.end_ns) / _NS_PER_S
                self._ahead[span.worker] = min(lag_s, self._ahead.get(span.worker, lag_s))

    def exported(self, worker: WorkerState, event_ns: int, received_ns: int) -> None:
        """Record an export, with its time by the worker's clock and by the bridge's."""
        if event_ns:
            lag_s = (received_ns - event_ns) / _NS_PER_S
            self._lags[worker] = min(lag_s, self._lags.get(worker, lag_s))

    def placed(self, worker: WorkerState, host: str, pid: int | None) -> None:
        """Record the host of a worker, and its process id there, as far as an export tells them."""
        before_host, before_pid = worker.place
        place = host or before_host, before_pid if pid is None else pid
        if place != worker.place:
            worker.place = place
            self._placed[worker] = None

    def closed(
        self,
        step: int,
        time_ns: int,
        values: Mapping[str, float],
        attempt: int = 1,
        *,
        replaces: bool = False,
    ) -> None:
        """Record a closed row; whether it replaces others, see ``Row``."""
        kept = {key: value for key, value in values.items() if not key.startswith("workers/")}
        if kept and len(kept) <= MAX_KEYS:
            self._rows.append(RowFacts(step, time_ns, kept, attempt, replaces))

    def explained(self, step: StepFacts) -> None:
        """Record an explained step."""
        self._steps.append(step)

    def take(
        self,
        now_ns: int,
        step: int,
        workers: Mapping[Worker, WorkerState],
        names: Mapping[str, str],
        max_bytes: int,
        *,
        everything: bool,
        failures: Sequence[WorkerFailure] = (),
        status: str = "",
        attempt: int = 1,
    ) -> HistoryRecords | None:
        """Return the records since the last time, if that was a while ago.

        Args:
            now_ns: The bridge's clock.
            step: In progress.
            workers: All known workers.
            names: Their names, by their instance.
            max_bytes: Bound of the stored history; the oldest is forgotten.
            everything: Do not wait.
            failures: The last ones of workers.
            status: Of the run, by its workers.
            attempt: In progress.
        """
        news = [one for one in failures if one not in self._reported[0]]
        has_ended = status not in {"", ExperimentStatus.RUNNING, self._reported[1]}
        returned = self._returned(workers)
        has_news = news or has_ended or returned
        new = self._rows or self._steps or self.measured or self._spans or has_news
        is_time = everything or self._rows or self._steps or now_ns - self._made_ns >= _EVERY_NS
        if not max_bytes:
            self._begin()
            self._placed.clear()
        if not new or not is_time or not max_bytes:
            return None
        now_ns = max(now_ns, self.kept.parts[-1][0] + 1 if self.kept.parts else 0)
        facts = Facts(
            now_ns,
            step,
            self._rows,
            self._steps,
            self.measured.fields(),
            list(_by_phase(self._spans, names)),
            self._late(names),
            *(self._newly_lost(workers), news, status, attempt),
            returned,
            self._take_places(workers.values()),
        )
        self._reported = failures, status
        within = self._within
        self._begin()
        self._made_ns, self._within = now_ns, within
        body = facts.encode()
        self._keep(now_ns, len(body), max_bytes)
        return HistoryRecords(now_ns, body)

    def _take_places(self, known: Iterable[WorkerState]) -> list[tuple[str, str, int | None]]:
        """Return the new places of workers, or those of all if records with some are forgotten."""
        states = known if self._has_forgotten_places else self._placed
        placed = [(f"{of.role}/{of.label}", *of.place) for of in states if any(of.place)]
        self._placed, self._has_forgotten_places = {}, False
        return placed[:MAX_KEYS]

    def _returned(self, workers: Mapping[Worker, WorkerState]) -> list[str]:
        """Return workers that were missed, and report again, of SDKs that report no ends."""
        states = [workers[of] for of in self._lost or () if of in workers]
        return sorted(
            f"{state.role}/{state.label}"
            for state in states
            if state.standing is WorkerStanding.ALIVE and not state.sends_exit_report
        )

    def _late(self, names: Mapping[str, str]) -> list[tuple[str, float]]:
        """Return the lags of workers, or how far spans of theirs end after their arrival."""
        late = {names.get(worker, worker): lag_s for worker, lag_s in self._ahead.items()}
        late |= {f"{of.role}/{of.label}": lag_s for of, lag_s in self._lags.items()}
        return [*late.items()][:MAX_KEYS]

    def _newly_lost(self, workers: Mapping[Worker, WorkerState]) -> list[str]:
        lost = {of for of, state in workers.items() if state.standing is WorkerStanding.FAILED}
        new = set() if self._lost is None else lost - self._lost
        self._lost = lost
        return sorted(f"{workers[of].role}/{workers[of].label}" for of in new)

    def _keep(self, now_ns: int, size: int, max_bytes: int) -> None:
        kept = self.kept.parts
        kept.append((now_ns, size))
        if len(kept) > _MAX_PARTS:
            # The two neighbours with the smallest sum are merged.
            sizes = [one[1] + other[1] for one, other in pairwise(kept)]
            place = sizes.index(min(sizes))
            kept[place + 1] = kept[place + 1][0], sizes[place]
            del kept[place]
        total = sum(size for _, size in kept)
        while total > max_bytes and len(kept) > 1:
            self.kept.forgotten_ns, freed = kept.pop(0)
            self._has_forgotten_places = True
            total -= freed


def _phase_of(span: SpanRecord) -> str:
    """Return the phase of a span for a diagnosis: one for each tool."""
    return span.name if span.name.startswith(TOOL_SPAN) else span.phase or span.name


def _by_phase(
    spans: Mapping[tuple[int, str, str, str], Sequence[float]], names: Mapping[str, str]
) -> Iterable[SpanFacts]:
    of_phase: dict[tuple[int, str, str], list[SpanFacts]] = {}
    for place, (is_wait, count, total_s, longest_s, failed) in spans.items():
        step, role, phase, worker = place
        name = names.get(worker, worker)
        facts = SpanFacts(
            step, role, phase, name, bool(is_wait), int(count), total_s, longest_s, int(failed)
        )
        of_phase.setdefault((step, role, phase), []).append(facts)
    for some in of_phase.values():
        some.sort(key=lambda one: one.total_s / one.spans)
        yield from (
            some
            if len(some) <= ALL_RECORDED
            else (some[: MOST_EXTREME // 2] + some[-MOST_EXTREME // 2 :])
        )
