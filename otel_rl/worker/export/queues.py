"""Send queue of each signal, in the order of creation.

    events        3 . 5 .      an endpoint, a bound and a back-off each, so that an unreachable
    measurements  1 2 4 6      endpoint does not block the other queue

Events never overtake measurements, so that the end of a run comes last. Measurements overtake
events whose endpoint fails. Spans have a ``SendQueues`` of their own, with one queue.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_rl.signals import Signal
from otel_rl.worker.export.transport import Transport
from otel_rl.worker.otlp.request_packer import Request

__all__ = ["MAX_QUEUE_BYTES", "QueuedRequest", "SendQueue", "SendQueues"]

MAX_QUEUE_BYTES: Final[Mapping[Signal, int]] = {
    Signal.METRICS: 64 << 20,
    Signal.LOGS: 16 << 20,
    Signal.TRACES: 16 << 20,
}
"""About a quarter of an hour of 1,000 measurements per second, uncompressed."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """Request as it will be sent, possibly repeatedly.

    Attributes:
        number: Its position among the requests of all queues.
        body: As prepared by the transport.
        measurements: Number of measurements, events or spans that are lost with it.
    """

    number: int
    body: bytes
    measurements: int


@dataclass(slots=True, eq=False)
class SendQueue:
    """Send queue of one signal, with the state of its endpoint.

    Attributes:
        signal: The signal.
        max_bytes: Limit of the waiting bodies.
        requests: Oldest first.
        bytes: Of the bodies in ``requests``.
        failures: In a row.
        not_before_s: Time of the next attempt, on the monotonic clock.
        transport: None until it is opened.
        is_refused: True after the endpoint refused the signal.
    """

    signal: Signal
    max_bytes: int
    requests: deque[QueuedRequest] = field(default_factory=deque)
    bytes: int = 0
    failures: int = 0
    not_before_s: float = 0.0
    transport: Transport | None = None
    is_refused: bool = False

    def take_oldest(self) -> QueuedRequest:
        """Remove and return the oldest request."""
        item = self.requests.popleft()
        self.bytes -= len(item.body)
        return item


class SendQueues:
    """Send queues of one process. Owned by the exporter thread; others may only read the counts.

    Args:
        open_transport: Called at the first use of a signal, with the transport of the other one, if
            that is open.
        max_queue_bytes: Per queue.
        main: Main signal: measurements or spans.
    """

    def __init__(
        self,
        open_transport: Callable[[Signal, Transport | None], Transport],
        max_queue_bytes: Mapping[Signal, int] = MAX_QUEUE_BYTES,
        main: Signal = Signal.METRICS,
    ) -> None:
        self._open_transport = open_transport
        self._last_number = 0
        self.main = SendQueue(main, max_queue_bytes[main])
        self.events = SendQueue(Signal.LOGS, max_queue_bytes[Signal.LOGS])
        self._queues = {queue.signal: queue for queue in (self.main, self.events)}

    def __bool__(self) -> bool:
        """Report whether a request waits."""
        return any(queue.requests for queue in self._queues.values())

    def waiting(self) -> int:
        """Return the number of waiting measurements and events, or spans."""
        return sum(
            item.measurements for queue in self._queues.values() for item in tuple(queue.requests)
        )

    def put(self, request: Request) -> Sequence[QueuedRequest]:
        """Add ``request`` to its queue.

        Returns:
            The oldest requests of the queue, dropped for lack of room.
        """
        queue = self._queues[request.signal]
        body = self.transport(queue).prepare(request.payload)
        self._last_number += 1
        queue.requests.append(QueuedRequest(self._last_number, body, request.measurements))
        queue.bytes += len(body)
        dropped = []
        while queue.bytes > queue.max_bytes:
            dropped.append(queue.take_oldest())
        return dropped

    def next(self, is_ready: Callable[[SendQueue], bool]) -> SendQueue | None:
        """Return the queue whose oldest request is to be sent now, or None.

        Args:
            is_ready: True if a queue may be tried now.
        """
        return next(filter(is_ready, self._candidates()), None)

    def wake_s(self) -> float:
        """Return the time of the next attempt, on the monotonic clock."""
        return min((queue.not_before_s for queue in self._candidates()), default=float("inf"))

    def _candidates(self) -> list[SendQueue]:
        """Return the queues that may be next, the preferred one first."""
        events, main = self.events, self.main
        if not main.requests:
            return [events] if events.requests else []
        if not events.requests or events.requests[0].number > main.requests[0].number:
            return [main]
        return [main, events] if events.failures else [events, main]

    def transport(self, queue: SendQueue) -> Transport:
        """Return the transport of ``queue``, opened at the first use."""
        if queue.transport is None:
            other = self.events if queue is self.main else self.main
            queue.transport = self._open_transport(queue.signal, other.transport)
        return queue.transport

    def opened(self) -> list[Transport]:
        """Return the open transports."""
        return [queue.transport for queue in self._queues.values() if queue.transport is not None]
