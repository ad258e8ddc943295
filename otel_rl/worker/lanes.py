"""What waits for its endpoint: a lane of requests for each signal, in the order of their making.

    events        3 . 5 .      an endpoint, a bound and a back-off each, so that one that is away
    measurements  1 2 4 6      keeps nothing of the other lane

Events never overtake measurements, so that an end is the last that one hears of what has ended.
Measurements overtake events whose endpoint fails. Spans have lanes of their own, with one lane.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_rl.records import Signal
from otel_rl.worker.encode import Request
from otel_rl.worker.transport import Transport

__all__ = ["MAX_QUEUE_BYTES", "Lane", "Lanes", "Queued"]

MAX_QUEUE_BYTES: Final[Mapping[Signal, int]] = {
    Signal.METRICS: 64 << 20,
    Signal.LOGS: 16 << 20,
    Signal.TRACES: 16 << 20,
}
"""For measurements about a quarter of an hour of 1,000 a second, uncompressed."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A request as it will be sent, any number of times.

    Attributes:
        number: Its place among the requests of all lanes.
        body: As the transport prepared it.
        measurements: How many measurements, events or spans are lost if it is.
    """

    number: int
    body: bytes
    measurements: int


@dataclass(slots=True, eq=False)
class Lane:
    """The requests of one signal, and how its endpoint fares.

    Attributes:
        signal: Which.
        max_bytes: Of bodies that wait.
        queue: Oldest first.
        bytes: Of the bodies in ``queue``.
        failures: In a row.
        not_before_s: On the monotonic clock, when to try again.
        transport: Once it has been opened.
        is_refused: Whether the endpoint has said that it takes no such signal.
    """

    signal: Signal
    max_bytes: int
    queue: deque[Queued] = field(default_factory=deque)
    bytes: int = 0
    failures: int = 0
    not_before_s: float = 0.0
    transport: Transport | None = None
    is_refused: bool = False

    def take_oldest(self) -> Queued:
        """Take the oldest request out."""
        item = self.queue.popleft()
        self.bytes -= len(item.body)
        return item


class Lanes:
    """The lanes of one process. The exporter thread's; others may only ask what waits.

    Args:
        open_transport: Called at the first use of a signal, with the transport of the other one, if
            that is open.
        max_queue_bytes: Of each lane.
        main: What there is most of: measurements or spans.
    """

    def __init__(
        self,
        open_transport: Callable[[Signal, Transport | None], Transport],
        max_queue_bytes: Mapping[Signal, int] = MAX_QUEUE_BYTES,
        main: Signal = Signal.METRICS,
    ) -> None:
        self._open_transport = open_transport
        self._last_number = 0
        self.main = Lane(main, max_queue_bytes[main])
        self.events = Lane(Signal.LOGS, max_queue_bytes[Signal.LOGS])
        self._lanes = {lane.signal: lane for lane in (self.main, self.events)}

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return any(lane.queue for lane in self._lanes.values())

    def waiting(self) -> int:
        """How many measurements and events, or spans, wait."""
        return sum(item.measurements for lane in self._lanes.values() for item in tuple(lane.queue))

    def put(self, request: Request) -> Sequence[Queued]:
        """Let ``request`` wait.

        Returns:
            The oldest ones of the lane for which there is no room any more.
        """
        lane = self._lanes[request.signal]
        body = self.transport(lane).prepare(request.payload)
        self._last_number += 1
        lane.queue.append(Queued(self._last_number, body, request.measurements))
        lane.bytes += len(body)
        dropped = []
        while lane.bytes > lane.max_bytes:
            dropped.append(lane.take_oldest())
        return dropped

    def next(self, is_ready: Callable[[Lane], bool]) -> Lane | None:
        """The lane whose oldest request is to be sent now, if there is one.

        Args:
            is_ready: Whether a lane may be tried now.
        """
        return next(filter(is_ready, self._candidates()), None)

    def wake_s(self) -> float:
        """On the monotonic clock, when the next request that waits may be tried."""
        return min((lane.not_before_s for lane in self._candidates()), default=float("inf"))

    def _candidates(self) -> list[Lane]:
        """The lanes whose turn it may be, the one to be preferred first."""
        events, main = self.events, self.main
        if not main.queue:
            return [events] if events.queue else []
        if not events.queue or events.queue[0].number > main.queue[0].number:
            return [main]
        return [main, events] if events.failures else [events, main]

    def transport(self, lane: Lane) -> Transport:
        """The transport of ``lane``, opened if it was not."""
        if lane.transport is None:
            other = self.events if lane is self.main else self.main
            lane.transport = self._open_transport(lane.signal, other.transport)
        return lane.transport

    def opened(self) -> list[Transport]:
        """The transports that have been opened."""
        return [lane.transport for lane in self._lanes.values() if lane.transport is not None]
