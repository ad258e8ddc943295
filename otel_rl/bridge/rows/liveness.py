"""Liveness of the workers of each role: alive, expected, failed, recovery time. Pure.

Every export renews a lease. A lease that expires without an exit report is a failure, and the role
has recovered when another instance takes the place of the failed one: with the same index, or any
new one where no index is known. A worker with an exit report is no longer expected.

        last export            first export of the next instance
    -------|..........lease..........|            failure, at the end of the lease
           |--------- recovery ------|            or as soon as the replacement is known

A lease lasts ``lease_s``, and three intervals of a worker that exports less often. Its interval is
unknown at first. Where any instances have an index, only those count: one without is then a helper
process of them, such as a forked data loader.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.series.streams import (
    WorkerStanding,
    WorkerState,
    failure_from_wire,
    failure_to_wire,
)
from otel_rl.records import Departure, ExperimentStatus, RoleStanding, Worker, WorkerFailure

__all__ = ["Liveness"]

_NS_PER_S = 1_000_000_000

# Lease after the first export: three intervals of an SDK with OpenTelemetry's default. Some split
# an export into several requests, which arrive at once.
_FIRST_LEASE_NS = 180 * _NS_PER_S
_ONE_EXPORT_NS = 1 * _NS_PER_S

# Upper bound of a lease, for any export interval.
_MAX_LEASE_NS = 600 * _NS_PER_S

# A run has a dozen. Roles beyond it are ignored.
_MAX_ROLES = 256

# Vacancies of one role; beyond it, the oldest are forgotten.
_MAX_VACANCIES = 1024


_MAX_FAILURES = 32
"""Failures of a run that are kept with their causes; all are counted."""


@dataclass(frozen=True, slots=True)
class _Vacancy:
    """Place of a failed worker, since the last sign of its occupant."""

    index: int | None
    since_ns: int


@dataclass(slots=True)
class _Role:
    """State of a role. Its living workers are in the table of workers."""

    announced: int = 0
    left: set[int] = field(default_factory=set)
    left_without_index: int = 0
    vacancies: list[_Vacancy] = field(default_factory=list)
    failures: int = 0
    recovery_ns: int | None = None
    silent: int = 0
    standing: RoleStanding | None = None
    # Times from the last sign of a failed worker to the first one of its replacement, not yet told.
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def failed(self, index: int | None, since_ns: int) -> None:
        if index is not None:
            self.left.discard(index)
        self.vacancies.append(_Vacancy(index, since_ns))
        del self.vacancies[:-_MAX_VACANCIES]

    def let_go(self, index: int | None, state: WorkerState) -> None:
        state.standing = WorkerStanding.LEFT
        if index is None:
            self.left_without_index += 1
        else:
            self.left.add(index)

    def arrived(self, worker: Worker, state: WorkerState, now_ns: int) -> int | None:
        """Return the last sign of the failed worker that it replaces; None if there is none."""
        # It may be gone again before the next check.
        self.announced = max(self.announced, worker.count or 0)
        if worker.index is not None:
            self.left.discard(worker.index)
        elif self.left_without_index:
            self.left_without_index -= 1
        for place, vacancy in enumerate(self.vacancies):
            if vacancy.index == worker.index:
                del self.vacancies[place]
                self.recovered(vacancy.since_ns, now_ns)
                state.is_replacement = True
                return vacancy.since_ns
        return None

    def recovered(self, since_ns: int, now_ns: int) -> None:
        self.recovery_ns = now_ns - since_ns
        self.gaps.append((since_ns, now_ns))
        del self.gaps[:-_MAX_VACANCIES]

    def take_dips(self) -> Iterator[tuple[int, int]]:
        """Yield the time of each failure that was made good since, and how many lived then."""
        gaps, self.gaps = self.gaps, []
        alive = self.standing.alive if self.standing is not None else 0
        if not alive:  # all have left since, so that it is not known how many lived then
            return
        for at_ns in sorted({since_ns for since_ns, _ in gaps}):
            missing = sum(since_ns <= at_ns < until_ns for since_ns, until_ns in gaps)
            yield at_ns, max(0, alive - missing)

    def look(self, living: Sequence[tuple[Worker, WorkerState]]) -> None:
        self.announced = max((w.count for w, _ in living if w.count), default=self.announced)
        indexes = {worker.index for worker, _ in living if worker.index is not None}
        indexed = indexes or self.left or any(v.index is not None for v in self.vacancies)
        if indexed:
            alive = len(indexes)
            gone = sum(index < self.announced for index in self.left - indexes)
        else:
            alive, gone = len(living), self.left_without_index
        missed = 0 if indexed and self.announced else len(self.vacancies)
        expected = max(alive + missed, self.announced - gone)
        recovery_s = None if self.recovery_ns is None else self.recovery_ns / _NS_PER_S
        self.standing = RoleStanding(
            expected, alive, self.failures, recovery_s, self.silent or None
        )

    def to_wire(self) -> wire.LivenessOfRole:
        """Return the role for the journal."""
        return wire.LivenessOfRole(
            self.announced,
            self.left,
            self.left_without_index,
            [(vacancy.index, vacancy.since_ns) for vacancy in self.vacancies],
            self.failures,
            self.recovery_ns,
            self.silent,
            self.standing,
            self.gaps,
        )

    @classmethod
    def from_wire(cls, kept: wire.LivenessOfRole) -> "_Role":
        """Undo ``to_wire``."""
        return cls(
            kept.announced,
            kept.left,
            kept.left_without_index,
            [_Vacancy(*vacancy) for vacancy in kept.vacancies],
            kept.failures,
            kept.recovery_ns,
            kept.silent,
            None if kept.standing is None else RoleStanding(*kept.standing),
            [*kept.gaps],
        )


class Liveness:
    """Workers of one experiment, by role."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}
        # Of the worker that left last.
        self._went_well = True
        # The last ones, each with the last sign of its worker, which names its vacancy.
        self._failures: list[tuple[int, WorkerFailure]] = []

    def heard(self, worker: Worker, state: WorkerState, event_ns: int, now_ns: int) -> None:
        """Record an export, before its state does.

        Args:
            worker: The worker.
            state: Its own.
            event_ns: Reported progress of the worker; 0 if unknown.
            now_ns: Arrival of the export.
        """
        if state.standing is WorkerStanding.ALIVE:
            return
        if state.standing is not WorkerStanding.NEW and event_ns <= state.gone_ns:
            return  # sent before its exit report, and overtaken
        role = self._role(worker.role)
        if role is not None:
            state.standing = WorkerStanding.ALIVE
            since_ns = role.arrived(worker, state, now_ns)
            if since_ns is not None:
                self._made_good(worker.role, since_ns, now_ns)

    def left(self, departure: Departure, state: WorkerState, now_ns: int) -> None:
        """Record an exit report, or an error that has left a step.

        Args:
            departure: The worker, and whether it ended by an error.
            state: The worker's own.
            now_ns: Its arrival.
        """
        if not departure.has_ended:
            if state.error is None or state.error.time_ns < departure.time_ns:
                state.error = _failure(departure, state)
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
            error = _last_error(state) if departure.step is None else None
            self._note(now_ns, error or _failure(departure, state))
            return
        role.let_go(index, state)

    def end(self, workers: Mapping[Worker, WorkerState], *, failed: bool) -> None:
        """End every lease, as all processes are known to be gone.

        Args:
            workers: All.
            failed: Whether workers without an exit report have failed.
        """
        if failed:
            self._note_left(workers.values())
        replacements = _replacements(workers)
        for worker, state in workers.items():
            role = self._roles.get(worker.role)
            if role is None or state.standing is not WorkerStanding.ALIVE:
                continue
            # Whoever was replaced did not end with the others.
            successor = replacements[worker.role].successor(worker, state)
            is_lost = successor is not None and state.sends_exit_report
            if failed or is_lost:
                self._lost(role, worker, state, successor if is_lost else None, {})
            else:
                state.gone_ns = state.event_ns
                role.let_go(worker.index, state)
                if state.sends_exit_report:
                    state.standing = WorkerStanding.SILENT
                    role.silent += 1
            self._went_well = not failed

    def look(self, workers: Mapping[Worker, WorkerState], *, lease_ns: int, now_ns: int) -> None:
        """Expire leases, and update the standing of each role."""
        living: dict[str, list[tuple[Worker, WorkerState]]] = {role: [] for role in self._roles}
        for worker, state in workers.items():
            if state.standing is WorkerStanding.ALIVE:
                living[worker.role].append((worker, state))
        instances = Counter(worker.instance for there in living.values() for worker, _ in there)
        for name, role in self._roles.items():
            there = living[name]
            newcomers: _Newcomers | None = None
            for worker, state in there:
                silence_ns = now_ns - state.received_ns
                if silence_ns <= lease_ns // 3:  # nearly always
                    continue
                newcomers = newcomers or _Newcomers(there)
                successor = newcomers.successor(worker, state)
                is_replaced = successor is not None and worker.index is not None
                if silence_ns > _lease_ns(state, lease_ns, is_replaced=is_replaced):
                    instances[worker.instance] -= 1
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
        for place, (since_ns, failure) in enumerate(self._failures):
            if failure.step is None and (step := step_at(failure.time_ns)) is not None:
                self._failures[place] = since_ns, replace(failure, step=step)
        return tuple(failure for _, failure in self._failures)

    @property
    def has_living(self) -> bool:
        """Return whether any worker held a lease at the last check."""
        return any(standing.alive for standing in self.roles().values())

    def status(self) -> ExperimentStatus | None:
        """Return the status of the experiment at the last check; None before the first export.

        Without living workers, it ended as its last worker did.
        """
        if not self._roles:
            return None
        if self.has_living:
            return ExperimentStatus.RUNNING
        return ExperimentStatus.COMPLETE if self._went_well else ExperimentStatus.CRASHED

    def to_wire(self) -> wire.Liveness:
        """Return the state for the journal."""
        roles = {name: role.to_wire() for name, role in self._roles.items()}
        failures = [(since_ns, failure_to_wire(one)) for since_ns, one in self._failures]
        return wire.Liveness(roles, self._went_well, failures)

    @classmethod
    def from_wire(cls, kept: wire.Liveness, workers: Mapping[Worker, WorkerState]) -> "Liveness":
        """Undo ``to_wire``, with all workers."""
        roster = cls()
        roster._roles = {name: _Role.from_wire(role) for name, role in kept.roles.items()}
        roster._went_well = kept.went_well
        roster._failures = [
            (since_ns, failure_from_wire(failure)) for since_ns, failure in kept.failures
        ]
        for worker, state in workers.items():
            if state.standing is WorkerStanding.ALIVE and worker.role not in roster._roles:
                raise wire.StateRefused(
                    f"it watches no role {worker.role!r}, of which a worker lives"
                )
        return roster

    def _lost(
        self,
        role: _Role,
        worker: Worker,
        state: WorkerState,
        successor: WorkerState | None,
        living: Mapping[str, int],
    ) -> None:
        """Record an expired lease without an exit report; ``living`` counts leases by instance."""
        state.standing, state.gone_ns = WorkerStanding.FAILED, state.event_ns
        if living.get(worker.instance):
            return  # the process lives, under a name that it reported since
        role.failures += 1
        self._went_well = False
        last_ns = state.event_ns or state.received_ns
        failure = _last_error(state) or WorkerFailure(f"{state.role}/{state.label}", last_ns)
        self._note(state.received_ns, failure)
        if successor is None:
            role.failed(worker.index, state.received_ns)
        else:
            self._made_good(worker.role, state.received_ns, successor.first_ns)
            successor.is_replacement = True
            role.recovered(state.received_ns, successor.first_ns)

    def _note_left(self, states: Iterable[WorkerState]) -> None:
        """Note errors of workers whose programs have caught them, and ended with a bad status."""
        for state in states:
            error = _last_error(state)
            if state.standing is WorkerStanding.LEFT and error is not None:
                self._went_well = False
                self._note(state.gone_ns, error)

    def _note(self, since_ns: int, failure: WorkerFailure) -> None:
        self._failures.append((since_ns, failure))
        del self._failures[:-_MAX_FAILURES]

    def _made_good(self, role: str, since_ns: int, now_ns: int) -> None:
        """Note that the place of a failed worker is taken again."""
        for place, (failed_ns, failure) in enumerate(self._failures):
            is_it = failed_ns == since_ns and failure.worker.rpartition("/")[0] == role
            if is_it and failure.recovery_s is None:
                recovery_s = (now_ns - since_ns) / _NS_PER_S
                self._failures[place] = failed_ns, replace(failure, recovery_s=recovery_s)
                return

    def _role(self, name: str) -> _Role | None:
        role = self._roles.get(name)
        if role is None and len(self._roles) < _MAX_ROLES:
            role = self._roles[name] = _Role()
        return role


def _failure(departure: Departure, state: WorkerState) -> WorkerFailure:
    is_in_step = departure.step is not None
    return WorkerFailure(
        f"{state.role}/{state.label}",
        departure.time_ns,
        departure.error,
        departure.message,
        departure.step if is_in_step else state.newest_step,
        is_in_step,
    )


def _last_error(state: WorkerState) -> WorkerFailure | None:
    """Return the error that has left the worker's last step; None if it has made another since."""
    error = state.error
    if error is None or error.step is None:
        return None
    goes_on = state.newest_step is not None and state.newest_step > error.step
    return None if goes_on else error


def _replacements(workers: Mapping[Worker, WorkerState]) -> Mapping[str, "_Newcomers"]:
    """Return those of each role that could be replacements at a run's end: all with an index."""
    of_role: dict[str, list[tuple[Worker, WorkerState]]] = defaultdict(list)
    for worker, state in workers.items():
        if worker.index is not None:
            of_role[worker.role].append((worker, state))
    found = {role: _Newcomers(there) for role, there in of_role.items()}
    return defaultdict(lambda: _Newcomers(()), found)


class _Newcomers:
    """Replacements within a role, by index and in the order of arrival.

    Args:
        workers: Of the role, those that live or have left.
    """

    def __init__(self, workers: Sequence[tuple[Worker, WorkerState]]) -> None:
        self._by_index: dict[int | None, list[WorkerState]] = {}
        for worker, state in sorted(workers, key=lambda one: one[1].first_ns):
            self._by_index.setdefault(worker.index, []).append(state)

    def successor(self, worker: Worker, state: WorkerState) -> WorkerState | None:
        """Return the replacement of a worker since its last export."""
        states = self._by_index.get(worker.index, [])
        place = bisect_right(states, state.received_ns, key=lambda one: one.first_ns)
        while place < len(states):
            other_state = states[place]
            has_failed = other_state.standing is WorkerStanding.FAILED
            if not has_failed and not other_state.is_replacement:
                return other_state
            del states[place]  # not again in this check
        return None


def _lease_ns(state: WorkerState, lease_ns: int, *, is_replaced: bool) -> int:
    if is_replaced:
        return min(3 * state.pause_ns + lease_ns // 3, lease_ns)
    if state.received_ns - state.first_ns < _ONE_EXPORT_NS:
        return max(_FIRST_LEASE_NS, lease_ns)
    return max(min(3 * state.pause_ns, _MAX_LEASE_NS), lease_ns)
