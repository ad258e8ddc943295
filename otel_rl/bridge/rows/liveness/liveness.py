"""Liveness of the workers of each role: alive, expected, failed, recovery time. Pure.

Every export renews a lease. A lease that expires without an exit report is a failure, and the role
has recovered when another instance takes the place of the failed one: with the same index, or any
new one where no index is known. A worker with an exit report is no longer expected. An SDK without
exit reports may send nothing while nothing changes: if its instance reports again, it was silent,
its failure is withdrawn, and its lease lasts three such silences from then on. One that has sent
spans or logs only while it started, none of a step or a phase, has no more to send, and is no
failure: it is not expected.

        last export            first export of the next instance
    -------|..........lease..........|            failure, at the end of the lease
           |--------- recovery ------|            or as soon as the replacement is known

A lease lasts ``lease_s``, and three intervals of a worker that exports less often. Its interval is
unknown at first. After a downtime of the bridge, exporters come back one after the other, as each
tries again in its turn: as much later as the last of them came, the others may still come. Where
any instances have an index, only those count: one without is then a helper process of them, such as
a forked data loader.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import field

from otel_rl.bridge.journal.state import StateRefused, Stored
from otel_rl.bridge.rows.liveness.failure_log import FailureLog, failure_of, last_error
from otel_rl.bridge.rows.liveness.replacements import Replacements, replacements
from otel_rl.bridge.rows.liveness.role_liveness import RoleLiveness
from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.records import Departure, ExperimentStatus, RoleStanding, Worker, WorkerFailure

__all__ = ["Liveness"]

_NS_PER_S = 1_000_000_000

# Lease after the first export: three intervals of an SDK with OpenTelemetry's default. Some split
# an export into several requests, which arrive at once.
_FIRST_LEASE_NS = 180 * _NS_PER_S
_ONE_EXPORT_NS = 1 * _NS_PER_S

# Upper bound of a lease, for any export interval.
_MAX_LEASE_NS = 600 * _NS_PER_S

# Longest time that exporters wait after an attempt that has failed.
_MAX_BACK_OFF_NS = 30 * _NS_PER_S

# Before any export, which thus brings a worker back.
_COMES_BACK = -1

# A run has a dozen. Roles beyond it are ignored.
_MAX_ROLES = 256


class Liveness(Stored, dict=True):
    """Leases of the workers of one experiment, from which roles and status follow.

    Attributes:
        arrived: How many workers came, or came back after they had said that they end. Not stored.
    """

    _roles: dict[str, RoleLiveness] = field(default_factory=dict)
    _went_well: bool = True  # the worker that left last
    _failures: FailureLog = field(default_factory=FailureLog)

    def __post_init__(self) -> None:
        self.arrived = 0
        self._resumed_ns = 0
        self._back_ns = 0  # first export of a worker after that, the newest of all

    def exported(self, worker: Worker, state: WorkerState, event_ns: int, now_ns: int) -> None:
        """Record an export. Call it before the worker's state is updated.

        Args:
            worker: The worker.
            state: Its own.
            event_ns: Reported progress of the worker; 0 if unknown.
            now_ns: Arrival of the export.
        """
        if state.standing is WorkerStanding.ALIVE:
            if state.received_ns <= self._resumed_ns < now_ns:
                self._back_ns = now_ns
            return
        has_failed = state.standing is WorkerStanding.FAILED
        was_missed = has_failed and not state.sends_exit_report
        is_later = event_ns > state.gone_ns or (was_missed and not event_ns)
        if state.standing is not WorkerStanding.NEW and not is_later:
            return  # sent before its exit report, and overtaken
        role = self._role(worker.role)
        if role is None:
            return
        state.standing = WorkerStanding.ALIVE
        self.arrived += not was_missed
        if was_missed and role.withdraw(worker.index, state.received_ns):
            self._failures.withdraw(f"{state.role}/{state.label}")
        else:
            since_ns = role.arrived(worker, state, now_ns)
            if since_ns is not None:
                is_same = has_failed and since_ns == state.received_ns
                gone_ns = state.gone_ns if has_failed else None
                self._failures.made_good(
                    worker.role, since_ns, now_ns, by_same=is_same, gone_ns=gone_ns
                )

    def ended(self, departure: Departure, state: WorkerState, now_ns: int) -> None:
        """Record an exit report, or an error that has left a step.

        Args:
            departure: The worker, and whether it ended by an error.
            state: The worker's own.
            now_ns: Its arrival.
        """
        if not departure.has_ended:
            if state.error is None or state.error.time_ns < departure.time_ns:
                state.error = failure_of(departure, state)
            return
        if state.standing is not WorkerStanding.ALIVE or departure.time_ns < state.event_ns:
            return  # a repeat, or after its lease had expired
        role, index = self._roles[departure.worker.role], departure.worker.index
        state.gone_ns = departure.time_ns
        self._went_well = not departure.failed
        if departure.failed:
            state.standing = WorkerStanding.FAILED
            role.failures += 1
            role.failed(index, now_ns)
            error = last_error(state) if departure.step is None else None
            self._failures.add(now_ns, error or failure_of(departure, state))
            return
        role.let_go(index, state)

    def end(
        self, workers: Mapping[Worker, WorkerState], *, failed: bool, by: str | None = None
    ) -> None:
        """End every lease, as all processes are known to be gone.

        Args:
            workers: All.
            failed: Whether workers without an exit report have failed.
            by: Signal that ended them, such as ``SIGTERM``; None if none is known.
        """
        if failed:
            self._note_left(workers.values())
        by_role = replacements(workers)
        for worker, state in workers.items():
            role = self._roles.get(worker.role)
            if role is None or state.standing is not WorkerStanding.ALIVE:
                continue
            # A worker that was replaced did not end with the others.
            successor = by_role[worker.role].successor(worker, state)
            is_lost = successor is not None and state.sends_exit_report
            if failed or is_lost:
                self._lost(role, worker, state, successor if is_lost else None, {}, by)
            else:
                state.gone_ns = state.event_ns
                role.let_go(worker.index, state)
                if state.sends_exit_report:
                    state.standing = WorkerStanding.SILENT
                    role.silent += 1
            self._went_well = not failed

    def resume(self, now_ns: int) -> None:
        """Record the end of a downtime of the bridge."""
        self._resumed_ns = self._back_ns = now_ns

    def look(self, workers: Mapping[Worker, WorkerState], *, lease_ns: int, now_ns: int) -> None:
        """Expire leases, and update the standing of each role."""
        living: dict[str, list[tuple[Worker, WorkerState]]] = {role: [] for role in self._roles}
        for worker, state in workers.items():
            if state.standing is WorkerStanding.ALIVE:
                living[worker.role].append((worker, state))
        instances = Counter(worker.instance for there in living.values() for worker, _ in there)
        for name, role in self._roles.items():
            there = living[name]
            candidates: Replacements | None = None
            for worker, state in there:
                silence_ns = now_ns - state.received_ns
                if silence_ns <= lease_ns // 3:  # nearly always
                    continue
                candidates = candidates or Replacements(there)
                successor = candidates.successor(worker, state)
                is_replaced = successor is not None and worker.index is not None
                lasts_ns = _lease_ns(state, lease_ns, is_replaced=is_replaced)
                if state.received_ns <= self._resumed_ns and not is_replaced:
                    lasts_ns += min(self._back_ns - self._resumed_ns, _MAX_BACK_OFF_NS)
                if silence_ns > lasts_ns:
                    instances[worker.instance] -= 1
                    if _only_started(state):
                        role.let_go(worker.index, state)
                        state.gone_ns = _COMES_BACK
                    else:
                        self._lost(role, worker, state, successor, instances)
            role.look([one for one in there if one[1].standing is WorkerStanding.ALIVE])

    def roles(self) -> Mapping[str, RoleStanding]:
        """Return the standing of each role at the last check."""
        return {name: role.standing for name, role in self._roles.items() if role.standing}

    def take_dips(self) -> Iterator[tuple[str, int, int]]:
        """Yield role and time of each failure that was made good, and how many lived then.

        Their replacements may come before they are missed, so that no standing shows them.
        """
        for name, role in self._roles.items():
            for at_ns, alive in role.take_dips():
                yield name, at_ns, alive

    def failures(self, step_at: Callable[[int], int | None]) -> Sequence[WorkerFailure]:
        """Return the last failures, in order.

        Args:
            step_at: Returns the step in progress at a time, for workers that reported none.
        """
        return self._failures.at_steps(step_at)

    @property
    def has_living(self) -> bool:
        """Return whether any worker held a lease at the last check."""
        return any(standing.alive for standing in self.roles().values())

    @property
    def has_ended(self) -> bool:
        """Return whether there were workers, and none held a lease at the last check."""
        return bool(self.roles()) and not self.has_living

    def status(self) -> ExperimentStatus | None:
        """Return the status of the experiment at the last check; None before the first export.

        Without living workers, it ended as its last worker did.
        """
        if not self._roles:
            return None
        if self.has_living:
            return ExperimentStatus.RUNNING
        return ExperimentStatus.COMPLETE if self._went_well else ExperimentStatus.CRASHED

    def check(self, workers: Mapping[Worker, WorkerState]) -> None:
        """Check what was read from the journal, of a run with these workers.

        Raises:
            StateRefused: A worker lives whose role is unknown.
        """
        for worker, state in workers.items():
            if state.standing is WorkerStanding.ALIVE and worker.role not in self._roles:
                raise StateRefused(f"it has no role {worker.role!r}, of which a worker lives")

    def _lost(
        self,
        role: RoleLiveness,
        worker: Worker,
        state: WorkerState,
        successor: WorkerState | None,
        living: Mapping[str, int],
        by: str | None = None,
    ) -> None:
        """Record an expired lease without an exit report; ``living`` counts leases by instance."""
        state.standing, state.gone_ns = WorkerStanding.FAILED, state.event_ns
        if living.get(worker.instance):
            return  # the process lives, under a name that it reported since
        role.failures += 1
        self._went_well = not state.sends_exit_report  # else it cannot be told from an end in order
        last_ns = state.event_ns or state.received_ns
        name = f"{state.role}/{state.label}"
        failure = last_error(state) or WorkerFailure(
            name, last_ns, by, reports_ends=state.sends_exit_report
        )
        self._failures.add(state.received_ns, failure)
        if successor is None:
            role.failed(worker.index, state.received_ns)
        else:
            self._failures.made_good(worker.role, state.received_ns, successor.first_ns)
            successor.is_replacement = True
            role.recovered(state.received_ns, successor.first_ns)

    def _note_left(self, states: Iterable[WorkerState]) -> None:
        """Note errors of workers whose programs have caught them, and ended with a bad status."""
        for state in states:
            error = last_error(state)
            if state.standing is WorkerStanding.LEFT and error is not None:
                self._went_well = False
                self._failures.add(state.gone_ns, error)

    def _role(self, name: str) -> RoleLiveness | None:
        role = self._roles.get(name)
        if role is None and len(self._roles) < _MAX_ROLES:
            role = self._roles[name] = RoleLiveness()
        return role


def _only_started(state: WorkerState) -> bool:
    """Return whether a worker announces no end, and has sent nothing but spans of its start."""
    is_known = state.event_ns or state.sends_exit_report or state.has_worked
    return not is_known and state.received_ns - state.first_ns < _FIRST_LEASE_NS


def _lease_ns(state: WorkerState, lease_ns: int, *, is_replaced: bool) -> int:
    if is_replaced:
        return min(3 * state.pause_ns + lease_ns // 3, lease_ns)
    if state.received_ns - state.first_ns < _ONE_EXPORT_NS:
        return max(_FIRST_LEASE_NS, lease_ns)
    return max(min(3 * state.pause_ns, _MAX_LEASE_NS), lease_ns)
