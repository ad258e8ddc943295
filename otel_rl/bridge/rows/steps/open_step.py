"""One step of a role: its samples and counts so far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Number, Stored, check_places
from otel_rl.bridge.rows.reduce import (
    MAX_VALUES,
    Cell,
    merged,
    put,
)
from otel_rl.bridge.rows.series.streams import Group
from otel_rl.bridge.rows.steps.step_counts import StepCounts

__all__ = ["Export", "OpenStep", "ReachedSteps", "StepRow", "Steps", "keep_each", "put_each"]


class StepRow(Stored, gc=False):
    """The row that a step has had.

    Attributes:
        expected: Number of workers that were expected in it.
        attempt: That it is of; None for the one at its time.
        time_ns: Of the row.
        late_ns: Arrival of the first sample since.
        is_left_out: Whether the bound on rows has left it out of the run.
        version: Policy version of its step.
        is_marked: Whether it says how many workers are in it.
    """

    expected: Count
    attempt: Int64 | None
    time_ns: Int64 = 0
    late_ns: Int64 = 0
    is_left_out: bool = False
    version: Int64 | None = None
    is_marked: bool = False


class OpenStep(Stored, dict=True):
    """Samples of one step so far, by the number of their group.

    Attributes:
        time_ns: The latest of their times.
        received_ns: Arrival of the last.
        cells: Values to be reduced.
        single: Every measurement in no row yet, of the groups with per-worker rows.
        workers: The labels of those that have reported.
        counts: Of counters and histograms, if there are any.
        row: That it has had; the next one replaces it.
        export: The last export with a sample of it. Not stored, an optimisation: the next sample of
            an export sets it again.
    """

    time_ns: Int64 = 0
    received_ns: Int64 = 0
    cells: dict[Count, Cell] = field(default_factory=dict)
    single: dict[Count, list[tuple[Int64, Number]]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    counts: StepCounts | None = None
    row: StepRow | None = None

    def __post_init__(self) -> None:
        self.export: tuple[str, int] | None = None

    def join(self, other: "OpenStep") -> None:
        """Fold in another part of the same step."""
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

    def size(self) -> int:
        """Return the approximate number of its values."""
        single = sum(map(len, self.single.values()))
        return 1 + len(self.cells) + single + (0 if self.counts is None else self.counts.size())

    def check(self, groups: int) -> None:
        """Check what was read from the journal, of a run with so many groups."""
        check_places(groups, self.cells, self.single)
        if self.counts is not None:
            self.counts.check(groups)


Steps = dict[int, OpenStep]
"""Steps by number."""

Export = tuple[str, int]
"""Label of the worker, and the time of arrival."""


@dataclass(frozen=True, slots=True)
class ReachedSteps:
    """The steps of one series of an export. The other series mostly have the same ones.

    It holds until a step is removed.

    Attributes:
        export: That it is of.
        of: Where its steps are.
        steps: Their numbers; one may stand there repeatedly.
        times_ns: Of their samples.
        opened: The step of each.
    """

    export: Export
    of: Steps
    steps: Sequence[int]
    times_ns: Sequence[int]
    opened: Sequence[OpenStep]

    @classmethod
    def of_samples(
        cls, export: Export, of: Steps, steps: Sequence[int], times_ns: Sequence[int]
    ) -> "ReachedSteps":
        """Open the steps that are missing, and note the export and its times at each."""
        opened: list[OpenStep] = []
        label, received_ns = export
        for number, time_ns in zip(steps, times_ns, strict=True):
            step = of.get(number)
            if step is None:
                step = of[number] = OpenStep()
            if step.export is not export:  # once in a step
                step.export = export
                step.workers.add(label)
                step.received_ns = max(received_ns, step.received_ns)
            if step.time_ns < time_ns:
                step.time_ns = time_ns
            opened.append(step)
        return cls(export, of, steps, times_ns, opened)

    def has(self, export: Export, of: Steps, steps: Sequence[int], times_ns: Sequence[int]) -> bool:
        """Return whether these are the samples of another series."""
        return (
            self.export is export
            and self.of is of
            and self.steps == steps
            and self.times_ns == times_ns
        )


# These loops run for every measurement of a run: few calls, local names.


def put_each(
    opened: Iterable[OpenStep], group: Group, values: Sequence[float], times_ns: Sequence[int]
) -> None:
    """Fold a value into a group of each step."""
    number, reduction = group.number, group.reduction
    for step, value, time_ns in zip(opened, values, times_ns, strict=True):
        cells = step.cells
        cell = cells.get(number)
        if type(cell) is list and len(cell) < MAX_VALUES:  # nearly always: ``put``
            cell.append(value)
        else:
            put(cells, number, value, time_ns, reduction)


def keep_each(
    opened: Iterable[OpenStep], number: int, values: Sequence[float], times_ns: Sequence[int]
) -> None:
    """Keep a measurement of a group in each step."""
    for step, made in zip(opened, zip(times_ns, values, strict=True), strict=True):
        single = step.single
        if number in single:
            single[number].append(made)
        else:
            single[number] = [made]
