"""One step of a role: its measurements and counts so far, and the row that it has got.

Counts are the growth of counters and the distributions of histograms, from workers' shares. A
worker's rate is its growth divided by the duration of its own step, from the begin of its first
share to the end of its last. Without a duration there is no rate.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Number, Stored, check_places
from otel_rl.bridge.rows.reduce import Cell, Distribution, merged, put, reduced
from otel_rl.bridge.rows.row_values import miss_ratios
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.records import HistogramPoint, SumPoint

_NS_PER_S = 1_000_000_000


class StepRow(Stored, gc=False):
    """The row that a step has got.

    Attributes:
        expected: Number of workers that were expected in the row.
        attempt: The attempt of the row; None for the attempt at the time of the row.
        late_ns: Arrival of the first sample since the row.
        is_marked: Whether the row says how many workers are in it.
    """

    expected: Count
    attempt: Int64 | None
    time_ns: Int64 = 0
    late_ns: Int64 = 0
    version: Int64 | None = None
    is_marked: bool = False


class StepCounts(Stored, gc=False):
    """Counts of a step so far, by the number of their group and the label of their worker.

    Attributes:
        times_ns: Begin and end of each worker's step.
        distributions: Distributions of the histograms of all workers.
    """

    times_ns: dict[str, tuple[Int64, Int64]] = field(default_factory=dict)
    grown: dict[Count, dict[str, Number]] = field(default_factory=dict)
    distributions: dict[Count, Distribution] = field(default_factory=dict)

    def add(self, stream: Stream, point: SumPoint | HistogramPoint) -> None:
        label = stream.worker.label
        self._add_times(label, point.start_ns, point.time_ns)
        for group in (stream.group, stream.own):
            if group is None:
                continue
            if isinstance(point, SumPoint):
                grown = self.grown.setdefault(group.number, {})
                grown[label] = grown.get(label, 0) + point.value
            else:
                self.distributions.setdefault(group.number, Distribution()).add_point(point)

    def _add_times(self, label: str, start_ns: int, time_ns: int) -> None:
        if start_ns:
            begun_ns, ended_ns = self.times_ns.get(label, (start_ns, time_ns))
            self.times_ns[label] = min(begun_ns, start_ns), max(ended_ns, time_ns)

    def join(self, other: "StepCounts") -> None:
        for label, times_ns in other.times_ns.items():
            self._add_times(label, *times_ns)
        for number, of_workers in other.grown.items():
            grown = self.grown.setdefault(number, {})
            for label, value in of_workers.items():
                grown[label] = grown.get(label, 0) + value
        for number, one in other.distributions.items():
            self.distributions.setdefault(number, Distribution()).merge(one)

    def values(self, table: StreamTable) -> Iterator[tuple[str, float]]:
        groups = table.keys.groups
        for number, of_workers in self.grown.items():
            group = groups[number]
            amount = reduced([*of_workers.values()], group.reduction)
            if amount is not None:
                yield f"{group.key}/per_step", amount
            rate = reduced([*self._rates(of_workers)], group.reduction)
            if rate is not None:
                yield f"{group.key}/rate", rate
        for number, distribution in self.distributions.items():
            group = groups[number]
            yield from distribution.values(group.key, group.statistics)
        grown = ((groups[number], sum(of.values())) for number, of in self.grown.items())
        yield from miss_ratios(grown, table)

    def check(self, groups: int) -> None:
        check_places(groups, self.grown, self.distributions)

    def _rates(self, grown: Mapping[str, float]) -> Iterator[float]:
        """Yield the rate of each worker; nothing if one of the rates is unknown."""
        seconds = [self._seconds(label) for label in grown]
        if all(seconds):
            for value, of_step in zip(grown.values(), seconds, strict=True):
                yield value / of_step

    def _seconds(self, label: str) -> float:
        begun_ns, ended_ns = self.times_ns.get(label, (0, 0))
        return max(0, ended_ns - begun_ns) / _NS_PER_S


class OpenStep(Stored):
    """Measurements and counts of one step so far, by the number of their group.

    Attributes:
        received_ns: Arrival of the last sample.
        single: Every measurement that is in no row yet, for groups with per-worker rows.
        workers: Labels of the workers that have reported the step.
        counts: Counts of counters and histograms; None if there are none.
        row: The row that the step has got; the next row replaces it.
        repeated: Number of samples from workers that had gone back before the others.
    """

    time_ns: Int64 = 0
    received_ns: Int64 = 0
    cells: dict[Count, Cell] = field(default_factory=dict)
    single: dict[Count, list[tuple[Int64, Number]]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    counts: StepCounts | None = None
    row: StepRow | None = None
    repeated: Count = 0

    def add(
        self,
        streams: Sequence[Stream],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        *,
        per_worker: bool,
    ) -> None:
        """Fold in one measurement for each of several series of a worker."""
        self._reported(streams[0], max(times_ns), received_ns)
        cells = self.cells
        for stream, value, time_ns in zip(streams, values, times_ns, strict=True):
            group, own = stream.group, stream.own
            put(cells, group.number, value, time_ns, group.reduction)
            if own is None:
                continue
            if per_worker:
                self.single.setdefault(own.number, []).append((time_ns, value))
            else:
                put(cells, own.number, value, time_ns, group.reduction)

    @property
    def singles(self) -> int:
        return sum(map(len, self.single.values()))

    def add_share(self, stream: Stream, point: SumPoint | HistogramPoint, received_ns: int) -> None:
        self._reported(stream, point.time_ns, received_ns)
        if self.counts is None:
            self.counts = StepCounts()
        self.counts.add(stream, point)

    def _reported(self, stream: Stream, time_ns: int, received_ns: int) -> None:
        self.workers.add(stream.worker.label)
        self.time_ns = max(self.time_ns, time_ns)
        self.received_ns = max(self.received_ns, received_ns)

    def join(self, other: "OpenStep") -> None:
        self.time_ns = max(self.time_ns, other.time_ns)
        self.received_ns = max(self.received_ns, other.received_ns)
        self.workers |= other.workers
        cells = self.cells
        for number, cell in other.cells.items():
            own = cells.get(number)
            cells[number] = cell if own is None else merged((own, cell))
        for number, made in other.single.items():
            self.single.setdefault(number, []).extend(made)
        if other.counts is not None:
            if self.counts is None:
                self.counts = StepCounts()
            self.counts.join(other.counts)

    def check(self, groups: int) -> None:
        check_places(groups, self.cells, self.single)
        if self.counts is not None:
            self.counts.check(groups)


Steps = dict[int, OpenStep]
"""Steps by number."""
