"""Step rows: samples and counts that carry a step, keyed by (role, step).

A step is complete when every live worker of the role that has steps has gone past it. The newest
step is complete, too, when every series that reported the previous step has reported it and no
sample arrived for a second: a step that takes minutes is not shown minutes late. Otherwise a step
is closed when ``wait_s`` has passed since its newest sample arrived. The first row of a role waits
for a while for workers that may still come.

A closed step is kept. Later samples join it, and its whole row is written again: a second after the
last of those samples, or ``wait_s`` after the first.

A loop that goes back to a checkpoint repeats steps, see ``step_passes.py``. Until all of its
workers have gone back, the repeated steps are kept apart. Then they become the open steps, and the
rest of the previous pass is closed.
"""

from collections.abc import Mapping, Sequence

from otel_rl.bridge.journal.log import Appended
from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.role_steps import RoleSteps
from otel_rl.bridge.rows.steps.step import OpenStep
from otel_rl.bridge.rows.steps.step_axis import Attempts
from otel_rl.bridge.rows.steps.step_closing import Check, ClosedStep, RoleCheck
from otel_rl.bridge.rows.steps.written_steps import StepLogs
from otel_rl.records import HistogramPoint, SumPoint, Worker


class OpenSteps:
    """Steps of one experiment that still wait for samples.

    Attributes:
        logs: Log of the steps with a row, which late samples join.
    """

    def __init__(
        self, roles: dict[str, RoleSteps] | None = None, attempts: Attempts | None = None
    ) -> None:
        self._roles = roles or {}
        self.attempts = attempts or Attempts()
        self.logs = StepLogs()

    def add_each(
        self,
        streams: Sequence[Stream],
        step: int,
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        settings: AlignSettings,
    ) -> int:
        """Fold in samples of one worker, all of one step, in columns of one length.

        Returns:
            Number of late samples, whose step was closed before.
        """
        opened = self._role(streams[0]).next_of(streams, step, max(times_ns))
        if opened is not None:
            opened.add(streams, values, times_ns, received_ns, per_worker=settings.per_worker)
            return 0
        late = 0
        for stream, value, time_ns in zip(streams, values, times_ns, strict=True):
            opened, is_late = self._placed(stream, step, time_ns, received_ns)
            opened.add((stream,), (value,), (time_ns,), received_ns, per_worker=settings.per_worker)
            late += is_late
        return late

    def add_share(
        self, stream: Stream, step: int, point: SumPoint | HistogramPoint, received_ns: int
    ) -> bool:
        """Fold in a worker's share of a step. Returns whether the share is late."""
        opened, is_late = self._placed(stream, step, point.time_ns, received_ns)
        opened.add_share(stream, point, received_ns)
        return is_late

    def _placed(
        self, stream: Stream, step: int, time_ns: int, received_ns: int
    ) -> tuple[OpenStep, bool]:
        role = self._role(stream)
        opened = role.next_of((stream,), step, time_ns)
        if opened is not None:
            return opened, False
        return role.placed(stream, step, time_ns, received_ns)

    def _role(self, stream: Stream) -> RoleSteps:
        role = self._roles.get(stream.worker.role)
        if role is None:
            role = self._roles[stream.worker.role] = RoleSteps()
        return role

    @property
    def is_open(self) -> bool:
        return any(role.is_open for role in self._roles.values())

    def close(self, check: Check) -> list[ClosedStep]:
        """Remove and return the steps that are complete or have waited long enough, ascending."""
        closed: list[ClosedStep] = []
        of_roles = self._by_role(check.table.workers.states)
        for name, role in self._roles.items():
            workers = of_roles[name]
            if not check.only_surplus:
                role.passes.look(workers, check.now_ns)
            if role.is_open:
                one = RoleCheck(name, role, [*workers.values()], check, self.attempts)
                closed += one.closed()
        return closed

    def _by_role(
        self, workers: Mapping[Worker, WorkerState]
    ) -> Mapping[str, Mapping[Worker, WorkerState]]:
        of_roles: dict[str, dict[Worker, WorkerState]] = {name: {} for name in self._roles}
        for worker, state in workers.items():
            if worker.role in of_roles:
                of_roles[worker.role][worker] = state
        return of_roles

    def find_workers(self, workers: Mapping[Worker, WorkerState]) -> None:
        """Find the workers again that a restored state names by their places.

        Raises:
            IndexError: There are fewer workers than the state names.
        """
        of_roles = self._by_role(workers)
        for name, role in self._roles.items():
            role.passes.find(of_roles[name])

    def take_log(self) -> Appended | None:
        return self.logs.take({name: role.written for name, role in self._roles.items()})

    def restore_log(self, body: bytes, groups: int) -> None:
        """Restore the parts of a run's log one by one, in order; the run has ``groups`` groups."""
        self.logs.restore(body, {name: role.written for name, role in self._roles.items()}, groups)

    def is_restored(self) -> None:
        """Record that all parts of the log are restored: steps that are still missing are left."""
        for role in self._roles.values():
            if len(role.written) < role.written.unrestored:
                role.written.leave_through(role.closed_through)
            role.written.unrestored = 0

    def stored(self) -> dict[str, RoleSteps]:
        return self._roles

    def check(self, groups: int) -> None:
        for role in self._roles.values():
            for step in role.steps():
                step.check(groups)
