"""The thread that collects requests at every interval, stores them and sends them.

    collect() -> store -> endpoints
                 bounded, oldest out first

The store has a lane for each signal:

    events        3 . 5 .      an endpoint, a bound and a back-off each, so that an unreachable
    measurements  1 2 4 6      endpoint does not block the other lanes
    spans         7 8

Events never overtake measurements, so that the end of a run comes last. Measurements overtake
events whose endpoint fails. Spans come after both.

Training threads only store requests, so they wait no longer than the timeout that they pass to
``flush`` or ``shutdown``, and for a collection under way.
"""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Condition, Lock, Thread, current_thread
from typing import Final, NamedTuple

from opentelemetry import context

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason
from otel_rl.worker.export.transport import Outcome, Reply, Transport
from otel_rl.worker.forks import Uncut
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import Request
from otel_rl.worker.settings import Protocol, SignalSettings
from otel_rl.worker.tensors import leave_captures_alone

MAX_STORED_BYTES: Final[Mapping[Signal, int]] = {
    Signal.METRICS: 64 << 20,
    Signal.LOGS: 16 << 20,
    Signal.TRACES: 16 << 20,
}
"""About a quarter of an hour of 1,000 measurements per second, uncompressed."""

_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0

THREAD_NAME: Final = "otel-rl-export"

_MISSING: Final = {
    Signal.LOGS: "The endpoint accepts no log events: {}. The run lacks config, samples and "
    "the workers' ends; measurements are sent separately.",
    Signal.TRACES: "The endpoint accepts no spans: {}. This worker has no traces; "
    "measurements are sent separately. OTEL_TRACES_EXPORTER=none disables them.",
}
"""Warning for an endpoint that does not accept the signal."""

_UNKNOWN_SENDER: Final = (
    "The endpoint does not accept the token of this worker, or got none: {}. What the worker "
    "reports is dropped. Set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN."
)

_URGENT_BACKOFF_S: Final = 0.25
"""Pause between attempts while ``flush`` or ``shutdown`` waits."""

_BEAT_EVERY_S: Final = 0.5
"""Heartbeat period of an idle worker, if the export interval is shorter. The bridge's worker
timeout is 15 s."""

_DEVICE_PAUSE_S: Final = 0.02
"""Pause between looks at a device that ``flush`` or ``shutdown`` waits for."""

_COLLECTION_S: Final = 1.0
"""Time that ``shutdown`` allows a collection under way, to count its records. It needs only CPU."""

_FIRST_LOOK_S: Final = 0.1
"""The same before the first collection. A receiver waits for the workers that it knows, so first
measurements must not wait long."""


def open_transport(signal: SignalSettings, beside: Sequence[Transport] = ()) -> Transport:
    """Open the transport that ``signal`` asks for. Loads the library of its protocol.

    Signals with the same place share a connection of the transports ``beside``: a bridge has as
    many connections as it has workers, and gRPC survives a fork with one only.
    """
    if signal.inbox is not None:
        from otel_rl.worker.export.inbox import InboxTransport  # others have an endpoint

        return InboxTransport(signal.signal, signal.inbox)
    if signal.protocol is Protocol.GRPC:
        from otel_rl.worker.export.grpc_transport import GrpcTransport

        return GrpcTransport(signal, beside)
    from otel_rl.worker.export.http_transport import HttpTransport

    return HttpTransport(signal, beside)


def open_transports(signals: Iterable[SignalSettings]) -> Mapping[Signal, Transport]:
    opened: dict[Signal, Transport] = {}
    for signal in signals:
        if signal.enabled:
            opened[signal.signal] = open_transport(signal, tuple(opened.values()))
    return opened


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Request as it will be sent, possibly repeatedly.

    Attributes:
        number: Position of the request among those of all lanes.
        body: Body, as the transport has prepared it.
        measurements: Number of measurements, events or spans that would be lost with the request.
    """

    number: int
    body: bytes
    measurements: int


@dataclass(slots=True, eq=False)
class Lane:
    """Requests of one signal, with the state of its endpoint.

    Attributes:
        max_bytes: Limit of the waiting bodies.
        requests: Waiting requests, oldest first.
        bytes: Size of the bodies in ``requests``.
        failures: Number of failures in a row.
        not_before_s: Time of the next attempt, on the monotonic clock.
        is_refused: Whether the endpoint has refused the signal.
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
        """Add a request. Returns how many measurements of the oldest requests are lost for it."""
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
        """Remove ``item`` if it still is the oldest request: it may have been dropped meanwhile."""
        with self.lock:
            is_there = bool(self.requests) and self.requests[0] is item
            if is_there:
                self.requests.popleft()
                self.bytes -= len(item.body)
            return is_there

    def waiting(self) -> int:
        return sum(item.measurements for item in tuple(self.requests))

    def back_off(self, retry_after_s: float | None) -> None:
        """Pause for a time that doubles with each failure, and is at least ``retry_after_s``."""
        delay_s = min(_FIRST_BACKOFF_S * 2**self.failures, _MAX_BACKOFF_S)
        self.failures = min(self.failures + 1, 16)
        # Half of it is random, so that a thousand workers do not return at the same instant.
        delay_s *= random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, hides nothing
        self.not_before_s = time.monotonic() + max(delay_s, retry_after_s or 0.0)

    def has_answered(self) -> None:
        self.failures = 0
        self.not_before_s = 0.0


class Store:
    """Lanes of one process. Any thread may put requests; the sender's thread does the rest."""

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
        """Return the ready lane whose oldest request is to be sent now, if any."""
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


@dataclass(frozen=True, slots=True)
class Source:
    """Callbacks of a sender, which calls all but ``abandon`` on its thread.

    Attributes:
        collect: Returns the records since the last call.
        abandon: Discards the records. Returns the number of lost measurements and events, and of
            spans.
        is_crowded: Returns whether to collect early.
        close: Called once, after all other callbacks.
        heartbeat: Returns the request to send if nothing was collected; None for none.
        unready_since_ns: Returns the time of the oldest record that a device has yet to compute, in
            ns since the Unix epoch; None for none.
        first: Returns requests to send first.
        last: Returns the last request, sent after everything else has been delivered.
        spans_go_elsewhere: Whether spans have an endpoint of their own. At the end ``last`` then
            goes before them: an attempt to an endpoint that hangs takes longer than the end may.
        look_every_s: Seconds between two calls of ``is_crowded``, if the export interval is longer.
    """

    collect: Callable[[], list[Request]]
    abandon: Callable[[], tuple[int, int]]
    is_crowded: Callable[[], bool]
    close: Callable[[], None] = lambda: None
    heartbeat: Callable[[], Request | None] = lambda: None
    unready_since_ns: Callable[[], int | None] = lambda: None
    first: Callable[[], list[Request]] = list
    last: Callable[[], Request | None] = lambda: None
    spans_go_elsewhere: bool = False
    look_every_s: float = 1.0


class _Stop(NamedTuple):
    """Time of the monotonic clock at which a stop was asked for, and how long callers wait."""

    begun_s: float
    timeout_s: float
    silent_s: float
    unreached_s: float


_GIVEN_UP: Final = _Stop(0.0, 0.0, 0.0, 0.0)
"""Once its callers have gone, whatever is answered later: new records are another session's."""


class Sender:
    """Runs one daemon thread. Other threads may ``put``, ``flush`` and ``shutdown``.

    A request is sent again unchanged until its endpoint has answered, because the answer may have
    been lost.

    Args:
        source: Callbacks that provide the requests.
        open_transports: Called at once, and again after a fork. No library is loaded later: an
            import at the end of a process that Ctrl-C has ended would change its exit status.
        interval_s: Seconds between two collections.
        guard: Counts lost measurements and events.
        spans_guard: Counts lost spans.
        max_stored_bytes: Bound for each signal on bodies that wait for its endpoint.
    """

    def __init__(
        self,
        source: Source,
        open_transports: Callable[[], Mapping[Signal, Transport]],
        interval_s: float,
        guard: Guard,
        *,
        spans_guard: Guard,
        max_stored_bytes: Mapping[Signal, int] = MAX_STORED_BYTES,
    ) -> None:
        self._source = source
        self._open_transports = open_transports
        self._interval_s = interval_s
        self._guard = guard
        self._spans_guard = spans_guard
        self._max_stored_bytes = max_stored_bytes
        self._abandoned: list[Transport] = []
        # True once somebody was there, False once nobody was; None before the first attempt.
        self._is_reached: bool | None = None
        self._reset()

    def _reset(self) -> None:
        # _changed guards the calls of other threads, down to the next blank line. Flushes are
        # numbered, so that one answer may serve several callers.
        self._changed = Condition()
        self._wanted = self._done = self._delivered = 0
        self._until_s = 0.0
        self._stop: _Stop | None = None
        self._heard_s = 0.0
        self._has_ended = self._has_delivered = False

        self._store = Store(self._open_transports(), self._max_stored_bytes)
        self._last_failure = "no answer yet"
        self._next_s = time.monotonic() + self._interval_s
        self._next_beat_s = 0.0
        self._look_every_s = _FIRST_LOOK_S
        # What runs callbacks or locks the SDK.
        self._uncut = Uncut()
        # Held while records are neither in the source nor in the store.
        self._collecting = Lock()
        self._thread = Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def restart_after_fork(self) -> None:
        """Start the child's own thread with an empty store: the parent sends the rest.

        A child of a worker that is ending has no thread, and ends, too.
        """
        # The transports are kept alive: closing them would write to the parent's connections.
        self._abandoned += self._store.transports.values()
        was_stopping = self._stop is not None
        self._reset()
        if not was_stopping:
            self.start()

    def put(self, request: Request) -> None:
        """Store a request; the oldest requests of its signal make room for it."""
        lost = self._store.put(request)
        if lost:
            guard, noun = self._losses(request.signal)
            guard.drop(
                DropReason.QUEUE_FULL,
                "The endpoint has been unavailable for longer than the send queue lasts; the "
                f"oldest {noun} are dropped.",
                lost,
            )

    def flush_spans(self, timeout_s: float) -> bool:
        """Do the same as ``flush``; return True once the endpoint has answered for spans, too."""
        return self.flush(timeout_s) and not self._store.spans.requests

    def flush(self, timeout_s: float) -> bool:
        """Send everything recorded before the call.

        Spans get half of the time that remains after the rest.

        Returns:
            True once the endpoint has answered for measurements and events, False if ``timeout_s``
            passed first.
        """
        if not self._may_wait():
            return False
        with self._changed:
            self._wanted += 1
            ticket = self._wanted
            self._until_s = max(self._until_s, time.monotonic() + timeout_s)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= ticket or self._has_ended, timeout_s)
            return self._delivered >= ticket

    def shutdown(
        self, timeout_s: float, *, silent_s: float | None = None, unreached_s: float | None = None
    ) -> bool:
        """Send everything and end the thread. Idempotent; the first call sets the deadlines.

        Args:
            timeout_s: Maximum blocking time.
            silent_s: Maximum time since the last answer of the endpoint; default ``timeout_s``.
            unreached_s: Maximum time where no endpoint has ever listened; default ``silent_s``.

        Returns:
            True if everything was delivered in time. Losses are counted and logged, also if Ctrl-C
            ends the wait.
        """
        silent_s = timeout_s if silent_s is None else silent_s
        unreached_s = silent_s if unreached_s is None else unreached_s
        with self._changed:
            is_first = self._stop is None
            if is_first:
                self._stop = _Stop(time.monotonic(), timeout_s, silent_s, unreached_s)
            self._changed.notify_all()
        interruption = ""
        try:
            if self._may_wait():
                until_s = time.monotonic() + timeout_s
                with self._changed:
                    while (left_s := min(until_s, self._deadline_s()) - time.monotonic()) > 0:
                        if self._changed.wait_for(lambda: self._has_ended, left_s):
                            break
        except KeyboardInterrupt:
            interruption = "Ctrl-C"
            raise
        finally:
            self._stop = _GIVEN_UP
            lost, lost_spans, is_exact = self._abandon()
            delivered = self._has_delivered and is_exact and not lost
            why = interruption or self._last_failure
            refused = "The endpoint did not accept the last records of the process; lost are "
            # The latest totals of counters may be lost without being counted.
            if is_first and not delivered:
                what = "measurements and events, and the latest totals of counters"
                number = f"{lost}" if is_exact else f"at least {lost}"
                self._guard.drop(DropReason.SHUTDOWN, f"{refused}{number} {what} ({why}).", lost)
            if is_first and lost_spans:
                message = f"{refused}{lost_spans} spans ({why})."
                self._spans_guard.drop(DropReason.SHUTDOWN, message, lost_spans)
        return delivered

    def _losses(self, signal: Signal) -> tuple[Guard, str]:
        if signal is Signal.TRACES:
            return self._spans_guard, "spans"
        return self._guard, "measurements"

    def _may_wait(self) -> bool:
        is_other = current_thread() is not self._thread
        return is_other and self._thread.is_alive() and not self._has_ended

    def _abandon(self) -> tuple[int, int, bool]:
        has_ended = self._collecting.acquire(timeout=_COLLECTION_S)
        try:
            left, spans = self._source.abandon()
            store = self._store
            left += store.measurements.waiting() + store.events.waiting()
            return left, spans + store.spans.waiting(), has_ended
        finally:
            if has_ended:
                self._collecting.release()

    # Below: the thread.

    def _run(self) -> None:
        # HTTP instrumentation must not trace or measure the sender's own requests, and the thread
        # must not inherit the span of its starter.
        context.attach(
            context.set_value("suppress_instrumentation", value=True, context=context.Context())
        )
        with self._guard:
            with self._uncut.work(), self._collecting:
                # A thread that begins late takes nothing of the session that has followed its own.
                for request in self._source.first() if self._stop is not _GIVEN_UP else ():
                    self.put(request)
            self._send_stored()
            if not self._is_urgent:
                self._beat()  # from now on the receiver waits for this worker
        store = self._store
        is_stopping = delivered = False
        while not is_stopping:
            ticket, is_stopping = self._wait_for_work()
            delivered = False
            with self._guard:
                if ticket or is_stopping:
                    delivered = self._deliver_all(ticket, is_last=is_stopping)
                else:
                    is_due = self._is_due()
                    if is_due or self._source.is_crowded():
                        self._collect()
                    if is_due and not (store.measurements.requests or store.events.requests):
                        self._beat()
                    self._send_stored()
            with self._changed:
                self._done = max(self._done, ticket)
                self._changed.notify_all()
        self._close(delivered=delivered)

    def _wait_for_work(self) -> tuple[int, bool]:
        """Sleep until there is work. Returns the last flush to answer, or 0, and whether to end."""
        now_s = time.monotonic()
        wake_s = min(self._next_s, now_s + self._look_every_s, self._store.wake_s())
        with self._changed:
            self._changed.wait_for(lambda: self._is_urgent, max(0.0, wake_s - now_s))
            return self._wanted if self._wanted > self._done else 0, self._stop is not None

    @property
    def _is_urgent(self) -> bool:
        return self._stop is not None or self._wanted > self._done

    def _deadline_s(self) -> float:
        if self._stop is None:
            return self._until_s
        begun_s, timeout_s, silent_s, unreached_s = self._stop
        if self._is_reached is False:
            return begun_s + unreached_s
        return min(begun_s + timeout_s, max(begun_s, self._heard_s) + silent_s)

    def _pause(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait(max(0.0, pause_s))

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_s

    def _close(self, *, delivered: bool) -> None:
        """Send the last request, if everything else was delivered, and close the transports."""
        if not delivered:
            self._end()  # closing may be slow, and the outcome is known
        self._has_delivered = delivered
        request = None
        with self._guard:
            with self._uncut.work():
                request = self._source.last() if delivered else None
            if request is not None:
                self.put(request)
                self._send_all()
            if self._source.spans_go_elsewhere:
                self._send_all(spans=True)
        for transport in self._store.transports.values():
            with self._guard:
                transport.close()
        with self._guard:
            self._source.close()
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _collect(self) -> None:
        self._next_s = time.monotonic() + self._interval_s
        failure: Exception | None = None
        with self._guard:
            leave_captures_alone()
        with self._uncut.work(), self._collecting:
            if self._stop is _GIVEN_UP:
                return
            for request in self._source.collect():
                self._look_every_s = self._source.look_every_s  # the receiver knows this process
                try:
                    self.put(request)
                except Exception as error:  # noqa: BLE001  # it must not affect the other signal
                    failure = error
        if failure is not None:
            raise failure

    def _beat(self) -> None:
        """Send a heartbeat of an idle worker.

        It is not stored, because the next one replaces it.
        """
        now_s = time.monotonic()
        lane = self._store.measurements
        if now_s < max(self._next_beat_s, lane.not_before_s):
            return
        request = self._source.heartbeat()
        if request is None:
            return
        self._next_beat_s = now_s + _BEAT_EVERY_S
        transport = self._store.transports[lane.signal]
        reply = transport.send(transport.prepare(request.payload))
        self._has_heard(reply)
        if reply.outcome is Outcome.RETRY:
            self._back_off(lane, reply)
        elif reply.wants_token:
            self._guard.warn("token", _UNKNOWN_SENDER.format(reply.message))
        elif reply.outcome is Outcome.REFUSED:
            self._guard.warn("refused", f"The endpoint refuses this worker: {reply.message}.")

    def _deliver_all(self, ticket: int, *, is_last: bool) -> bool:
        """Collect and send everything until the deadline. Returns False on timeout.

        ``ticket`` is the flush that this call answers. The last delivery also sends losses that
        were counted meanwhile.
        """
        if time.monotonic() >= self._deadline_s():
            return False
        known_losses = self._guard.drops.counts()
        begun_ns = time.time_ns()
        self._collect()
        delivered = self._send_all() and self._send_late(begun_ns)
        if delivered and is_last and self._guard.drops.counts() != known_losses:
            self._collect()
            delivered = self._send_all()
        if delivered:
            self._delivered = max(self._delivered, ticket)  # whatever comes of the spans
        if not (is_last and self._source.spans_go_elsewhere):
            # Half of what remains is for the last request.
            self._send_all(spans=True, until_s=(time.monotonic() + self._deadline_s()) / 2)
        return delivered

    def _send_late(self, begun_ns: int) -> bool:
        """Send what was recorded before ``begun_ns``, as soon as devices have computed it.

        A device that hangs gets half of the remaining time: the rest is for data that needs no
        device.
        """
        until_s = (time.monotonic() + self._deadline_s()) / 2
        while (oldest_ns := self._source.unready_since_ns()) is not None and oldest_ns < begun_ns:
            if time.monotonic() >= until_s:
                return False
            self._pause(_DEVICE_PAUSE_S)
            self._collect()
            if not self._send_all():
                return False
        return True

    def _send_stored(self) -> None:
        """Send until no lane is ready, or another task is due."""
        while not (self._is_urgent or self._is_due()):
            lane = self._store.next(lambda lane: time.monotonic() >= lane.not_before_s)
            if lane is None:
                return
            self._send_oldest(lane)

    def _send_all(self, *, spans: bool = False, until_s: float = math.inf) -> bool:
        """Send all measurements and events, or all spans, for as long as callers wait."""
        store = self._store
        lanes = (store.spans,) if spans else (store.measurements, store.events)
        failed: list[Lane] = []
        while (
            any(lane.requests for lane in lanes)
            and (left_s := min(until_s, self._deadline_s()) - time.monotonic()) > 0
        ):
            found = store.next(lambda lane: lane in lanes and lane not in failed)
            if found is not None:
                if not self._send_oldest(found):
                    failed.append(found)
                continue
            failed.clear()
            if self._source.is_crowded():
                self._collect()
            self._pause(min(_URGENT_BACKOFF_S, left_s))
        return not any(lane.requests for lane in lanes)

    def _send_oldest(self, lane: Lane) -> bool:
        """Make one attempt. Returns False if the endpoint cannot accept the request now."""
        item = lane.requests[0]
        try:
            reply = self._store.transports[lane.signal].send(item.body)
        except Exception as error:  # noqa: BLE001  # a defect must neither spin nor lose the lane
            self._guard.warn("internal:send", "otel_rl failed to send, retrying.", error=error)
            reply = Reply(Outcome.RETRY, type(error).__name__, unreachable=True)
        self._has_heard(reply)
        if reply.outcome is Outcome.RETRY:
            self._back_off(lane, reply)
            return False
        lane.has_answered()
        self._last_failure = "too late"
        if not lane.take(item):
            return True  # it was dropped for lack of room during the attempt, and counted
        guard, noun = self._losses(lane.signal)
        if reply.outcome is Outcome.REFUSED:
            self._refused(lane, reply, item.measurements)
        elif reply.rejected:
            guard.drop(
                DropReason.REJECTED,
                f"The endpoint did not accept {reply.rejected} {noun}: {reply.message}",
                reply.rejected,
            )
        elif reply.message:
            guard.warn("endpoint", f"The endpoint warns: {reply.message}")
        return True

    def _has_heard(self, reply: Reply) -> None:
        self._is_reached = bool(self._is_reached) or not reply.unreachable
        if reply.outcome is not Outcome.RETRY:  # it works, however slowly
            self._heard_s = time.monotonic()

    def _refused(self, lane: Lane, reply: Reply, lost: int) -> None:
        guard, _ = self._losses(lane.signal)
        guard.drops.add(DropReason.REJECTED, lost)
        missing = _MISSING.get(lane.signal)
        if reply.wants_token:  # the same for all signals
            self._guard.warn("token", _UNKNOWN_SENDER.format(reply.message))
        elif missing is None:
            guard.warn(
                DropReason.REJECTED,
                f"The endpoint refuses measurements: {reply.message}. They are dropped.",
            )
        elif not lane.is_refused:  # logged once: the endpoint's configuration rarely changes
            lane.is_refused = True
            guard.warn(f"no_{lane.signal}", missing.format(reply.message))

    def _back_off(self, lane: Lane, reply: Reply) -> None:
        self._last_failure = reply.message
        lane.back_off(reply.retry_after_s)
        self._guard.warn("retry", f"The endpoint is unavailable, retrying: {reply.message}.")
