"""Step rows: samples that carry a step, keyed by (role, step).

A step is complete when every live worker of the role has gone past it. The newest step is complete,
too, when every series that reported the step before has reported it and nothing came for
``quiet_s``: a step that takes minutes is not shown minutes late. Otherwise a step is closed when
``allowed_lateness_s`` has passed since its newest sample arrived.

What comes later still makes a row, of its own, at its own step: one of all workers that are late
for it, which waits for others for ``allowed_lateness_s``. A row that fewer workers are in than
should be says how many, so that it is not taken for the whole step.

A loop that goes back to a checkpoint makes steps again, see ``passes.py``. Until all of its workers
have gone back, the steps that some make again are kept apart. Then they are the open ones, and what
is left of the steps before is closed.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from otel_rl.bridge.align.axis import is_integral
from otel_rl.bridge.align.passes import Passes
from otel_rl.bridge.align.room import Room
from otel_rl.bridge.align.series import Standing, Stream, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.single import single_rows
from otel_rl.bridge.align.streams import StreamTable
from otel_rl.bridge.reduce import Cell, merged, put, reduced, statistic
from otel_rl.records import RoleStanding, Worker
from otel_rl.semconv import names
from otel_rl.semconv.names import RlPhaseValues
from otel_rl.semconv.spec import Reduction

__all__ = ["ClosedStep", "OpenSteps"]

_NS_PER_S = 1_000_000_000

# The part of an iteration that is work and transfer, not waiting.
_PIPELINE = frozenset(phase for phase, spec in names.PHASES.items() if spec.pipeline)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """One step of one role, reduced.

    Attributes:
        role: Whose step.
        step: Its number.
        time_ns: Latest event time among its samples.
        values: Tracker key to value.
        version: The policy version that was reported with the step, if any.
        late: How many samples turned out to be late when it was closed.
    """

    role: str
    step: int
    time_ns: int
    values: dict[str, float]
    version: int | None
    late: int = 0


@dataclass(slots=True)
class _OpenStep:
    """The samples of one step so far, by the number of their group.

    Attributes:
        time_ns: The latest of their times.
        received_ns: When the last came.
        cells: What is reduced.
        single: Every measurement, of the groups that have rows of their own.
        workers: The labels of those that have reported.
        export: In which something of it came last.
    """

    time_ns: int = 0
    received_ns: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)
    single: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    export: tuple[str, int] | None = None

    def join(self, other: "_OpenStep") -> None:
        """Fold in another, which is of the same step."""
        self.time_ns = max(self.time_ns, other.time_ns)
        self.received_ns = max(self.received_ns, other.received_ns)
        self.workers |= other.workers
        for number, cell in other.cells.items():
            own = self.cells.get(number)
            self.cells[number] = cell if own is None else merged((own, cell))
        for number, made in other.single.items():
            self.single.setdefault(number, []).extend(made)


_Steps = dict[int, _OpenStep]

_Part = tuple[_Steps, Sequence[int], Sequence[float], Sequence[int]]


@dataclass(slots=True)
class _Role:
    """The steps of a role that wait.

    Attributes:
        open: Of the pass that its workers are in, without a row.
        closed_through: Steps through this one have rows.
        late: That have a row, and of which something came later.
        again: Of the workers that have gone back, as long as others may follow.
        again_closed_through: Of those, the last that has a row.
        again_samples: How many samples are in ``again``.
        passes: Who has gone back.
        size: The most workers that were in a row.
        export: Whose came last, and when.
    """

    open: _Steps = field(default_factory=dict)
    closed_through: int | None = None
    late: _Steps = field(default_factory=dict)
    again: _Steps = field(default_factory=dict)
    again_closed_through: int | None = None
    again_samples: Counter[int] = field(default_factory=Counter)
    passes: Passes = field(default_factory=Passes)
    size: int = 0
    export: tuple[str, int] | None = None

    @property
    def is_open(self) -> bool:
        return bool(self.open or self.late or self.again)


class OpenSteps:
    """The steps of one experiment that still wait for samples."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}

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
            How many are late: their step was closed before.
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
        group, own, reduction = stream.group.number, stream.own, stream.group.reduction
        export = role.export
        if export != (label, received_ns):
            export = role.export = label, received_ns
        # This loop is what the bridge does for every measurement of a run: few calls, local names.
        for opened_steps, own_steps, own_values, own_times_ns in parts:
            for step, value, time_ns in zip(own_steps, own_values, own_times_ns, strict=True):
                opened = opened_steps.get(step)
                if opened is None:
                    opened = opened_steps[step] = _OpenStep()
                if opened.export is not export:  # once in a step, of all series of an export
                    opened.export = export
                    opened.workers.add(label)
                    opened.received_ns = max(received_ns, opened.received_ns)
                if opened.time_ns < time_ns:
                    opened.time_ns = time_ns
                put(opened.cells, group, value, time_ns, reduction)
                if own is None:
                    continue
                if settings.per_worker:
                    opened.single.setdefault(own.number, []).append((time_ns, value))
                else:
                    put(opened.cells, own.number, value, time_ns, reduction)
        return late

    @property
    def is_open(self) -> bool:
        """Whether any sample waits."""
        return any(role.is_open for role in self._roles.values())

    def close(
        self,
        table: StreamTable,
        settings: AlignSettings,
        now_ns: int,
        *,
        everything: bool,
        standings: Mapping[str, RoleStanding] = MappingProxyType({}),
        room: Room | None = None,
    ) -> list[ClosedStep]:
        """Take out every step that is complete, or has waited long enough, in ascending order.

        Args:
            table: Of the workers.
            settings: Of the run.
            now_ns: The bridge's clock.
            everything: Whatever is open, complete or not.
            standings: How many workers of each role there should be.
            room: For values of rows; what finds none stays open until the next call.
        """
        closed: list[ClosedStep] = []
        of_roles: dict[str, dict[Worker, WorkerState]] = {name: {} for name in self._roles}
        for worker, state in table.workers.items():
            if worker.role in of_roles:
                of_roles[worker.role][worker] = state
        for name, role in self._roles.items():
            workers = of_roles[name]
            role.passes.look(workers, now_ns)
            if role.is_open:
                one = _Closing(
                    name, role, list(workers.values()), table, settings, now_ns, room or Room()
                )
                closed += one.closed(standings.get(name), everything=everything)
        return closed

    def close_surplus(
        self,
        table: StreamTable,
        settings: AlignSettings,
        now_ns: int,
        standings: Mapping[str, RoleStanding],
    ) -> list[ClosedStep]:
        """Take out the oldest steps of each role that has more than may wait."""
        closed: list[ClosedStep] = []
        for name, role in self._roles.items():
            if max(len(role.open), len(role.late), len(role.again)) > settings.max_open_steps:
                workers = [state for of, state in table.workers.items() if of.role == name]
                one = _Closing(name, role, workers, table, settings, now_ns, Room())
                closed += one.surplus(standings.get(name))
        return closed


@dataclass(frozen=True, slots=True)
class _Closing:
    """One look at the steps of a role."""

    name: str
    role: _Role
    workers: Sequence[WorkerState]
    table: StreamTable
    settings: AlignSettings
    now_ns: int
    room: Room

    def surplus(self, standing: RoleStanding | None) -> list[ClosedStep]:
        """Takes out the oldest of what is more than may wait."""
        role, rows = self.role, list[ClosedStep]()
        expected = self._expected(standing)
        for step in self._beyond(role.open):
            role.closed_through = _later(step, role.closed_through)
            opened = role.open.pop(step)
            rows += self._rows(step, opened, expected(opened))
            role.size = max(role.size, len(opened.workers))
        for step in self._beyond(role.late):
            rows += self._rows(step, role.late.pop(step), role.size)
        for step in self._beyond(role.again):
            role.again_closed_through = _later(step, role.again_closed_through)
            late = role.again_samples.pop(step, 0)
            rows += self._rows(step, role.again.pop(step), role.size, late=late)
        return rows

    def _beyond(self, steps: _Steps) -> list[int]:
        return sorted(steps)[: max(0, len(steps) - self.settings.max_open_steps)]

    def closed(self, standing: RoleStanding | None, *, everything: bool) -> list[ClosedStep]:
        """Takes out what is complete, or has waited long enough."""
        role = self.role
        should_be = role.size if standing is None else min(role.size, standing.expected)
        rows = self._turned(should_be)
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
            rows += self._rows(step, opened, role.size)
        enough = math.inf if role.passes.returned else enough
        for step, opened in self._due(role.again, None, enough, everything=everything):
            if not self._has_room(opened):
                break
            del role.again[step]
            role.again_closed_through = _later(step, role.again_closed_through)
            rows += self._rows(step, opened, role.size, late=role.again_samples.pop(step, 0))
        return rows

    def _has_room(self, opened: _OpenStep) -> bool:
        return self.room.take(
            1 + len(opened.cells) + sum(len(made) for made in opened.single.values())
        )

    def _due(
        self,
        steps: _Steps,
        waiting_for: Sequence[WorkerState] | None,
        enough: float = math.inf,
        *,
        everything: bool,
    ) -> list[tuple[int, _OpenStep]]:
        """The steps that are complete or have waited long enough, in ascending order.

        Args:
            steps: All.
            waiting_for: Who must have gone past a step; None if that is not known.
            enough: So many workers are all that there may be.
            everything: Whatever is open.
        """
        if not steps:
            return []
        settings, now_ns = self.settings, self.now_ns
        lateness_ns = int(settings.allowed_lateness_s * _NS_PER_S)
        quiet_ns = int(settings.quiet_s * _NS_PER_S)
        complete_below = _complete_below(waiting_for)
        newest = max(steps)
        surplus = len(steps) - settings.max_open_steps
        due: list[tuple[int, _OpenStep]] = []
        for place, step in enumerate(sorted(steps)):
            opened = steps[step]
            opened.received_ns = min(opened.received_ns, now_ns)  # the clock may be set back
            silent_ns = now_ns - opened.received_ns
            complete = complete_below is not None and step < complete_below
            complete = complete or (silent_ns >= quiet_ns and len(opened.workers) >= enough)
            if step == newest and not complete and waiting_for is not None:
                # The newest, with all that the step before had, from every worker.
                before = due[-1][0] if due else self.role.closed_through
                complete = (
                    silent_ns >= quiet_ns
                    and before is not None
                    and all(worker.has_all_of(step, since=before) for worker in waiting_for)
                )
            if everything or complete or silent_ns >= lateness_ns or place < surplus:
                due.append((step, opened))
        return due

    def _turned(self, should_be: int) -> list[ClosedStep]:
        """If all workers have gone back, what is left of the pass before."""
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
            one.is_sure and heard_ns[label] - one.received_ns >= settle_ns
            for label, one in passes.returned.items()
        ):
            return []
        is_overdue = self.now_ns - passes.since_ns >= lateness_ns
        if len(passes.returned) < should_be and not is_overdue:
            return []
        return self._turn()

    def _join(self, after: int) -> None:
        """The steps after this one are those of the others."""
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
        closed_through = role.again_closed_through
        for step in sorted(role.again):
            if closed_through is not None and step <= closed_through:
                late = role.again_samples[step]
                rows += self._rows(step, role.again.pop(step), role.size, late=late)
        role.open, role.again, role.again_closed_through = role.again, {}, None
        role.again_samples.clear()
        if role.open:
            closed_through = _later(min(role.open) - 1, closed_through)
        role.closed_through = closed_through
        returned = role.passes.begin()
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

    def _is_live(self, worker: WorkerState) -> bool:
        return self.now_ns - worker.received_ns <= int(self.settings.lease_s * _NS_PER_S)

    def _waiting_for(self, should_be: int) -> list[WorkerState] | None:
        """The live workers of the role whose steps are waited for.

        None while a worker may still be on its way to its first step. For ``allowed_lateness_s``
        after the role was first heard of, that is one that was announced and has not come; for as
        long after a worker was first heard of, as many as there were before; and for as long after
        each worker was first heard of, one that has reported other things but no step yet.
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

    def _expected(self, standing: RoleStanding | None) -> Callable[[_OpenStep], int]:
        """How many workers a row should be of that was not closed before.

        As many as were in one before, without those that have said goodbye since. While the role
        is young, as many as were announced.
        """
        role = self.role
        left = {worker.label for worker in self.workers if worker.standing is Standing.LEFT}
        announced = self._missing_count()
        alive = role.size if standing is None else standing.expected

        def expected(opened: _OpenStep) -> int:
            there = alive + len(left & opened.workers) if left else alive
            return max(min(role.size, there), announced)

        return expected

    def _missing_count(self) -> int:
        """How many workers were announced, if some may still be on their way; else 0."""
        lateness_ns = int(self.settings.allowed_lateness_s * _NS_PER_S)
        begun_ns = min((worker.first_ns for worker in self.workers), default=0)
        if self.now_ns - begun_ns >= lateness_ns or not self.table.is_missing_workers(self.name):
            return 0
        return max((worker.count or 0 for worker in self.workers), default=0)

    def _rows(
        self, step: int, opened: _OpenStep, expected: int, *, late: int = 0
    ) -> list[ClosedStep]:
        rows = _reduce(self.name, step, opened, self.table, late)
        if len(opened.workers) < expected and rows[-1].values:
            for name, value in (
                (names.RL_SERVICE_STEP_REPORTED, len(opened.workers)),
                (names.RL_SERVICE_STEP_EXPECTED, expected),
            ):
                if self.table.has_room_for((self.name, name, (), Reduction.LAST), self.settings):
                    group = self.table.group(self.name, name, (), Reduction.LAST)
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
    """Samples by where they belong, and how many are late."""
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
    """Steps below this one are complete: every worker has gone past them."""
    if waiting_for is None:
        return None
    return min((worker.passed_below() for worker in waiting_for), default=math.inf)


def _later(step: int, other: int | None) -> int:
    return step if other is None else max(step, other)


def _reduce(
    role: str, step: int, opened: _OpenStep, table: StreamTable, late: int
) -> list[ClosedStep]:
    """The row of a step.

    Before it, where single measurements are wanted and a worker made several in one step, a row for
    each but the last.
    """
    values: dict[str, float] = {}
    version: int | None = None
    phases: dict[str, float] = {}
    for number, cell in opened.cells.items():
        group = table.groups[number]
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
        derived = table.group(role, names.RL_PIPELINE_DURATION, (), Reduction.MEAN)
        values[derived.key] = sum(value for phase, value in phases.items() if phase in _PIPELINE)
    single = {table.groups[number].key: made for number, made in opened.single.items()}
    rows = list(single_rows(single))
    if rows:
        values |= rows.pop()[1]
    return [
        *(ClosedStep(role, step, time_ns, row, version) for time_ns, row in rows),
        ClosedStep(role, step, opened.time_ns, values, version, late),
    ]
