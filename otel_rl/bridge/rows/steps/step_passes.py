"""Detects when workers pass over their steps again. Pure.

A loop that is resumed from a checkpoint repeats steps that have rows. So does a job that is
restarted with other processes. Its workers do not go back at one moment: their exports arrive one
after another, so for a while some workers are in the new pass, and others are, as far as known,
still in the old one.

    rank 0   498 499 500 | 400 401 402
    rank 1   498 499 500       | 400 401
    rank 2   498 499 500 .  .  .  .  .        still expected in the new pass

A worker has gone back when its leading series reports, later by the worker's own clock, a step that
has a row, or a step so far back that it cannot be an asynchronous sender's, whose steps are those
of the policy of a sample. A replacement process has gone back unless it begins after the other's
last step. Delayed samples are older by their worker's clock, and count as late.
"""

from collections.abc import Container, Mapping
from enum import Enum

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Stored
from otel_rl.bridge.rows.series.streams import Stream, WorkerStanding, WorkerState
from otel_rl.records import Worker

# A sample's policy is a few steps old, a checkpoint is older.
_FAR = 8

# A worker that is silent for this many of its pauses has gone; a delayed one has not.
_PAUSES = 3
_MARGIN_NS = 1_000_000_000

# Forgotten workers that are kept here before they are dropped.
_MAX_GONE = 64


class Side(Enum):
    """Where a sample belongs: to an open step, a step with a row, the previous or the new pass."""

    ON_TIME = 0
    LATE = 1
    PAST = 2
    AGAIN = 3


class Returned(Stored):
    """A worker that has gone back to an earlier step.

    Attributes:
        since_ns: Measurements after this time, by the worker's clock, are of the new pass.
        received_ns: Arrival of the first such measurement, by the bridge's clock.
        through: The last step that the worker repeats.
        first: The step that the worker went back to.
        high: The worker's newest step before it went back.
        is_sure: Whether the worker surely repeats steps, and has not only measured a sample of an
            old one.
        newest_ns: The latest time, by the worker's clock, of its measurements since.
        positions: The last step of each series since, by the number of the series' stream.
        repeats: Whether the worker surely makes several steps again: it is another process, or has
            gone on between ``first`` and ``high``.
    """

    since_ns: Int64
    received_ns: Int64
    through: Int64
    first: Int64
    high: Int64
    is_sure: bool
    newest_ns: Int64 = 0
    positions: dict[int, Int64] = field(default_factory=dict)
    repeats: bool = False

    @property
    def is_attempt(self) -> bool:
        """Return whether the worker repeats steps, and has not only measured an old sample."""
        return self.repeats or self.newest <= self.high

    @property
    def newest(self) -> int:
        return max(self.positions.values(), default=self.first)

    def take(self, number: int, step: int, time_ns: int) -> None:
        self.newest_ns = max(self.newest_ns, time_ns)
        self.positions[number] = max(step, self.positions.get(number, step))
        self.is_sure |= step > self.first
        self.repeats |= self.first < step <= self.high


class StepPasses(Stored, dict=True):
    """Workers of a role that have gone back, by their labels.

    Attributes:
        returned: Workers after which other workers may still follow.
        since_ns: Time at which the first worker went back, by the bridge's clock.
        newest: The newest step of each worker in this pass, and the latest time, by the worker's
            clock, of its measurements. A replacement process has the same label.
        before: Last time and step of each worker in the previous pass, by the worker's clock.
        others: Whether some stepping workers have not gone back, and are not silent.
        vacant_step: The newest step of the workers without an index, if all of them are silent.
        first: The first step of this pass; None for the first pass.
        stepping: Places of stepping workers of the last look, which have not gone back, among the
            workers of the role.
    """

    returned: dict[str, Returned] = field(default_factory=dict)
    since_ns: Int64 = 0
    newest: dict[str, tuple[Int64, Int64]] = field(default_factory=dict)
    before: dict[str, tuple[Int64, Int64]] = field(default_factory=dict)
    others: bool = True
    vacant_step: Int64 | None = None
    first: Int64 | None = None
    stepping: list[Count] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The workers of ``stepping``, and whether each has an index.
        self._others: list[tuple[bool, WorkerState]] = []

    def went_on(self, worker: WorkerState, newest: int, time_ns: int) -> None:
        """Record the newest step that a worker has measured, and its time."""
        known = self.newest.get(worker.label)
        if known is None or newest > known[0] or (newest == known[0] and time_ns > known[1]):
            self.newest[worker.label] = newest, time_ns

    def look_back(
        self,
        stream: Stream,
        step: int,
        time_ns: int,
        closed_through: int | None,
        received_ns: int,
    ) -> None:
        """Detect by a sample whether a worker has gone back to an earlier step."""
        worker, label = stream.worker, stream.worker.label
        if label in self.returned:
            return
        high, known_ns = self.newest.get(label, (None, 0))
        since_ns = known_ns + (time_ns - known_ns) // 2
        if worker.newest_step is None and self.newest:
            # A new process.
            self.before.pop(label, None)
            high = self._vacant(received_ns) if high is None else high
            if high is not None and step <= high:
                since_ns = min(since_ns, time_ns - 1)
                one = Returned(since_ns, received_ns, high, step, high, is_sure=True)
                one.repeats = True
                self._goes_back(label, one)
                return
        last = stream.last_step
        if last is None or step >= last or last != high or time_ns <= known_ns:
            return
        is_far = last - step >= _FAR
        if is_far or (closed_through is not None and step <= closed_through):
            # If it went back a little, steps without a row can be of either pass.
            through = last if is_far or closed_through is None else closed_through
            self._goes_back(
                label, Returned(since_ns, received_ns, through, step, last, is_sure=is_far)
            )

    def _goes_back(self, label: str, returned: Returned) -> None:
        if not self.returned:
            self.since_ns = returned.received_ns
        self.returned[label] = returned

    def side_of(self, stream: Stream, step: int, time_ns: int, closed_through: int | None) -> Side:
        """Return to which pass a sample belongs, and whether its step has a row there."""
        label = stream.worker.label
        old_ns, old_through = self.before.get(label, (0, 0))
        is_closed = closed_through is not None and step <= closed_through
        returned = self.returned.get(label)
        if returned is not None and time_ns > returned.since_ns:
            if is_closed or step <= returned.through or returned.is_sure or not self.others:
                returned.take(stream.number, step, time_ns)
                return Side.AGAIN
            del self.returned[label]  # it was only a sample of some steps ago
        if step > old_through:
            self.before.pop(label, None)
        is_past = time_ns <= old_ns and step <= old_through
        if is_past and (self.first is None or step >= self.first):
            return Side.PAST
        return Side.LATE if is_closed else Side.ON_TIME

    def look(self, workers: Mapping[Worker, WorkerState], now_ns: int) -> None:
        """Check which workers remain beside those that have gone back."""
        self.vacant_step, self.stepping = None, []
        if len(self.newest) > 2 * len(workers) + _MAX_GONE:
            labels = {state.label for state in workers.values()}
            self.newest = {of: newest for of, newest in self.newest.items() if of in labels}
        is_indexed = all(worker.index is not None for worker in workers)
        is_needed = not is_indexed or bool(self.returned)  # nearly never
        if is_needed:
            self.stepping = [
                place
                for place, state in enumerate(workers.values())
                if state.streams and state.label not in self.returned
            ]
        self.find(workers)
        if is_needed:
            self.others = any(not is_silent(state, now_ns) for _, state in self._others)
            if not self.others:
                self.vacant_step = self._vacant(now_ns)

    def find(self, workers: Mapping[Worker, WorkerState]) -> None:
        """Find the workers of ``stepping``, at a look and after a restart.

        Raises:
            IndexError: The role has fewer workers than there were.
        """
        known = [*workers.items()] if self.stepping else []
        found = [known[place] for place in self.stepping]
        self._others = [(worker.index is not None, state) for worker, state in found]

    def _vacant(self, now_ns: int) -> int | None:
        """Return the newest step of the workers without an index, if all of them are silent."""
        others = [one for one in self._others if one[1].label not in self.returned]
        if not others:
            return self.vacant_step
        if not all(is_silent(state, now_ns) for _, state in others):
            return None
        unnamed = [state.label for is_indexed, state in others if not is_indexed]
        return max((self.newest[of][0] for of in unnamed if of in self.newest), default=None)

    def caught_up(self, closed_through: int | None) -> int | None:
        """Remove the workers that have caught up with those that have not gone back.

        Returns:
            The step after which their steps join those of the others; None if none has caught up.
        """
        after: int | None = None
        for label, one in list(self.returned.items()):
            through = one.through if closed_through is None else max(one.through, closed_through)
            if self.others and max(one.positions.values(), default=through) > through:
                del self.returned[label]
                after = through if after is None else max(through, after)
        return after

    def keep(self, live: Container[str]) -> None:
        for label in [label for label in self.returned if label not in live]:
            del self.returned[label]

    def begin(self, first: int) -> dict[str, Returned]:
        """Make the new pass, from step ``first`` on, the only one. Returns the workers in it."""
        returned, self.returned = self.returned, {}
        self.first = first
        self.before = {label: (one.since_ns, one.through) for label, one in returned.items()}
        self.others = True
        self.newest = {label: (one.newest, one.newest_ns) for label, one in returned.items()}
        self.vacant_step = None
        return returned


def is_silent(worker: WorkerState, now_ns: int) -> bool:
    """Return whether a worker has ended, or has not exported for longer than before."""
    if worker.standing > WorkerStanding.ALIVE:
        return True
    silent_ns = now_ns - worker.received_ns
    return worker.pause_ns > 0 and silent_ns > _PAUSES * worker.pause_ns + _MARGIN_NS
