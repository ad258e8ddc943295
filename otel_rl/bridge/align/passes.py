"""Which pass over its steps a worker is in. Pure.

A loop that is resumed from a checkpoint makes steps again that have rows. So does a job that is
started again, with other processes. Its workers do not go back at one moment: their exports arrive
one after another, so for a while some are in the new pass and some, as far as anybody knows, still
in the old one.

    rank 0   498 499 500 | 400 401 402
    rank 1   498 499 500       | 400 401
    rank 2   498 499 500 .  .  .  .  .        still expected in the new pass

A worker has gone back when the series that leads it does, later by its own clock: to a step that
has a row, or to one so far back that it cannot be an asynchronous sender's, which names the step by
whose policy a sample was made. A process in the place of another has, when it does not begin after
the other's last step. What was only held back on its way is older by its worker's clock, and late.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.align.series import Stream, WorkerState
from otel_rl.records import Worker

__all__ = ["Passes", "Returned", "is_silent"]

# A sample is made by a policy of a few steps ago, a checkpoint is of more.
_FAR = 8

# A worker that is silent for so many of its pauses has gone; one that is held up for a moment has
# not.
_PAUSES = 3
_MARGIN_NS = 1_000_000_000

# Of workers that are forgotten, so many are remembered here before they are left out.
_MAX_GONE = 64


@dataclass(slots=True)
class Returned:
    """How a worker has gone back.

    Attributes:
        since_ns: What it measured after that, by its clock, is of the new pass.
        received_ns: When that was heard of, by the bridge's clock.
        through: It makes steps up to this one again.
        first: The step that it went back to.
        is_sure: Whether it makes steps again, and has not only measured something of an old one.
        newest_ns: The latest time, by its clock, of what it has measured since.
        positions: The last step of each series since, by the number of its stream.
    """

    since_ns: int
    received_ns: int
    through: int
    first: int
    is_sure: bool
    newest_ns: int = 0
    positions: dict[int, int] = field(default_factory=dict)

    def take(self, number: int, step: int, time_ns: int) -> None:
        """Take note of a sample of the new pass."""
        self.newest_ns = max(self.newest_ns, time_ns)
        self.positions[number] = max(step, self.positions.get(number, step))
        self.is_sure |= step > self.first


@dataclass(slots=True)
class Passes:
    """The workers of a role that have gone back, by their labels.

    Attributes:
        returned: Those of which it is not known yet whether all the others do.
        since_ns: When the first of them has, by the bridge's clock.
        newest: The newest step of each worker in this pass, and the latest time, by its clock, at
            which it measured it. A process in the place of another has the same label.
        before: Of workers that were in the pass before: until when, by their clock, and up to
            which step.
        others: Whether some that make steps have not gone back, and are not silent.
        vacant_step: The newest step of the workers without an index, if all of them are silent.
    """

    returned: dict[str, Returned] = field(default_factory=dict)
    since_ns: int = 0
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    before: dict[str, tuple[int, int]] = field(default_factory=dict)
    others: bool = True
    vacant_step: int | None = None

    def went_on(self, worker: WorkerState, newest: int, time_ns: int) -> None:
        """Take note of the newest step that a worker has measured, and when."""
        known = self.newest.get(worker.label)
        if known is None or newest > known[0] or (newest == known[0] and time_ns > known[1]):
            self.newest[worker.label] = newest, time_ns

    def look_back(
        self,
        stream: Stream,
        steps: Sequence[int],
        times_ns: Sequence[int],
        closed_through: int | None,
        received_ns: int,
    ) -> None:
        """See whether a worker has gone back with these samples.

        Args:
            stream: Whose samples.
            steps: Of the samples.
            times_ns: Of the samples.
            closed_through: Steps through this one have rows.
            received_ns: When they came, by the bridge's clock.
        """
        worker, label = stream.worker, stream.worker.label
        if label in self.returned:
            return
        high, known_ns = self.newest.get(label, (None, 0))
        first_ns = times_ns[0]
        if worker.newest_step is None and self.newest:
            # A process that was not heard of before.
            self.before.pop(label, None)
            high = self.vacant_step if high is None else high
            if high is not None and steps[0] <= high:
                since_ns = min(known_ns + (first_ns - known_ns) // 2, first_ns - 1)
                self._goes_back(
                    label, Returned(since_ns, received_ns, high, steps[0], is_sure=True)
                )
                return
        last = stream.last_step
        for step, time_ns in zip(steps, times_ns, strict=True):
            if last is None or step >= last:
                last = step
                if high is None or step >= high:
                    high, known_ns = step, max(known_ns, time_ns)
                continue
            is_far = last - step >= _FAR
            is_closed = closed_through is not None and step <= closed_through
            if (is_far or is_closed) and last == high and time_ns > known_ns:
                # Of few steps, those that have no row yet can be of either pass.
                through = last if is_far or closed_through is None else closed_through
                since_ns = known_ns + (time_ns - known_ns) // 2
                self._goes_back(
                    label, Returned(since_ns, received_ns, through, step, is_sure=is_far)
                )
                return

    def _goes_back(self, label: str, returned: Returned) -> None:
        if not self.returned:
            self.since_ns = returned.received_ns
        self.returned[label] = returned

    def sort(
        self,
        stream: Stream,
        steps: Sequence[int],
        times_ns: Sequence[int],
        closed_through: int | None,
    ) -> tuple[list[int], list[int], list[int]]:
        """Returns the places of the samples that are on time, late, and of the new pass."""
        on_time: list[int] = []
        late: list[int] = []
        again: list[int] = []
        label = stream.worker.label
        old_ns, old_through = self.before.get(label, (0, 0))
        for place, (step, time_ns) in enumerate(zip(steps, times_ns, strict=True)):
            is_closed = closed_through is not None and step <= closed_through
            returned = self.returned.get(label)
            if returned is not None and time_ns > returned.since_ns:
                if is_closed or step <= returned.through or returned.is_sure or not self.others:
                    again.append(place)
                    returned.take(stream.number, step, time_ns)
                    continue
                del self.returned[label]  # it was no more than a sample of some steps ago
            if step > old_through:
                self.before.pop(label, None)
            if is_closed or (time_ns <= old_ns and step <= old_through):
                late.append(place)
            else:
                on_time.append(place)
        return on_time, late, again

    def look(self, workers: Mapping[Worker, WorkerState], now_ns: int) -> None:
        """See who there is beside the workers that have gone back.

        Args:
            workers: Of the role.
            now_ns: The bridge's clock.
        """
        self.vacant_step = None
        if len(self.newest) > 2 * len(workers) + _MAX_GONE:
            labels = {state.label for state in workers.values()}
            self.newest = {of: newest for of, newest in self.newest.items() if of in labels}
        is_indexed = all(worker.index is not None for worker in workers)
        if is_indexed and not self.returned:  # nearly always
            return
        before = [
            (worker.index, state)
            for worker, state in workers.items()
            if state.streams and state.label not in self.returned
        ]
        self.others = any(not is_silent(state, now_ns) for _, state in before)
        steps = [
            self.newest[state.label][0]
            for index, state in before
            if index is None and state.label in self.newest
        ]
        if not self.others:
            self.vacant_step = max(steps, default=None)

    def caught_up(self, closed_through: int | None) -> int | None:
        """Take out the workers that are with those again that have not gone back.

        Args:
            closed_through: Steps through this one have rows.

        Returns:
            Their steps after this one are those of the others; None if there are no such workers.
        """
        after: int | None = None
        for label, one in list(self.returned.items()):
            through = one.through if closed_through is None else max(one.through, closed_through)
            if self.others and max(one.positions.values(), default=through) > through:
                del self.returned[label]
                after = through if after is None else max(through, after)
        return after

    def keep(self, live: Container[str]) -> None:
        """Forget how workers have gone back that live no longer."""
        for label in [label for label in self.returned if label not in live]:
            del self.returned[label]

    def begin(self) -> dict[str, Returned]:
        """The new pass is that of all. Returns how its workers have come to it."""
        returned, self.returned = self.returned, {}
        self.before = {label: (one.since_ns, one.through) for label, one in returned.items()}
        self.others = True
        self.newest = {
            label: (max(one.positions.values()), one.newest_ns) for label, one in returned.items()
        }
        self.vacant_step = None
        return returned


def is_silent(worker: WorkerState, now_ns: int) -> bool:
    """Whether a worker has not exported for longer than it did before."""
    silent_ns = now_ns - worker.received_ns
    return worker.pause_ns > 0 and silent_ns > _PAUSES * worker.pause_ns + _MARGIN_NS
