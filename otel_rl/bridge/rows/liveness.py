"""Which workers live, which have failed, and the standing of each role of a run."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, StateRefused, Stored
from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.records import Departure, ExperimentStatus, RoleStanding, Worker, WorkerFailure

_NS_PER_S: Final = 1_000_000_000

_MAX_FAILURES: Final = 32
"""Failures of a run that are kept with their causes; all are counted."""


class FailureLog(Stored):
    """Last failures of a run, in order, each with the worker's last sign of life.

    That time identifies the vacancy that the failure has left.
    """

    _failures: list[tuple[Int64, WorkerFailure]] = field(default_factory=list)

    def add(self, since_ns: int, failure: WorkerFailure) -> None:
        self._failures.append((since_ns, failure))
        del self._failures[:-_MAX_FAILURES]

    def made_good(
        self,
        role: str,
        since_ns: int,
        now_ns: int,
        *,
        by_same: bool = False,
        gone_ns: int | None = None,
    ) -> None:
        """Record that a failed worker's place is taken, by another process or the same one.

        Args:
            since_ns: The worker's last sign of life before the failure.
            now_ns: Time at which the place was taken.
            by_same: Whether the same process has taken it.
            gone_ns: Last progress of the process that has taken the place, if that process was
                called failed: a failure at this time is then its own, whatever it sent since.
        """
        for place, (failed_ns, failure) in enumerate(self._failures):
            is_it = failed_ns == since_ns and failure.worker.rpartition("/")[0] == role
            if is_it and failure.recovery_s is None:
                recovery_s = (now_ns - since_ns) / _NS_PER_S
                self._failures[place] = (
                    failed_ns,
                    replace(
                        failure,
                        recovery_s=recovery_s,
                        is_same=by_same or failure.time_ns == gone_ns,
                    ),
                )
                return

    def withdraw(self, worker: str) -> None:
        """Remove the lasting failure of a worker, ``<role>/<index>``, that reports again."""
        self._failures = [
            (since_ns, failure)
            for since_ns, failure in self._failures
            if failure.worker != worker or failure.recovery_s is not None
        ]

    def at_steps(self, step_at: Callable[[int], int | None]) -> Sequence[WorkerFailure]:
        """Return the failures; where a worker reported no step, with the step then in progress."""
        for place, (since_ns, failure) in enumerate(self._failures):
            if failure.step is None and (step := step_at(failure.time_ns)) is not None:
                self._failures[place] = since_ns, replace(failure, step=step)
        return tuple(failure for _, failure in self._failures)


def failure_of(departure: Departure, state: WorkerState) -> WorkerFailure:
    """Return the failure that an exit report or an error in a step stands for."""
    is_in_step = departure.step is not None
    return WorkerFailure(
        f"{state.role}/{state.label}",
        departure.time_ns,
        departure.error,
        departure.message,
        departure.step if is_in_step else state.newest_step,
        is_in_step,
    )


def last_error(state: WorkerState) -> WorkerFailure | None:
    """Return the error of the worker's last step; None if the worker has made a later step."""
    error = state.error
    if error is None or error.step is None:
        return None
    goes_on = state.newest_step is not None and state.newest_step > error.step
    return None if goes_on else error


def replacements(workers: Mapping[Worker, WorkerState]) -> Mapping[str, "Replacements"]:
    """Return the possible replacements of each role at a run's end: its workers with an index."""
    of_role: dict[str, list[tuple[Worker, WorkerState]]] = defaultdict(list)
    for worker, state in workers.items():
        if worker.index is not None:
            of_role[worker.role].append((worker, state))
    found = {role: Replacements(there) for role, there in of_role.items()}
    return defaultdict(lambda: Replacements(()), found)


class Replacements:
    """Workers of a role that may replace failed ones, each used once."""

    def __init__(self, workers: Sequence[tuple[Worker, WorkerState]]) -> None:
        self._by_index: dict[int | None, list[WorkerState]] = {}
        for worker, state in sorted(workers, key=lambda one: one[1].first_ns):
            self._by_index.setdefault(worker.index, []).append(state)

    def successor(self, worker: Worker, state: WorkerState) -> WorkerState | None:
        states = self._by_index.get(worker.index, [])
        place = bisect_right(states, state.received_ns, key=lambda one: one.first_ns)
        while place < len(states):
            other_state = states[place]
            has_failed = other_state.standing is WorkerStanding.FAILED
            if not has_failed and not other_state.is_replacement:
                return other_state
            del states[place]  # not again in this check
        return None


# Vacancies of one role; beyond it, the oldest are forgotten.
_MAX_VACANCIES = 1024


class _Vacancy(Stored, gc=False):
    """Place of a failed worker, vacant since the worker's last sign of life."""

    index: Int64 | None
    since_ns: Int64


class RoleLiveness(Stored):
    """Standing of a role. Its living workers are in the table of workers.

    Attributes:
        announced: Largest number of workers that any worker has announced.
        left: Indexes of workers that left with an exit report.
        left_without_index: Number of workers without an index that left with an exit report.
        vacancies: Places of failed workers that no replacement has taken.
        failures: Number of failed workers.
        recovery_ns: Time that the last replacement took, in nanoseconds; None before the first.
        silent: Number of workers that were gone at the end of the run without an exit report.
    """

    announced: Int64 = 0
    left: set[Int64] = field(default_factory=set)
    left_without_index: Count = 0
    vacancies: list[_Vacancy] = field(default_factory=list)
    failures: Count = 0
    recovery_ns: Int64 | None = None
    silent: Count = 0
    standing: RoleStanding | None = None

    def failed(self, index: int | None, since_ns: int) -> None:
        if index is not None:
            self.left.discard(index)
        self.vacancies.append(_Vacancy(index, since_ns))
        del self.vacancies[:-_MAX_VACANCIES]

    def withdraw(self, index: int | None, since_ns: int) -> bool:
        """Undo the failure of a worker that reports again, unless another has taken its place.

        Args:
            since_ns: The worker's last sign of life, which identifies its place if it has no index.

        Returns:
            Whether the failure is undone.
        """
        for place, vacancy in enumerate(self.vacancies):
            if vacancy.index == index and (index is not None or vacancy.since_ns == since_ns):
                del self.vacancies[place]
                self.failures -= 1
                return True
        return False

    def let_go(self, index: int | None, state: WorkerState) -> None:
        """Record that a worker has ended in order, and let its place go."""
        state.standing = WorkerStanding.LEFT
        if index is None:
            self.left_without_index += 1
        else:
            self.left.add(index)

    def arrived(self, worker: Worker, state: WorkerState, now_ns: int) -> int | None:
        """Return the last sign of life of the failed worker that this one replaces, if any."""
        # It may be gone again before the next check.
        self.announced = max(self.announced, worker.count or 0)
        if worker.index is not None:
            self.left.discard(worker.index)
        elif self.left_without_index:
            self.left_without_index -= 1
        for place, vacancy in enumerate(self.vacancies):
            if vacancy.index == worker.index:
                del self.vacancies[place]
                self.recovery_ns = now_ns - vacancy.since_ns
                state.is_replacement = True
                return vacancy.since_ns
        return None

    def look(self, living: Sequence[tuple[Worker, WorkerState]]) -> None:
        """Update the role's standing from the workers that live now."""
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
        is_over: Whether all workers had ended at the last check, and none has appeared since.
    """

    _roles: dict[str, RoleLiveness] = field(default_factory=dict)
    _went_well: bool = True  # the worker that left last
    _failures: FailureLog = field(default_factory=FailureLog)
    is_over: bool = False

    def __post_init__(self) -> None:
        self._resumed_ns = 0
        self._back_ns = 0  # first export of a worker after that, the newest of all

    def exported(self, worker: Worker, state: WorkerState, event_ns: int, now_ns: int) -> bool:
        """Record an export. Call it before the worker's state is updated.

        Returns:
            Whether this is the first export of a worker that appeared, or returned, after the run
            was over.
        """
        if state.standing is WorkerStanding.ALIVE:
            if state.received_ns <= self._resumed_ns < now_ns:
                self._back_ns = now_ns
            return False
        has_failed = state.standing is WorkerStanding.FAILED
        was_missed = has_failed and not state.sends_exit_report
        is_later = event_ns > state.gone_ns or (was_missed and not event_ns)
        if state.standing is not WorkerStanding.NEW and not is_later:
            return False  # sent before its exit report, and overtaken
        role = self._role(worker.role)
        if role is None:
            return False
        state.standing = WorkerStanding.ALIVE
        goes_on = self.is_over and not was_missed
        self.is_over = self.is_over and was_missed
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
        return goes_on

    def ended(self, departure: Departure, state: WorkerState, now_ns: int) -> None:
        """Record an exit report, or an error with which a step has ended."""
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
        """End every lease, because all processes are known to be gone."""
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
        self._resumed_ns = self._back_ns = now_ns

    def look(self, workers: Mapping[Worker, WorkerState], *, lease_ns: int, now_ns: int) -> None:
        """Expire leases that are due, and update the standing of each role."""
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
        self.is_over = self.has_ended

    def roles(self) -> Mapping[str, RoleStanding]:
        return {name: role.standing for name, role in self._roles.items() if role.standing}

    def failures(self, step_at: Callable[[int], int | None]) -> Sequence[WorkerFailure]:
        return self._failures.at_steps(step_at)

    @property
    def has_living(self) -> bool:
        return any(standing.alive for standing in self.roles().values())

    @property
    def has_ended(self) -> bool:
        return bool(self.roles()) and not self.has_living

    def status(self) -> ExperimentStatus | None:
        """Return the status of the experiment at the last check; None before the first export.

        Without living workers, the experiment's end is that of its last worker.
        """
        if not self._roles:
            return None
        if self.has_living:
            return ExperimentStatus.RUNNING
        return ExperimentStatus.COMPLETE if self._went_well else ExperimentStatus.CRASHED

    def check(self, workers: Mapping[Worker, WorkerState]) -> None:
        """Check restored state against the run's workers.

        Raises:
            StateRefused: A worker lives but its role is unknown.
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
        """Record a lease that expired without exit report; ``living`` counts leases by instance."""
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
            role.recovery_ns = successor.first_ns - state.received_ns

    def _note_left(self, states: Iterable[WorkerState]) -> None:
        """Record errors that programs have caught, of workers that then ended with a bad status."""
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
    """Return whether a worker that reports no ends has only sent spans of its start."""
    is_known = state.event_ns or state.sends_exit_report or state.has_worked
    return not is_known and state.received_ns - state.first_ns < _FIRST_LEASE_NS


def _lease_ns(state: WorkerState, lease_ns: int, *, is_replaced: bool) -> int:
    if is_replaced:
        return min(3 * state.pause_ns + lease_ns // 3, lease_ns)
    if state.received_ns - state.first_ns < _ONE_EXPORT_NS:
        return max(_FIRST_LEASE_NS, lease_ns)
    return max(min(3 * state.pause_ns, _MAX_LEASE_NS), lease_ns)
