"""Who of each role is there, who should be, who has failed, and how long it took to recover. Pure.

Every export is a lease. One that ends without a goodbye is a failure, and the role is whole again
when another instance has come in the place of the one that failed: with the same index, or any new
one where nobody knows an index. Whoever has said goodbye is not expected any more.

        last export            first export of the next instance
    -------|..........lease..........|            failure, at the end of the lease
           |--------- recovery ------|            or as soon as it is clear who replaces whom

A lease lasts ``lease_s``, and three pauses of a worker that exports less often. At its beginning
nobody knows how often that is. What counts is the instances with an index wherever there are any:
an instance without is then a helper of one of them, such as a forked data loader.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.align.series import Standing, WorkerState
from otel_rl.records import Departure, ExperimentStatus, RoleStanding, Worker

__all__ = ["Roster"]

_NS_PER_S = 1_000_000_000

# Of a worker that has exported once: three intervals of an SDK with OpenTelemetry's default. Some
# cut an export into requests, which come at once.
_FIRST_LEASE_NS = 180 * _NS_PER_S
_ONE_EXPORT_NS = 1 * _NS_PER_S

# However seldom a worker exports, it is missed some day.
_MAX_LEASE_NS = 600 * _NS_PER_S

# A run has a dozen. Roles beyond it are not watched.
_MAX_ROLES = 256

# Places of one role that are known to be empty; of more, the oldest are forgotten.
_MAX_VACANCIES = 1024


@dataclass(frozen=True, slots=True)
class _Vacancy:
    """A place that a failure has left empty, since the last sign of who was there."""

    index: int | None
    since_ns: int


@dataclass(slots=True)
class _Role:
    """What is remembered of a role. The living are in the table of workers."""

    announced: int = 0
    left: set[int] = field(default_factory=set)
    left_without_index: int = 0
    vacancies: list[_Vacancy] = field(default_factory=list)
    failures: int = 0
    recovery_ns: int | None = None
    silent: int = 0
    standing: RoleStanding | None = None

    def failed(self, index: int | None, since_ns: int) -> None:
        if index is not None:
            self.left.discard(index)
        self.vacancies.append(_Vacancy(index, since_ns))
        del self.vacancies[:-_MAX_VACANCIES]

    def let_go(self, index: int | None, state: WorkerState) -> None:
        state.standing = Standing.LEFT
        if index is None:
            self.left_without_index += 1
        else:
            self.left.add(index)

    def arrived(self, worker: Worker, state: WorkerState, now_ns: int) -> None:
        # It may be gone again before the next look.
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
                return

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


class Roster:
    """The workers of one experiment, by role. Can be pickled."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}
        # Of the worker that has gone last.
        self._went_well = True

    def heard(self, worker: Worker, state: WorkerState, event_ns: int, now_ns: int) -> None:
        """Take note of an export, before its state does.

        Args:
            worker: Who.
            state: Its own.
            event_ns: How far it says it has come; 0 if it does not say.
            now_ns: When the export arrived.
        """
        if state.standing is Standing.ALIVE:
            return
        if state.standing is not Standing.NEW and event_ns <= state.gone_ns:
            return  # sent before it went, and overtaken
        role = self._role(worker.role)
        if role is not None:
            state.standing = Standing.ALIVE
            role.arrived(worker, state, now_ns)

    def left(self, departure: Departure, state: WorkerState, now_ns: int) -> None:
        """Take note of a goodbye.

        Args:
            departure: Who says it, and whether an error is the reason.
            state: The worker's own.
            now_ns: When it arrived.
        """
        if state.standing is not Standing.ALIVE or departure.time_ns < state.event_ns:
            return  # came again, or after its lease had ended
        role, index = self._roles[departure.worker.role], departure.worker.index
        state.gone_ns = departure.time_ns
        self._went_well = not departure.failed
        if departure.failed:
            state.standing = Standing.FAILED
            role.failures += 1
            role.failed(index, now_ns)
            return
        role.let_go(index, state)

    def end(self, workers: Mapping[Worker, WorkerState], *, failed: bool) -> None:
        """End every lease, as all processes are known to be gone.

        Args:
            workers: All.
            failed: Whether those that have said no goodbye did not end well.
        """
        for worker, state in workers.items():
            role = self._roles.get(worker.role)
            if role is None or state.standing is not Standing.ALIVE:
                continue
            if failed:
                self._lost(role, worker, state, None, {})
            else:
                state.gone_ns = state.event_ns
                self._went_well = True
                role.let_go(worker.index, state)
                if state.says_goodbye:
                    state.standing = Standing.SILENT
                    role.silent += 1

    def look(self, workers: Mapping[Worker, WorkerState], *, lease_ns: int, now_ns: int) -> None:
        """End the leases that are over, and see how each role stands."""
        living: dict[str, list[tuple[Worker, WorkerState]]] = {role: [] for role in self._roles}
        for worker, state in workers.items():
            if state.standing is Standing.ALIVE:
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
            role.look([one for one in there if one[1].standing is Standing.ALIVE])

    def roles(self) -> Mapping[str, RoleStanding]:
        """How each role stood at the last look."""
        return {name: role.standing for name, role in self._roles.items() if role.standing}

    @property
    def has_living(self) -> bool:
        """Whether anybody held a lease at the last look."""
        return any(standing.alive for standing in self.roles().values())

    def status(self) -> ExperimentStatus | None:
        """How the experiment stood at the last look; None if nobody was heard of.

        With nobody left, it ended as its last worker did.
        """
        if not self._roles:
            return None
        if self.has_living:
            return ExperimentStatus.RUNNING
        return ExperimentStatus.COMPLETE if self._went_well else ExperimentStatus.CRASHED

    def _lost(
        self,
        role: _Role,
        worker: Worker,
        state: WorkerState,
        successor: WorkerState | None,
        living: Mapping[str, int],
    ) -> None:
        """A lease has ended without a goodbye; ``living`` has how many hold one, by instance."""
        state.standing, state.gone_ns = Standing.FAILED, state.event_ns
        if living.get(worker.instance):
            return  # the process goes on, and has said since who it is
        role.failures += 1
        self._went_well = False
        if successor is None:
            role.failed(worker.index, state.received_ns)
        else:
            successor.is_replacement = True
            role.recovery_ns = successor.first_ns - state.received_ns

    def _role(self, name: str) -> _Role | None:
        role = self._roles.get(name)
        if role is None and len(self._roles) < _MAX_ROLES:
            role = self._roles[name] = _Role()
        return role


class _Newcomers:
    """Who of a role has come in the place of another, by index and in the order of arrival.

    Args:
        living: Of the role.
    """

    def __init__(self, living: Sequence[tuple[Worker, WorkerState]]) -> None:
        self._by_index: dict[int | None, list[WorkerState]] = {}
        for worker, state in sorted(living, key=lambda one: one[1].first_ns):
            self._by_index.setdefault(worker.index, []).append(state)

    def successor(self, worker: Worker, state: WorkerState) -> WorkerState | None:
        """Who has come in the worker's place since it was last heard of."""
        states = self._by_index[worker.index]
        place = bisect_right(states, state.received_ns, key=lambda one: one.first_ns)
        while place < len(states):
            other_state = states[place]
            if other_state.standing is Standing.ALIVE and not other_state.is_replacement:
                return other_state
            del states[place]  # it never will again, at this look
        return None


def _lease_ns(state: WorkerState, lease_ns: int, *, is_replaced: bool) -> int:
    if is_replaced:
        return min(3 * state.pause_ns + lease_ns // 3, lease_ns)
    if state.received_ns - state.first_ns < _ONE_EXPORT_NS:
        return max(_FIRST_LEASE_NS, lease_ns)
    return max(min(3 * state.pause_ns, _MAX_LEASE_NS), lease_ns)
