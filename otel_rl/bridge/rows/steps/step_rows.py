"""Step rows: samples and counts that carry a step, keyed by (role, step).

A step is complete when every live worker of the role has gone past it. The newest step is complete,
too, when every series that reported the previous step has reported it and no sample arrived for
``quiet_s``: a step that takes minutes is not shown minutes late. Otherwise a step is closed when
``allowed_lateness_s`` has passed since its newest sample arrived.

Later samples still make a row of their own at their step: one for all late workers, which waits for
others for ``allowed_lateness_s``. A row with fewer workers than expected contains their number, so
that it is not taken for the whole step.

A loop that goes back to a checkpoint repeats steps, see ``step_passes.py``. Until all of its
workers have gone back, the repeated steps are kept apart. Then they become the open ones, and the
rest of the previous pass is closed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.per_worker_rows import single_rows
from otel_rl.bridge.rows.reduce import (
    MAX_VALUES,
    Cell,
    cells_from_wire,
    cells_to_wire,
    merged,
    put,
    reduced,
    statistic,
)
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerStanding, WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.attempts import Attempts
from otel_rl.bridge.rows.steps.step_axis import is_integral
from otel_rl.bridge.rows.steps.step_counts import StepCounts
from otel_rl.bridge.rows.steps.step_passes import Returned, StepPasses
from otel_rl.bridge.rows.turns.batch_limit import BatchLimit
from otel_rl.records import HistogramPoint, RoleStanding, SumPoint, Worker
from otel_rl.semconv import names
from otel_rl.semconv.names import RlPhaseValues
from otel_rl.semconv.spec import Reduction

__all__ = ["ClosedStep", "OpenStep", "OpenSteps"]

_NS_PER_S = 1_000_000_000

_FIRST_STEP = -(1 << 63)

# Work and transfer phases of an iteration, without waits.
_PIPELINE = frozenset(phase for phase, spec in names.PHASES.items() if spec.pipeline)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """One step of one role, reduced.

    Attributes:
        role: Its role.
        step: Its number.
        time_ns: Latest event time among its samples.
        values: Tracker key to value.
        version: The policy version that was reported with the step, if any.
        late: Number of samples that turned out to be late when it was closed.
        attempt: That it is of; None for the one at its time.
    """

    role: str
    step: int
    time_ns: int
    values: dict[str, float]
    version: int | None
    late: int = 0
    attempt: int | None = None


@dataclass(slots=True)
class OpenStep:
    """Samples of one step so far, by the number of their group.

    Attributes:
        time_ns: The latest of their times.
        received_ns: Arrival of the last.
        cells: Values to be reduced.
        single: Every measurement, of the groups with per-worker rows.
        workers: The labels of those that have reported.
        export: The last export with a sample of it.
        counts: Of counters and histograms, if there are any.
    """

    time_ns: int = 0
    received_ns: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)
    single: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    export: tuple[str, int] | None = None
    counts: StepCounts | None = None

    def join(self, other: "OpenStep") -> None:
        """Fold in another part of the same step."""
        self.time_ns = max(self.time_ns, other.time_ns)
        self.received_ns = max(self.received_ns, other.received_ns)
        self.workers |= other.workers
        for number, cell in other.cells.items():
            own = self.cells.get(number)
            self.cells[number] = cell if own is None else merged((own, cell))
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

    def to_wire(self) -> wire.OpenStep:
        """Return the step for the journal.

        Without ``export``, an optimisation: the next sample of an export sets it again.
        """
        cells = cells_to_wire(self.cells)
        counts = None if self.counts is None else self.counts.to_wire()
        return wire.OpenStep(
            self.time_ns, self.received_ns, cells, self.single, self.workers, counts
        )

    @classmethod
    def from_wire(cls, kept: wire.OpenStep, groups: int) -> "OpenStep":
        """Undo ``to_wire``, with so many groups."""
        wire.check_places(groups, kept.cells, kept.single)
        return cls(
            kept.time_ns,
            kept.received_ns,
            cells_from_wire(kept.cells),
            wire.single(kept.single),
            kept.workers,
            counts=None if kept.counts is None else StepCounts.from_wire(kept.counts, groups),
        )


_Steps = dict[int, OpenStep]

_Part = tuple[_Steps, Sequence[int], Sequence[float], Sequence[int]]


_Export = tuple[str, int]
"""Label of the worker, and the time of arrival."""


@dataclass(frozen=True, slots=True)
class _Reached:
    """The steps of one series of an export. The other series mostly have the same ones.

    It holds until a step is removed.

    Attributes:
        export: That it is of.
        of: Where its steps are.
        steps: Their numbers; one may stand there repeatedly.
        times_ns: Of their samples.
        opened: The step of each.
    """

    export: _Export
    of: _Steps
    steps: Sequence[int]
    times_ns: Sequence[int]
    opened: Sequence[OpenStep]

    @classmethod
    def of_samples(
        cls, export: _Export, of: _Steps, steps: Sequence[int], times_ns: Sequence[int]
    ) -> "_Reached":
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

    def has(
        self, export: _Export, of: _Steps, steps: Sequence[int], times_ns: Sequence[int]
    ) -> bool:
        """Return whether these are the samples of another series."""
        return (
            self.export is export
            and self.of is of
            and self.steps == steps
            and self.times_ns == times_ns
        )


# These loops run for every measurement of a run: few calls, local names.


def _put_each(
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


def _keep_each(
    opened: Iterable[OpenStep], number: int, values: Sequence[float], times_ns: Sequence[int]
) -> None:
    """Keep a measurement of a group in each step."""
    for step, made in zip(opened, zip(times_ns, values, strict=True), strict=True):
        single = step.single
        if number in single:
            single[number].append(made)
        else:
            single[number] = [made]


@dataclass(slots=True)
class _Role:
    """Open steps of a role.

    Attributes:
        open: Steps of the present pass, without a row.
        closed_through: Steps through this one have rows.
        late: Steps with a row and later samples.
        again: Steps of the workers that have gone back, as long as others may follow.
        again_closed_through: Of those, the last that has a row.
        again_samples: Number of samples in ``again``.
        passes: Workers that have gone back.
        size: The most workers that were in a row.
        export: The last export: its worker and time.
        reached: The steps of its last series.
    """

    open: _Steps = field(default_factory=dict)
    closed_through: int | None = None
    late: _Steps = field(default_factory=dict)
    again: _Steps = field(default_factory=dict)
    again_closed_through: int | None = None
    again_samples: Counter[int] = field(default_factory=Counter)
    passes: StepPasses = field(default_factory=StepPasses)
    size: int = 0
    export: _Export | None = None
    reached: _Reached | None = None

    @property
    def is_open(self) -> bool:
        return bool(self.open or self.late or self.again)

    def to_wire(self) -> wire.StepsOfRole:
        """Return the steps for the journal."""
        return wire.StepsOfRole(
            _to_wire(self.open),
            self.closed_through,
            _to_wire(self.late),
            _to_wire(self.again),
            self.again_closed_through,
            self.again_samples,
            self.passes.to_wire(),
            self.size,
        )

    @classmethod
    def from_wire(cls, kept: wire.StepsOfRole, groups: int) -> "_Role":
        """Undo ``to_wire``, with so many groups."""
        return cls(
            _from_wire(kept.open, groups),
            kept.closed_through,
            _from_wire(kept.late, groups),
            _from_wire(kept.again, groups),
            kept.again_closed_through,
            Counter(kept.again_samples),
            StepPasses.from_wire(kept.passes),
            kept.size,
        )


def _to_wire(steps: _Steps) -> dict[int, wire.OpenStep]:
    return {number: step.to_wire() for number, step in steps.items()}


def _from_wire(kept: Mapping[int, wire.OpenStep], groups: int) -> _Steps:
    return {number: OpenStep.from_wire(step, groups) for number, step in kept.items()}


class OpenSteps:
    """Steps of one experiment that still wait for samples.

    Attributes:
        attempts: Of the experiment.
    """

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}
        self.attempts = Attempts()

    def add(
        self,
        stream: Stream,
        steps: Sequence[int],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        settings: AlignSettings,
    ) -> int:
        """Fold in samples of one series, in columns of one length, at least one.

        Returns:
            Number of late ones: their step was closed before.
        """
        role, parts, late = self._placed(stream, steps, values, times_ns, received_ns)
        own, export = stream.own, role.export
        assert export is not None  # theirs
        for opened_steps, own_steps, own_values, own_times_ns in parts:
            reached = role.reached
            if reached is None or not reached.has(export, opened_steps, own_steps, own_times_ns):
                reached = _Reached.of_samples(export, opened_steps, own_steps, own_times_ns)
                role.reached = reached
            _put_each(reached.opened, stream.group, own_values, own_times_ns)
            if own is None:
                continue
            if settings.per_worker:
                _keep_each(reached.opened, own.number, own_values, own_times_ns)
            else:
                _put_each(reached.opened, own, own_values, own_times_ns)
        return late

    def open_for(self, worker: WorkerState, step: int, received_ns: int) -> OpenStep | None:
        """Return the open step for samples of an export that ``add_to`` may fold in.

        None where ``add`` has to look where they belong. It holds until the next other call, and
        for the streams of the worker that have reported no later step.
        """
        role = self._roles.get(worker.role)
        if role is None or worker.newest_step is None:
            return None
        if role.passes.returned or role.passes.before:
            return None
        if role.closed_through is not None and step <= role.closed_through:
            return None
        opened = role.open.get(step)
        if opened is None:
            opened = role.open[step] = OpenStep()
        if role.export != (worker.label, received_ns):
            role.export = worker.label, received_ns
        if opened.export is not role.export:
            opened.export = role.export
            opened.workers.add(worker.label)
            opened.received_ns = max(received_ns, opened.received_ns)
        return opened

    def add_to(
        self,
        opened: OpenStep,
        stream: Stream,
        step: int,
        value: float,
        time_ns: int,
        settings: AlignSettings,
    ) -> None:
        """Fold one sample into the step of ``open_for``."""
        worker = stream.worker
        if worker.newest_step is None or step >= worker.newest_step:
            self._roles[worker.role].passes.newest[worker.label] = step, time_ns
        stream.reported(step)
        if time_ns > opened.time_ns:
            opened.time_ns = time_ns
        group, own = stream.group, stream.own
        put(opened.cells, group.number, value, time_ns, group.reduction)
        if own is None:
            return
        if settings.per_worker:
            opened.single.setdefault(own.number, []).append((time_ns, value))
        else:
            put(opened.cells, own.number, value, time_ns, group.reduction)

    def add_export(
        self,
        opened: OpenStep,
        streams: Sequence[Stream],
        step: int,
        values: Sequence[float],
        times_ns: Sequence[int],
        settings: AlignSettings,
    ) -> None:
        """Fold one sample of each stream of a worker into the step of ``open_for``.

        All of them have reported a step, and none a later one.
        """
        self._reached(streams[0].worker, step, times_ns[-1])
        opened.time_ns = max(opened.time_ns, *times_ns)
        cells = opened.cells
        for stream, value, time_ns in zip(streams, values, times_ns, strict=True):
            stream.last_step = step
            group, own = stream.group, stream.own
            put(cells, group.number, value, time_ns, group.reduction)
            if own is None:
                continue
            if settings.per_worker:
                opened.single.setdefault(own.number, []).append((time_ns, value))
            else:
                put(cells, own.number, value, time_ns, group.reduction)

    def add_shares(
        self,
        opened: OpenStep,
        streams: Sequence[Stream],
        step: int,
        values: Sequence[float],
        starts_ns: Sequence[int],
        times_ns: Sequence[int],
    ) -> None:
        """Fold a share of each counter of a worker into the step of ``open_for``.

        All of them have reported a step, and none a later one.
        """
        self._reached(streams[0].worker, step, times_ns[-1])
        opened.time_ns = max(opened.time_ns, *times_ns)
        if opened.counts is None:
            opened.counts = StepCounts()
        opened.counts.add_growth(streams, values, starts_ns, times_ns)
        for stream in streams:
            stream.last_step = step

    def _reached(self, worker: WorkerState, step: int, time_ns: int) -> None:
        if worker.newest_step is None or step >= worker.newest_step:
            self._roles[worker.role].passes.newest[worker.label] = step, time_ns
            worker.newest_step = step

    def add_share(
        self, stream: Stream, step: int, point: SumPoint | HistogramPoint, received_ns: int
    ) -> int:
        """Fold in a worker's share of a step. Returns the number of late ones, see ``add``."""
        role, parts, late = self._placed(stream, (step,), (0,), (point.time_ns,), received_ns)
        for opened_steps, *_ in parts:
            opened = opened_steps.setdefault(step, OpenStep())
            opened.export = role.export
            opened.workers.add(stream.worker.label)
            opened.received_ns = max(received_ns, opened.received_ns)
            opened.time_ns = max(point.time_ns, opened.time_ns)
            if opened.counts is None:
                opened.counts = StepCounts()
            opened.counts.add(stream, point)
        return late

    def _placed(
        self,
        stream: Stream,
        steps: Sequence[int],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
    ) -> tuple[_Role, list[_Part], int]:
        """Return the role of samples, the parts that they belong to, and the number of late ones.

        The role's export is theirs.
        """
        worker, label = stream.worker, stream.worker.label
        role = self._roles.get(worker.role)
        if role is None:
            role = self._roles[worker.role] = _Role()
        passes, closed_through, newest = role.passes, role.closed_through, steps[-1]
        late = 0
        if (
            (closed_through is None or steps[0] > closed_through)
            and (stream.last_step is None or steps[0] >= stream.last_step)
            and worker.newest_step is not None
            and not (passes.returned or passes.before)
            and sorted(steps) == list(steps)
        ):  # nearly always: steps without a row, and none after a later one
            if newest >= worker.newest_step:
                passes.newest[label] = newest, times_ns[-1]
            stream.reported(newest)
            parts: list[_Part] = [(role.open, steps, values, times_ns)]
        else:
            parts, late = _sorted(role, stream, steps, values, times_ns, received_ns)
        if role.export != (label, received_ns):
            role.export = label, received_ns
        return role, parts, late

    @property
    def is_open(self) -> bool:
        """Return whether any sample waits."""
        return any(role.is_open for role in self._roles.values())

    def close(
        self,
        table: StreamTable,
        settings: AlignSettings,
        now_ns: int,
        *,
        everything: bool,
        standings: Mapping[str, RoleStanding] = MappingProxyType({}),
        room: BatchLimit | None = None,
        leader: tuple[str, str] = ("", ""),
    ) -> list[ClosedStep]:
        """Remove and return the steps that are complete or have waited long enough, ascending.

        Args:
            table: Of the workers.
            settings: Of the run.
            now_ns: The bridge's clock.
            everything: Also close incomplete steps.
            standings: Expected workers of each role.
            room: For values of rows; steps without room stay open until the next call.
            leader: Role and label of the worker that leads the run's axis.
        """
        closed: list[ClosedStep] = []
        of_roles: dict[str, dict[Worker, WorkerState]] = {name: {} for name in self._roles}
        for worker, state in table.workers.states.items():
            if worker.role in of_roles:
                of_roles[worker.role][worker] = state
        for name, role in self._roles.items():
            workers = of_roles[name]
            role.reached = None
            role.passes.look(workers, now_ns)
            if role.is_open:
                one = _Closing(
                    name,
                    role,
                    list(workers.values()),
                    table,
                    settings,
                    now_ns,
                    room or BatchLimit(),
                    self.attempts,
                    leader[1] if name == leader[0] else None,
                )
                closed += one.closed(standings.get(name), everything=everything)
        return closed

    def close_surplus(
        self,
        table: StreamTable,
        settings: AlignSettings,
        now_ns: int,
        standings: Mapping[str, RoleStanding],
        leader: tuple[str, str],
    ) -> list[ClosedStep]:
        """Remove and return the oldest steps of each role that has too many."""
        closed: list[ClosedStep] = []
        for name, role in self._roles.items():
            role.reached = None
            if max(len(role.open), len(role.late), len(role.again)) > settings.max_open_steps:
                workers = [state for of, state in table.workers.states.items() if of.role == name]
                one = _Closing(
                    name,
                    role,
                    workers,
                    table,
                    settings,
                    now_ns,
                    BatchLimit(),
                    self.attempts,
                    leader[1] if name == leader[0] else None,
                )
                closed += one.surplus(standings.get(name))
        return closed

    def to_wire(self) -> dict[str, wire.StepsOfRole]:
        """Return the steps for the journal."""
        return {name: role.to_wire() for name, role in self._roles.items()}

    @classmethod
    def from_wire(
        cls,
        kept: Mapping[str, wire.StepsOfRole],
        *,
        groups: int,
        attempts: Sequence[wire.Attempt] = (),
    ) -> "OpenSteps":
        """Undo ``to_wire``, with so many groups."""
        steps = cls()
        steps.attempts = Attempts.from_wire(attempts)
        steps._roles = {name: _Role.from_wire(role, groups) for name, role in kept.items()}
        return steps


@dataclass(frozen=True, slots=True)
class _Closing:
    """One check of the steps of a role.

    Attributes:
        leader: Label of the worker that leads the run's axis, if it is of this role.
    """

    name: str
    role: _Role
    workers: Sequence[WorkerState]
    table: StreamTable
    settings: AlignSettings
    now_ns: int
    room: BatchLimit
    attempts: Attempts
    leader: str | None

    def surplus(self, standing: RoleStanding | None) -> list[ClosedStep]:
        """Remove and return the oldest steps above the bound."""
        role, rows = self.role, list[ClosedStep]()
        expected = self._expected(standing)
        for step in self._beyond(role.open):
            role.closed_through = _later(step, role.closed_through)
            opened = role.open.pop(step)
            rows += self._rows(step, opened, expected(opened))
            role.size = max(role.size, len(opened.workers))
        for step in self._beyond(role.late):
            rows += self._rows(step, role.late.pop(step), role.size, is_late=True)
        for step in self._beyond(role.again):
            role.again_closed_through = _later(step, role.again_closed_through)
            late = role.again_samples.pop(step, 0)
            rows += self._rows(step, role.again.pop(step), role.size, late=late)
        return rows

    def _beyond(self, steps: _Steps) -> list[int]:
        return sorted(steps)[: max(0, len(steps) - self.settings.max_open_steps)]

    def closed(self, standing: RoleStanding | None, *, everything: bool) -> list[ClosedStep]:
        """Remove and return steps that are complete, or have waited long enough."""
        role = self.role
        should_be = role.size if standing is None else min(role.size, standing.expected)
        rows = self._turned(should_be, is_over=everything)
        waiting_for = self._waiting_for(should_be)
        expected = self._expected(standing)
        for step, opened in self._due(role.open, waiting_for, everything=everything):
            if not self._has_room(opened):
                break
            del role.open[step]
            role.closed_through = _later(step, role.closed_through)
            rows += self._rows(step, opened, expected(opened))
            role.size = max(role.size, len(opened.workers))
        enough = role.size or math.inf
        for step, opened in self._due(role.late, None, enough, everything=everything):
            if not self._has_room(opened):
                break
            del role.late[step]
            rows += self._rows(step, opened, role.size, is_late=True)
        enough = math.inf if role.passes.returned else enough
        for step, opened in self._due(role.again, None, enough, everything=everything):
            if not self._has_room(opened):
                break
            del role.again[step]
            role.again_closed_through = _later(step, role.again_closed_through)
            rows += self._rows(step, opened, role.size, late=role.again_samples.pop(step, 0))
        return rows

    def _has_room(self, opened: OpenStep) -> bool:
        return self.room.take(opened.size())

    def _due(
        self,
        steps: _Steps,
        waiting_for: Sequence[WorkerState] | None,
        enough: float = math.inf,
        *,
        everything: bool,
    ) -> list[tuple[int, OpenStep]]:
        """Return the steps that are complete or have waited long enough, ascending.

        Args:
            steps: All.
            waiting_for: Workers that must have gone past a step; None if unknown.
            enough: Number of workers that completes a step.
            everything: All steps.
        """
        if not steps:
            return []
        settings, now_ns = self.settings, self.now_ns
        lateness_ns = int(settings.allowed_lateness_s * _NS_PER_S)
        quiet_ns = int(settings.quiet_s * _NS_PER_S)
        complete_below = _complete_below(waiting_for)
        newest = max(steps)
        surplus = len(steps) - settings.max_open_steps
        due: list[tuple[int, OpenStep]] = []
        for place, step in enumerate(sorted(steps)):
            opened = steps[step]
            opened.received_ns = min(opened.received_ns, now_ns)  # the clock may be set back
            silent_ns = now_ns - opened.received_ns
            complete = complete_below is not None and step < complete_below
            complete = complete or (silent_ns >= quiet_ns and len(opened.workers) >= enough)
            if step == newest and not complete and waiting_for is not None:
                # The newest, with all series of the previous step, from every worker.
                before = due[-1][0] if due else self.role.closed_through
                complete = (
                    silent_ns >= quiet_ns
                    and before is not None
                    and all(worker.has_all_of(step, since=before) for worker in waiting_for)
                )
            if everything or complete or silent_ns >= lateness_ns or place < surplus:
                due.append((step, opened))
        return due

    def _turned(self, should_be: int, *, is_over: bool) -> list[ClosedStep]:
        """Close the rest of the previous pass if all workers have gone back, or all is over."""
        passes = self.role.passes
        if not passes.returned:
            return []
        settle_ns = int(self.settings.settle_s * _NS_PER_S)
        lateness_ns = int(self.settings.allowed_lateness_s * _NS_PER_S)
        live = [worker for worker in self.workers if self._is_live(worker)]
        passes.keep({worker.label for worker in live})
        after = passes.caught_up(self.role.closed_through)
        if after is not None:
            self._join(after)
        if passes.others or not passes.returned:
            return []
        heard_ns: dict[str, int] = {}
        for worker in live:
            heard_ns[worker.label] = max(worker.received_ns, heard_ns.get(worker.label, 0))
        if not all(
            one.is_sure and (is_over or heard_ns[label] - one.received_ns >= settle_ns)
            for label, one in passes.returned.items()
        ):
            return []
        is_overdue = is_over or self.now_ns - passes.since_ns >= lateness_ns
        if len(passes.returned) < should_be and not is_overdue:
            return []
        return self._turn()

    def _join(self, after: int) -> None:
        """Join the steps after this one with those of the others."""
        role = self.role
        for step in [step for step in role.again if step > after]:
            joining = role.again.pop(step)
            role.again_samples.pop(step, None)
            if step in role.open:
                role.open[step].join(joining)
            else:
                role.open[step] = joining

    def _turn(self) -> list[ClosedStep]:
        role = self.role
        rows: list[ClosedStep] = []
        for step in sorted(role.open):
            opened = role.open[step]
            rows += self._rows(step, opened, role.size)
        returned = role.passes.begin()
        if self.leader is not None:
            self._begin_attempt(returned)
        closed_through = role.again_closed_through
        for step in sorted(role.again):
            if closed_through is not None and step <= closed_through:
                late = role.again_samples[step]
                rows += self._rows(step, role.again.pop(step), role.size, late=late)
        role.open, role.again, role.again_closed_through = role.again, {}, None
        role.again_samples.clear()
        if role.open and min(role.open) > _FIRST_STEP:
            closed_through = _later(min(role.open) - 1, closed_through)
        role.closed_through = closed_through
        role.size = len(returned)
        for worker in self.workers:
            worker.start_again()
        for stream in self.table.streams_of(self.name):
            one = returned.get(stream.worker.label)
            if one is not None:
                step_of = one.positions.get(stream.number)
                if step_of is not None:
                    stream.reported(step_of)
        return rows

    def _begin_attempt(self, returned: Mapping[str, Returned]) -> None:
        """Begin an attempt of the run, unless its workers have only named an old step."""
        repeating = {label: one for label, one in returned.items() if one.is_attempt}
        if repeating:
            leading = repeating.get(self.leader or "")
            since_ns = min(one.since_ns for one in repeating.values())
            self.attempts.begin(
                min(one.first for one in repeating.values()),
                since_ns if leading is None else leading.since_ns,
            )

    def _is_live(self, worker: WorkerState) -> bool:
        return self.now_ns - worker.received_ns <= int(self.settings.lease_s * _NS_PER_S)

    def _waiting_for(self, should_be: int) -> list[WorkerState] | None:
        """Return the live workers of the role whose steps are waited for.

        None while a worker may still be before its first step. For ``allowed_lateness_s`` after the
        first export of the role, that is an announced worker without an export; for as long after a
        worker's first export, as many as there were before; and for as long after each worker's
        first export, one that has reported other data but no step yet.
        """
        lateness_ns = int(self.settings.allowed_lateness_s * _NS_PER_S)
        if self._missing_count():
            return None
        live = [worker for worker in self.workers if self._is_live(worker)]
        stepping = [worker for worker in live if worker.streams]
        young = [worker for worker in live if self.now_ns - worker.first_ns < lateness_ns]
        if any(not worker.streams for worker in young):
            return None
        if young and len({worker.label for worker in stepping}) < should_be:
            return None
        return stepping

    def _expected(self, standing: RoleStanding | None) -> Callable[[OpenStep], int]:
        """Return the number of workers expected in a row that was not closed before.

        As many as were in one before, without those that have reported their end since. While the
        role is young, as many as were announced.
        """
        role = self.role
        left = {worker.label for worker in self.workers if worker.standing is WorkerStanding.LEFT}
        announced = self._missing_count()
        alive = role.size if standing is None else standing.expected

        def expected(opened: OpenStep) -> int:
            there = alive + len(left & opened.workers) if left else alive
            return max(min(role.size, there), announced)

        return expected

    def _missing_count(self) -> int:
        """Return the number of announced workers, if some may still be missing; else 0."""
        lateness_ns = int(self.settings.allowed_lateness_s * _NS_PER_S)
        begun_ns = min((worker.first_ns for worker in self.workers), default=0)
        if self.now_ns - begun_ns >= lateness_ns or not self.table.workers.is_missing(self.name):
            return 0
        return max((worker.count or 0 for worker in self.workers), default=0)

    def _rows(
        self, step: int, opened: OpenStep, expected: int, *, late: int = 0, is_late: bool = False
    ) -> list[ClosedStep]:
        attempt = None if is_late or self.leader is None else self.attempts.newest
        rows = _reduce(self.name, step, opened, self.table, late, attempt)
        if len(opened.workers) < expected and rows[-1].values:
            for name, value in (
                (names.RL_SERVICE_STEP_REPORTED, len(opened.workers)),
                (names.RL_SERVICE_STEP_EXPECTED, expected),
            ):
                identity = GroupIdentity(self.name, name, (), Reduction.LAST)
                if self.table.keys.has_room_for(identity, self.settings):
                    group = self.table.keys.group(identity)
                    for row in rows:
                        row.values[group.key] = float(value)
        return rows


def _sorted(
    role: _Role,
    stream: Stream,
    steps: Sequence[int],
    values: Sequence[float],
    times_ns: Sequence[int],
    received_ns: int,
) -> tuple[list[_Part], int]:
    """Sort samples by where they belong; return the parts and the number of late samples."""
    passes, closed_through = role.passes, role.closed_through
    passes.look_back(stream, steps, times_ns, closed_through, received_ns)
    on_time, late, again = passes.sort(stream, steps, times_ns, closed_through)
    role.again_samples.update(steps[place] for place in again)
    for places in on_time, late:
        for place in places:
            passes.went_on(stream.worker, steps[place], times_ns[place])
        if places:
            stream.reported(max(steps[place] for place in places))
    parts = [
        (opened, *([column[place] for place in places] for column in (steps, values, times_ns)))
        for opened, places in ((role.open, on_time), (role.late, late), (role.again, again))
        if places
    ]
    return cast("list[_Part]", parts), len(late)


def _complete_below(waiting_for: Sequence[WorkerState] | None) -> float | None:
    """Return the step below which all are complete: every worker has gone past them."""
    if waiting_for is None:
        return None
    return min((worker.passed_below() for worker in waiting_for), default=math.inf)


def _later(step: int, other: int | None) -> int:
    return step if other is None else max(step, other)


def _reduce(
    role: str,
    step: int,
    opened: OpenStep,
    table: StreamTable,
    late: int,
    attempt: int | None,
) -> list[ClosedStep]:
    """Reduce a step to its row.

    If single measurements are written and a worker made several in one step, a row for each but the
    last precedes it.
    """
    values: dict[str, float] = {}
    version: int | None = None
    phases: dict[str, float] = {}
    for number, cell in opened.cells.items():
        group = table.keys.groups[number]
        value = reduced(cell, group.reduction)
        if value is None:
            continue
        values[group.key] = value
        for suffix in group.statistics:
            found = statistic(cell, suffix)
            if found is not None:
                values[f"{group.key}/{suffix}"] = found
        if group.name == names.RL_POLICY_VERSION and is_integral(value):
            version = int(value)
        if group.name == names.RL_PHASE_DURATION and not group.own:
            phases[dict(group.attributes).get(names.RL_PHASE, "")] = value
    if RlPhaseValues.TRAIN in phases:
        derived = table.keys.group(
            GroupIdentity(role, names.RL_PIPELINE_DURATION, (), Reduction.MEAN)
        )
        values[derived.key] = sum(value for phase, value in phases.items() if phase in _PIPELINE)
    if opened.counts is not None:
        values.update(opened.counts.values(role, table))
    groups, rows = table.keys.groups, list[tuple[int, dict[str, float]]]()
    if set(map(len, opened.single.values())) == {1}:  # nearly always, and much faster
        values.update([(groups[number].key, made[0][1]) for number, made in opened.single.items()])
    elif opened.single:
        rows += single_rows({groups[number].key: made for number, made in opened.single.items()})
        values |= rows.pop()[1] if rows else {}
    return [
        *(ClosedStep(role, step, time_ns, row, version, 0, attempt) for time_ns, row in rows),
        ClosedStep(role, step, opened.time_ns, values, version, late, attempt),
    ]
