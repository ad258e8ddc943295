"""Bounded store of the requests that wait for their endpoints: a lane for each signal.

    events        3 . 5 .      an endpoint, a bound and a back-off each, so that an unreachable
    measurements  1 2 4 6      endpoint does not block the other lanes
    spans         7 8

Events never overtake measurements, so that the end of a run comes last. Measurements overtake
events whose endpoint fails. Spans come after both.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Final

from otel_rl.signals import Signal
from otel_rl.worker.export.reply import Transport
from otel_rl.worker.otlp.requests import Request

__all__ = ["MAX_STORED_BYTES", "Lane", "Store", "StoredRequest"]

MAX_STORED_BYTES: Final[Mapping[Signal, int]] = {
    Signal.METRICS: 64 << 20,
    Signal.LOGS: 16 << 20,
    Signal.TRACES: 16 << 20,
}
"""About a quarter of an hour of 1,000 measurements per second, uncompressed."""

_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Request as it will be sent, possibly repeatedly.

    Attributes:
        number: Its position among the requests of all lanes.
        body: As prepared by the transport.
        measurements: Number of measurements, events or spans that are lost with it.
    """

    number: int
    body: bytes
    measurements: int


@dataclass(slots=True, eq=False)
class Lane:
    """Requests of one signal, with the state of its endpoint.

    Attributes:
        signal: The signal.
        max_bytes: Limit of the waiting bodies.
        requests: Oldest first.
        bytes: Of the bodies in ``requests``.
        failures: In a row.
        not_before_s: Time of the next attempt, on the monotonic clock.
        is_refused: True after the endpoint refused the signal.
    """

    signal: Signal
    max_bytes: int
    requests: deque[StoredRequest] = field(default_factory=deque)
    bytes: int = 0
    failures: int = 0
    not_before_s: float = 0.0
    is_refused: bool = False
    lock: Lock = field(default_factory=Lock)
    """Guards ``requests`` and ``bytes``."""

    def put(self, item: StoredRequest) -> int:
        """Add a request.

        Returns:
            Number of measurements in the oldest requests, dropped for lack of room.
        """
        dropped = 0
        with self.lock:
            self.requests.append(item)
            self.bytes += len(item.body)
            while self.bytes > self.max_bytes:
                oldest = self.requests.popleft()
                self.bytes -= len(oldest.body)
                dropped += oldest.measurements
        return dropped

    def take(self, item: StoredRequest) -> bool:
        """Remove the oldest request, if it is ``item``: it may have been dropped meanwhile."""
        with self.lock:
            is_there = bool(self.requests) and self.requests[0] is item
            if is_there:
                self.requests.popleft()
                self.bytes -= len(item.body)
            return is_there

    def waiting(self) -> int:
        """Return the number of waiting measurements, events or spans."""
        return sum(item.measurements for item in tuple(self.requests))

    def back_off(self, retry_after_s: float | None) -> None:
        """Make no attempt for a while, which doubles, and is never shorter than was asked for."""
        delay_s = min(_FIRST_BACKOFF_S * 2**self.failures, _MAX_BACKOFF_S)
        self.failures = min(self.failures + 1, 16)
        # Half of it is random, so that a thousand workers do not return at the same instant.
        delay_s *= random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, hides nothing
        self.not_before_s = time.monotonic() + max(delay_s, retry_after_s or 0.0)

    def has_answered(self) -> None:
        """Make the next attempt at once."""
        self.failures = 0
        self.not_before_s = 0.0


class Store:
    """Lanes of one process. Any thread may put a request; the sender's thread does the rest.

    Args:
        transports: Of the signals that are sent.
        max_bytes: Of the bodies that wait for one endpoint, by signal.
    """

    def __init__(
        self,
        transports: Mapping[Signal, Transport],
        max_bytes: Mapping[Signal, int] = MAX_STORED_BYTES,
    ) -> None:
        self.transports = transports
        self._numbers = count()
        self._lanes = {signal: Lane(signal, max_bytes[signal]) for signal in Signal}
        self.measurements = self._lanes[Signal.METRICS]
        self.events = self._lanes[Signal.LOGS]
        self.spans = self._lanes[Signal.TRACES]

    def put(self, request: Request) -> int:
        """Add a request to its lane. Returns as ``Lane.put``."""
        lane = self._lanes[request.signal]
        body = self.transports[request.signal].prepare(request.payload)
        return lane.put(StoredRequest(next(self._numbers), body, request.measurements))

    def next(self, is_ready: Callable[[Lane], bool]) -> Lane | None:
        """Return the lane whose oldest request is to be sent now, or None.

        Args:
            is_ready: True if a lane may be tried now.
        """
        return next(filter(is_ready, self._candidates()), None)

    def wake_s(self) -> float:
        """Return the time of the next attempt, on the monotonic clock."""
        return min((lane.not_before_s for lane in self._candidates()), default=float("inf"))

    def _candidates(self) -> list[Lane]:
        """Return the lanes that may be next, the preferred one first."""
        events, first = self.events, self.measurements
        spans = [self.spans] if self.spans.requests else []
        if not first.requests:
            return [events, *spans] if events.requests else spans
        if not events.requests or events.requests[0].number > first.requests[0].number:
            return [first, *spans]
        return [first, events, *spans] if events.failures else [events, first, *spans]
