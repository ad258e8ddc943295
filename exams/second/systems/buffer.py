"""The middle of an asynchronous system: a bounded queue of scored groups of samples."""

from collections import deque
from dataclasses import dataclass

from exams.second.systems.kernel import Signal
from exams.second.systems.world import Span, Worker, World
from exams.second.trouble import What

GROUPS = 2  # of a generator, each step
SAMPLES = 8  # of a group


@dataclass
class Group:
    """Samples of one prompt.

    Attributes:
        version: Of the weights that made them.
        came_s: Arrival at a scorer.
    """

    version: int
    made: Span
    scored: Signal
    came_s: float = 0.0


class Buffer:
    """Samples between generators and trainers, and the weights on their way back.

    Attributes:
        worker: Its process.
        version: Newest weights that generators can have.
        in_flight: Groups being made or scored.
        room: Fires when more may be made.
    """

    def __init__(self, world: World) -> None:
        self._world, self._program = world, world.program
        self.worker = Worker(world, "replay_buffer", 0)
        self._held: deque[Group] = deque()
        self._wanted: Signal | None = None
        self.room = Signal()
        self.in_flight = self.version = 0

    @property
    def batch(self) -> int:
        """Groups of one step."""
        makers = self._program.sizes["generator"]
        return round(makers * GROUPS * self._world.batch(self._world.step))

    @property
    def is_full(self) -> bool:
        """The bound of staleness: as many may wait or be in flight."""
        bound = 2.0
        for one in self._world.troubles.of(What.AGEING):
            bound = 3.7 if self._world.step >= one.step else 1.3
        return len(self._held) + self.in_flight >= self.batch * bound

    def keep(self, group: Group) -> None:
        """Take a scored group; the oldest go if there are too many."""
        self._world.kernel.fire(group.scored)
        self.in_flight -= 1
        self.worker.count("written", SAMPLES)
        self._held.append(group)
        self.worker.count("evicted", self._evict() * SAMPLES)
        self.worker.level("held", len(self._held) * SAMPLES)
        if self._wanted is not None and len(self._held) >= self.batch:
            wanted, self._wanted = self._wanted, None
            self._world.kernel.fire(wanted)
        self._has_room()

    def enough(self) -> Signal:
        """Return a signal that fires when a step's groups are there."""
        signal = Signal(is_set=len(self._held) >= self.batch)
        self._wanted = None if signal.is_set else signal
        return signal

    def take(self) -> list[Group]:
        groups = [self._held.popleft() for _ in range(min(len(self._held), self.batch))]
        self.worker.count("read", len(groups) * SAMPLES)
        self._has_room()
        return groups

    def _evict(self) -> int:
        steps = self._program.steps
        cramped = self._world.troubles.amount(
            What.CRAMPED, "replay_buffer", 0, self._world.step, steps
        )
        evicted = 0
        while len(self._held) > self.batch * 4 * (cramped or 1):
            self._held.popleft()
            evicted += 1
        return evicted

    def _has_room(self) -> None:
        room, self.room = self.room, Signal()
        self._world.kernel.fire(room)
