"""Counts of one step: growth of counters and distributions of histograms, from workers' shares.

A rate is the growth of a worker by the duration of its own step, from the begin of its first share
to the end of its last. Without a duration there is no rate.
"""

from collections.abc import Iterator, Mapping

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Number, Stored, check_places
from otel_rl.bridge.rows.reduce import Distribution, reduced
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.records import HistogramPoint, SumPoint
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["StepCounts"]

_NS_PER_S = 1_000_000_000


class StepCounts(Stored, gc=False):
    """Counts of a step so far, by the number of their group and the label of their worker.

    Attributes:
        times_ns: Begin and end of each worker's step.
        grown: Growth of the counters.
        distributions: Of all workers.
    """

    times_ns: dict[str, tuple[Int64, Int64]] = field(default_factory=dict)
    grown: dict[Count, dict[str, Number]] = field(default_factory=dict)
    distributions: dict[Count, Distribution] = field(default_factory=dict)

    def add(self, stream: Stream, point: SumPoint | HistogramPoint) -> None:
        """Fold in a share."""
        label = stream.worker.label
        self._add_times(label, point.start_ns, point.time_ns)
        for group in (stream.group, stream.own):
            if group is None:
                continue
            if isinstance(point, SumPoint):
                grown = self.grown.setdefault(group.number, {})
                grown[label] = grown.get(label, 0) + point.value
            else:
                self._distribution(group.number).add_point(point)

    def _add_times(self, label: str, start_ns: int, time_ns: int) -> None:
        if start_ns:
            begun_ns, ended_ns = self.times_ns.get(label, (start_ns, time_ns))
            self.times_ns[label] = min(begun_ns, start_ns), max(ended_ns, time_ns)

    def join(self, other: "StepCounts") -> None:
        """Fold in the counts of another part of the same step."""
        for label, (begun_ns, ended_ns) in other.times_ns.items():
            own_begun_ns, own_ended_ns = self.times_ns.get(label, (begun_ns, ended_ns))
            self.times_ns[label] = min(begun_ns, own_begun_ns), max(ended_ns, own_ended_ns)
        for number, of_workers in other.grown.items():
            grown = self.grown.setdefault(number, {})
            for label, value in of_workers.items():
                grown[label] = grown.get(label, 0) + value
        for number, one in other.distributions.items():
            self._distribution(number).merge(one)

    def size(self) -> int:
        """Return the approximate number of its values."""
        return sum(map(len, self.grown.values())) + len(self.distributions)

    def values(self, role: str, table: StreamTable) -> Iterator[tuple[str, float]]:
        """Yield keys and values of the step's row.

        Args:
            role: Of the step.
            table: Of the groups.
        """
        for number, grown in self.grown.items():
            group = table.keys.groups[number]
            amount = reduced([*grown.values()], group.reduction)
            if amount is not None:
                yield f"{group.key}/per_step", amount
            rate = reduced([*self._rates(grown)], group.reduction)
            if rate is not None:
                yield f"{group.key}/rate", rate
        for number, distribution in self.distributions.items():
            group = table.keys.groups[number]
            yield from distribution.values(group.key, group.statistics)
        yield from self._miss_ratio(role, table)

    def check(self, groups: int) -> None:
        """Check what was read from the journal, of a run with so many groups."""
        check_places(groups, self.grown, self.distributions)

    def _distribution(self, number: int) -> Distribution:
        found = self.distributions.get(number)
        if found is None:
            found = self.distributions[number] = Distribution()
        return found

    def _rates(self, grown: Mapping[str, float]) -> Iterator[float]:
        """Yield the rate of each worker; nothing if one of them is unknown."""
        seconds = [self._seconds(label) for label in grown]
        if all(seconds):
            for value, of_step in zip(grown.values(), seconds, strict=True):
                yield value / of_step

    def _seconds(self, label: str) -> float:
        begun_ns, ended_ns = self.times_ns.get(label, (0, 0))
        return max(0, ended_ns - begun_ns) / _NS_PER_S

    def _miss_ratio(self, role: str, table: StreamTable) -> Iterator[tuple[str, float]]:
        """Yield 1 - hits / queries of the KV cache, of all workers."""
        asked: float = 0
        hits: float = 0
        for number, grown in self.grown.items():
            group = table.keys.groups[number]
            if not group.own and group.name == names.RL_GENERATOR_KV_CACHE_QUERIES:
                asked += sum(grown.values())
            elif not group.own and group.name == names.RL_GENERATOR_KV_CACHE_HITS:
                hits += sum(grown.values())
        if asked > 0:
            name = names.RL_GENERATOR_KV_CACHE_MISS_RATIO
            group = table.keys.group(GroupIdentity(role, name, (), Reduction.MEAN))
            yield group.key, 1 - hits / asked
