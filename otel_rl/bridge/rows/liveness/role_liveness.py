"""Liveness of one role: its vacancies, failures and recoveries."""

from collections.abc import Iterator, Sequence

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Stored
from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.records import RoleStanding, Worker

__all__ = ["RoleLiveness"]

_NS_PER_S = 1_000_000_000

# Vacancies of one role; beyond it, the oldest are forgotten.
_MAX_VACANCIES = 1024


class _Vacancy(Stored, gc=False):
    """Place of a failed worker, since the last sign of its occupant."""

    index: Int64 | None
    since_ns: Int64


class RoleLiveness(Stored):
    """State of a role. Its living workers are in the table of workers.

    Attributes:
        announced: Largest number of workers that one of them has reported.
        left: Indexes of workers that left with an exit report.
        left_without_index: Number of workers without an index that left so.
        vacancies: Places of failed workers without a replacement.
        failures: Number of failed workers.
        recovery_ns: Time that the last replacement took; None before the first.
        silent: Number of workers that were gone at the end of the run without an exit report.
        standing: Result of the last ``look``.
        gaps: Times from the last sign of a failed worker to the first one of its replacement, for
            ``take_dips``.
    """

    announced: Int64 = 0
    left: set[Int64] = field(default_factory=set)
    left_without_index: Count = 0
    vacancies: list[_Vacancy] = field(default_factory=list)
    failures: Count = 0
    recovery_ns: Int64 | None = None
    silent: Count = 0
    standing: RoleStanding | None = None
    gaps: list[tuple[Int64, Int64]] = field(default_factory=list)

    def failed(self, index: int | None, since_ns: int) -> None:
        """Record a failed worker: its place is vacant."""
        if index is not None:
            self.left.discard(index)
        self.vacancies.append(_Vacancy(index, since_ns))
        del self.vacancies[:-_MAX_VACANCIES]

    def withdraw(self, index: int | None, since_ns: int) -> bool:
        """Undo a failure whose worker reports again, unless another has taken its place.

        Args:
            index: Index of the worker, which identifies its place; None if it has none.
            since_ns: Its last sign, which identifies the place of one without an index.

        Returns:
            Whether it is undone.
        """
        for place, vacancy in enumerate(self.vacancies):
            if vacancy.index == index and (index is not None or vacancy.since_ns == since_ns):
                del self.vacancies[place]
                self.failures -= 1
                return True
        return False

    def let_go(self, index: int | None, state: WorkerState) -> None:
        """Record a worker that is not expected any more."""
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
        """Record a replacement: when it came, and the last sign of the failed worker."""
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
        """Update the standing from the workers that live now."""
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
