"""Exporter thread: at every interval it collects, queues and sends requests.

    collect() -> send queues -> endpoints
                 bounded, oldest out first

It owns the send queues and their transports. Training threads only leave requests, so they wait no
longer than the timeout that they pass to ``flush`` or ``shutdown``, and for a collection under way.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Final

from opentelemetry import context

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason
from otel_rl.worker.export.collect_schedule import CollectSchedule
from otel_rl.worker.export.flush_requests import FlushRequests
from otel_rl.worker.export.queues import MAX_QUEUE_BYTES, SendQueue, SendQueues
from otel_rl.worker.export.sender import Sender
from otel_rl.worker.export.transport import Transport
from otel_rl.worker.fork_barrier import Uncut
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.request_packer import Request
from otel_rl.worker.torch_cuda import leave_captures_alone

__all__ = ["Exporter", "Source"]

THREAD_NAME: Final = "otel-rl-export"

_LOST: Final = {
    Signal.METRICS: "measurements and events, and the latest totals of counters",
    Signal.TRACES: "spans",
}
_BEAT_EVERY_S: Final = 0.5
"""Heartbeat period of an idle worker, if the export interval is shorter. The bridge's worker
timeout is 15 s."""

_URGENT_BACKOFF_S: Final = 0.25
"""Pause between attempts while ``flush`` or ``shutdown`` waits."""

_DEVICE_PAUSE_S: Final = 0.02
"""Pause between looks at a device that ``flush`` or ``shutdown`` waits for."""

_COLLECTION_S: Final = 1.0
"""Time that ``shutdown`` allows a collection under way, to count its records. It needs only CPU."""


@dataclass(frozen=True, slots=True)
class Source:
    """Callbacks of an exporter. All but ``abandon`` are called on the exporter thread.

    Attributes:
        collect: Returns the records since the last call.
        abandon: Discards them, and returns the number of lost measurements.
        is_crowded: True triggers an early collection.
        flush_beside: Flushes another exporter once all awaited requests are delivered, before
            ``last``. Gets half of the remaining seconds, so that time remains for ``last`` even if
            the other endpoint is unreachable.
        close: Called once, last.
        heartbeat: Request to send if nothing was collected; None for none.
        unready_since_ns: Returns the time of the oldest record that a device has yet to compute, in
            ns since the Unix epoch; None for none.
        first: Requests to send first.
        last: Last request, sent after everything else has been delivered.
    """

    collect: Callable[[], list[Request]]
    abandon: Callable[[], int]
    is_crowded: Callable[[], bool]
    flush_beside: Callable[[float], object] = lambda _timeout_s: None
    close: Callable[[], None] = lambda: None
    heartbeat: Callable[[], Request | None] = lambda: None
    unready_since_ns: Callable[[], int | None] = lambda: None
    first: Callable[[], list[Request]] = list
    last: Callable[[], Request | None] = lambda: None


class Exporter:
    """Runs one daemon thread. Any other thread may call ``flush`` and ``shutdown``.

    Args:
        source: Provides the requests.
        open_transport: Called on the exporter thread, once per used signal, and again after a fork.
            See ``SendQueues``.
        interval_s: Between two collections.
        guard: Counts losses.
        max_queue_bytes: Per signal, of bodies that wait for its endpoint.
        main: Main signal: measurements or spans.
    """

    def __init__(
        self,
        source: Source,
        open_transport: Callable[[Signal, Transport | None], Transport],
        interval_s: float,
        guard: Guard,
        max_queue_bytes: Mapping[Signal, int] = MAX_QUEUE_BYTES,
        main: Signal = Signal.METRICS,
    ) -> None:
        self._main = main
        self._source = source
        self._open_transport = open_transport
        self._interval_s = interval_s
        self._guard = guard
        self._max_queue_bytes = max_queue_bytes
        self._abandoned: list[Transport] = []
        self._reset(is_reached=False)

    def _reset(self, *, is_reached: bool) -> None:
        self._requests = FlushRequests(lambda: self._sender.is_reached)
        self._has_delivered = False  # written by the thread before it ends, read after
        self._queues = SendQueues(self._opened, self._max_queue_bytes, self._main)
        self._sender = Sender(self._queues, self._guard, is_reached=is_reached)
        self._schedule = CollectSchedule(
            self._interval_s, is_waited_for=self._main is Signal.METRICS
        )
        self._next_beat_s = 0.0
        # What imports modules, runs callbacks or locks the SDK.
        self._uncut = Uncut()
        # Held while records are neither in the source nor in a queue.
        self._collecting = Lock()
        self._thread = Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def _opened(self, signal: Signal, beside: Transport | None) -> Transport:
        with self._uncut.work():
            return self._open_transport(signal, beside)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def restart_after_fork(self, *, is_ending: bool = True) -> None:
        """Start the child's own thread with empty queues: the parent sends the rest.

        Args:
            is_ending: False if the child goes on, though the exporter of its parent is ending.
        """
        # The transports are kept alive: closing them would write to the parent's connections.
        self._abandoned += self._queues.opened()
        was_stopping = is_ending and self._requests.is_stopping
        self._reset(is_reached=self._sender.is_reached)
        if not was_stopping:
            self.start()

    def flush(self, timeout_s: float) -> bool:
        """Send everything recorded before the call.

        Returns:
            True once the endpoint has answered for it, False if ``timeout_s`` passed first.
        """
        return self._requests.may_wait(self._thread) and self._requests.flush(timeout_s)

    def hurry(self) -> None:
        """Request an export without waiting: immediately, unless there were many such requests.

        For a process that may end soon without a chance to flush.
        """
        self._requests.hurry()

    def shutdown(self, timeout_s: float, unreached_timeout_s: float | None = None) -> bool:
        """Send everything and end the thread. Idempotent.

        Args:
            timeout_s: Maximum blocking time.
            unreached_timeout_s: The same for an endpoint that never answered; default
                ``timeout_s``.

        Returns:
            True if everything was delivered in time. Losses are counted and logged, also if Ctrl-C
            ends the wait.
        """
        first = self._requests.stop(
            timeout_s, timeout_s if unreached_timeout_s is None else unreached_timeout_s
        )
        interruption = ""
        try:
            if self._requests.may_wait(self._thread):
                self._requests.wait_for_end(timeout_s)
        except KeyboardInterrupt:
            interruption = "Ctrl-C"
            raise
        finally:
            lost, is_exact = self._abandon()
            delivered = self._has_delivered and is_exact and not lost
            # The latest totals of counters may be lost without being counted.
            if first and not delivered and (lost or self._main is Signal.METRICS):
                number = f"{lost}" if is_exact else f"at least {lost}"
                self._guard.drop(
                    DropReason.SHUTDOWN,
                    "The endpoint did not accept the last records of the process; lost are "
                    f"{number} {_LOST[self._main]} ({interruption or self._sender.last_failure}).",
                    lost,
                )
        return delivered

    def _abandon(self) -> tuple[int, bool]:
        """Return the number of records that are left, and whether no other one is."""
        has_ended = self._collecting.acquire(timeout=_COLLECTION_S)
        try:
            return self._queues.waiting() + self._source.abandon(), has_ended
        finally:
            if has_ended:
                self._collecting.release()

    def _run(self) -> None:
        # HTTP instrumentation must not trace or measure the exporter's own requests, and the thread
        # must not inherit the span of its starter.
        context.attach(
            context.set_value("suppress_instrumentation", value=True, context=context.Context())
        )
        with self._guard:
            with self._uncut.work():
                for request in self._source.first():
                    self._sender.put(request)
            self._send_queued()
            self._beat()  # from now on the receiver waits for this worker
        is_stopping = delivered = False
        while not is_stopping:
            wake_s = min(self._schedule.wake_s(), self._queues.wake_s())
            ticket, is_stopping, is_hurried = self._requests.wait(wake_s)
            if is_hurried:
                self._schedule.hurry()
            delivered = False
            with self._guard:
                if ticket or is_stopping:
                    delivered = self._deliver_all(report_losses=is_stopping)
                else:
                    is_due = self._schedule.is_due()
                    if is_due or self._source.is_crowded():
                        self._collect()
                    if is_due and not self._queues:
                        self._beat()
                    self._send_queued()
            if ticket:
                self._requests.answer(ticket, delivered=delivered)
        self._close(delivered=delivered)

    def _close(self, *, delivered: bool) -> None:
        """Send the last request, if everything else was delivered, and close the transports."""
        if not delivered:
            self._requests.end()  # closing may be slow, and the outcome is known
        self._has_delivered = delivered
        request = None
        with self._guard:
            with self._uncut.work():
                request = self._source.last() if delivered else None
            if request is not None:
                self._sender.put(request)
                self._send_all()
        for transport in self._queues.opened():
            with self._guard:
                transport.close()
        with self._guard:
            self._source.close()
        self._requests.end()

    def _collect(self) -> None:
        self._schedule.begin()
        failure: Exception | None = None
        with self._guard:
            leave_captures_alone()
        with self._uncut.work(), self._collecting:
            for request in self._source.collect():
                self._schedule.found_records()
                try:
                    self._sender.put(request)
                except Exception as error:  # noqa: BLE001  # it must not affect the other signal
                    failure = error
        if failure is not None:
            raise failure

    def _beat(self) -> None:
        """Send a heartbeat of an idle worker.

        Never queued: the next one replaces it.
        """
        now_s = time.monotonic()
        queue = self._queues.main
        if now_s < max(self._next_beat_s, queue.not_before_s):
            return
        request = self._source.heartbeat()
        if request is None:
            return
        self._next_beat_s = now_s + _BEAT_EVERY_S
        self._sender.send_alone(request)

    def _send_queued(self) -> None:
        """Send until no queue is ready, or another task is due."""
        while not (self._requests.is_urgent or self._schedule.is_due()):
            queue = self._queues.next(lambda queue: time.monotonic() >= queue.not_before_s)
            if queue is None:
                return
            self._sender.send_oldest(queue)

    def _deliver_all(self, *, report_losses: bool) -> bool:
        """Collect and send everything until the deadline. False on timeout.

        Args:
            report_losses: True also sends the losses counted meanwhile, for the last export.
        """
        if time.monotonic() >= self._requests.deadline_s():
            return False  # later records belong to another session
        known_losses = self._guard.drops.counts()
        begun_ns = time.time_ns()
        self._collect()
        delivered = self._send_all() and self._send_late(begun_ns)
        if delivered and report_losses and self._guard.drops.counts() != known_losses:
            self._collect()
            delivered = self._send_all()
        remaining_s = self._requests.deadline_s() - time.monotonic()
        if remaining_s > 0:
            self._source.flush_beside(remaining_s / 2)
        return delivered

    def _send_late(self, begun_ns: int) -> bool:
        """Send what was recorded before ``begun_ns``, as soon as devices have computed it.

        A device that hangs gets half of the remaining time: the rest is for what needs no device.
        """
        until_s = (time.monotonic() + self._requests.deadline_s()) / 2
        while self._is_unready(begun_ns):
            if time.monotonic() >= until_s:
                return False
            self._requests.pause(_DEVICE_PAUSE_S)
            self._collect()
            if not self._send_all():
                return False
        return True

    def _is_unready(self, begun_ns: int) -> bool:
        """Report whether a device has yet to compute a record of before ``begun_ns``."""
        oldest_ns = self._source.unready_since_ns()
        return oldest_ns is not None and oldest_ns < begun_ns

    def _send_all(self) -> bool:
        """Send until the queues are empty or the deadline passes."""
        failed: list[SendQueue] = []
        while self._queues and time.monotonic() < self._requests.deadline_s():
            queue = self._queues.next(lambda queue: queue not in failed)
            if queue is not None:
                if not self._sender.send_oldest(queue):
                    failed.append(queue)
                continue
            failed.clear()
            if self._source.is_crowded():
                self._collect()
            self._requests.pause(
                min(_URGENT_BACKOFF_S, self._requests.deadline_s() - time.monotonic())
            )
        return not self._queues
