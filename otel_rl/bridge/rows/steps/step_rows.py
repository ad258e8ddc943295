"""Step rows: samples and counts that carry a step, keyed by (role, step).

A step is complete when every live worker of the role that has steps has gone past it. The newest
step is complete, too, when every series that reported the previous step has reported it and no
sample arrived for a second: a step that takes minutes is not shown minutes late. Otherwise a step
is closed when ``wait_s`` has passed since its newest sample arrived. The first row of a role waits
for workers that may come, for a while.

A closed step is kept. Later samples join it, and its whole row is written again: a second after the
last of them, or ``wait_s`` after the first.

A loop that goes back to a checkpoint repeats steps, see ``step_passes.py``. Until all of its
workers have gone back, the repeated steps are kept apart. Then they become the open ones, and the
rest of the previous pass is closed.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from otel_rl.bridge.rows.batch_limit import BatchLimit
from otel_rl.bridge.rows.reduce import MAX_VALUES, put
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.attempts import Attempts
from otel_rl.bridge.rows.steps.open_step import (
    OpenStep,
    ReachedSteps,
    Steps,
    keep_each,
    put_each,
)
from otel_rl.bridge.rows.steps.role_steps import RoleSteps
from otel_rl.bridge.rows.steps.step_closing import ClosedStep, StepClosing
from otel_rl.bridge.rows.steps.step_counts import StepCounts
from otel_rl.bridge.rows.steps.written_steps import StepLog, StepLogs
from otel_rl.records import HistogramPoint, RoleStanding, SumPoint, Worker

__all__ = ["OpenSteps"]

_Part = tuple[Steps, Sequence[int], Sequence[float], Sequence[int]]


class OpenSteps:
    """Steps of one experiment that still wait for samples.

    Attributes:
        attempts: Of the experiment.
        logs: Of the steps with a row, which samples that come late join.
        launched: See ``StepClosing``.
    """

    def __init__(
        self, roles: dict[str, RoleSteps] | None = None, attempts: Attempts | None = None
    ) -> None:
        self._roles = roles or {}
        self.attempts = attempts or Attempts()
        self.logs = StepLogs()
        self.launched: int | None = None

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
                reached = ReachedSteps.of_samples(export, opened_steps, own_steps, own_times_ns)
                role.reached = reached
            put_each(reached.opened, stream.group, own_values, reached.times_ns)
            if own is None:
                continue
            if settings.per_worker:
                # Those of the first series: equal ones of each would be kept beside them.
                keep_each(reached.opened, own.number, own_values, reached.times_ns)
            else:
                put_each(reached.opened, own, own_values, reached.times_ns)
        return late

    def add_each(
        self,
        streams: Sequence[Stream],
        step: int,
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        settings: AlignSettings,
    ) -> int:
        """Fold in one sample of each of some streams of a worker, all of one step.

        Returns:
            Number of late ones, see ``add``.
        """
        opened = self._opened(streams, step, received_ns)
        if opened is None:  # it takes a look where each of them belongs
            late = 0
            for stream, value, time_ns in zip(streams, values, times_ns, strict=True):
                late += self.add(stream, (step,), (value,), (time_ns,), received_ns, settings)
            return late
        worker = streams[0].worker
        if worker.newest_step is None or step >= worker.newest_step:
            self._roles[worker.role].passes.newest[worker.label] = step, times_ns[-1]
            worker.newest_step = step
        opened.time_ns = max(opened.time_ns, *times_ns)
        cells = opened.cells
        for stream, value, time_ns in zip(streams, values, times_ns, strict=True):
            stream.last_step = step
            group, own = stream.group, stream.own
            cell = cells.get(group.number)
            if type(cell) is list and len(cell) < MAX_VALUES:  # nearly always: ``put``
                cell.append(value)
            else:
                put(cells, group.number, value, time_ns, group.reduction)
            if own is None:
                continue
            if settings.per_worker:
                opened.single.setdefault(own.number, []).append((time_ns, value))
            else:
                put(cells, own.number, value, time_ns, group.reduction)
        return 0

    def _opened(self, streams: Sequence[Stream], step: int, received_ns: int) -> OpenStep | None:
        """Return the open step of samples of a worker, all of which surely belong to it.

        So it is if all of its streams have reported a step, and none a later one.
        """
        worker = streams[0].worker
        role = self._roles.get(worker.role)
        if role is None or worker.newest_step is None:
            return None
        if role.passes.returned or role.passes.before:
            return None
        if role.closed_through is not None and step <= role.closed_through:
            return None
        for stream in streams:
            if stream.last_step is None or stream.last_step > step:
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
    ) -> tuple[RoleSteps, list[_Part], int]:
        """Return the role of samples, the parts that they belong to, and the number of late ones.

        The role's export is theirs.
        """
        worker, label = stream.worker, stream.worker.label
        role = self._roles.get(worker.role)
        if role is None:
            role = self._roles[worker.role] = RoleSteps()
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
        is_coarse: bool = False,
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
            is_coarse: Whether the bound on rows has left out any step.
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
                one = StepClosing(
                    name,
                    role,
                    list(workers.values()),
                    table,
                    settings,
                    now_ns,
                    room or BatchLimit(),
                    self.attempts,
                    leader[1] if name == leader[0] else None,
                    self.launched,
                    is_coarse,
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
                one = StepClosing(
                    name,
                    role,
                    workers,
                    table,
                    settings,
                    now_ns,
                    BatchLimit(),
                    self.attempts,
                    leader[1] if name == leader[0] else None,
                    self.launched,
                )
                closed += one.surplus(standings.get(name))
        return closed

    def take_log(self) -> StepLog | None:
        """Return the part of the log of written steps since the last call; None without any."""
        return self.logs.take({name: role.written for name, role in self._roles.items()})

    def restore_log(self, body: bytes, groups: int) -> None:
        """Restore a part of the log, in their order, of a run with so many groups.

        Raises:
            StateRefused: It is something else.
        """
        self.logs.restore(body, {name: role.written for name, role in self._roles.items()}, groups)

    def is_restored(self) -> None:
        """Record that all parts of the log are restored: what is missing is left."""
        for role in self._roles.values():
            if len(role.written) < role.written.unrestored:
                role.written.leave_through(role.closed_through)
            role.written.unrestored = 0

    def stored(self) -> dict[str, RoleSteps]:
        """Return the steps for the journal, without the written ones, which are logged."""
        return self._roles

    def check(self, groups: int) -> None:
        """Check what was read from the journal, of a run with so many groups.

        Raises:
            StateRefused: It has values of other groups.
        """
        for role in self._roles.values():
            for step in role.steps():
                step.check(groups)


def _sorted(
    role: RoleSteps,
    stream: Stream,
    steps: Sequence[int],
    values: Sequence[float],
    times_ns: Sequence[int],
    received_ns: int,
) -> tuple[list[_Part], int]:
    """Sort samples by where they belong; return the parts and the number of late samples."""
    passes, closed_through = role.passes, role.closed_through
    passes.look_back(stream, steps, times_ns, closed_through, received_ns)
    on_time, late, past, again = passes.sort(stream, steps, times_ns, closed_through)
    for place in again:
        step, counted = steps[place], role.again_samples
        counted[step] = counted.get(step, 0) + 1
    for places in on_time, late, past:
        for place in places:
            passes.went_on(stream.worker, steps[place], times_ns[place])
        if places:
            stream.reported(max(steps[place] for place in places))
    joining = [place for place in late if role.reopen(steps[place], received_ns)]
    alone = sorted({*late, *past}.difference(joining))
    parts = [
        (opened, *([column[place] for place in places] for column in (steps, values, times_ns)))
        for opened, places in (
            (role.open, sorted([*on_time, *joining])),
            (role.late, alone),
            (role.again, again),
        )
        if places
    ]
    return cast("list[_Part]", parts), len(late) + len(past)
