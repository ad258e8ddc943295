"""The exporter thread: every interval it collects, queues, and sends what is queued.

    collect() -> lanes of requests -> endpoints
                 bounded, oldest out first

It owns the lanes and their transports. Training threads only set flags under the condition, so the
longest they ever wait is the timeout they gave to ``flush`` or ``shutdown``.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Final

from opentelemetry import context

from otel_rl.records import Signal
from otel_rl.worker.drops import DropReason
from otel_rl.worker.encode import Request
from otel_rl.worker.guard import Guard
from otel_rl.worker.lanes import MAX_QUEUE_BYTES, Lane, Lanes
from otel_rl.worker.transport import Outcome, Reply, Transport

__all__ = ["Exporter", "Source"]

THREAD_NAME: Final = "otel-rl-export"

_NOUNS: Final = {Signal.METRICS: "measurements", Signal.TRACES: "spans"}
_LOST: Final = {
    Signal.METRICS: "measurements and events, and the latest totals of counters",
    Signal.TRACES: "spans",
}
_MISSING: Final = {
    Signal.LOGS: "The endpoint takes no log events: {}. The run goes without config, samples and "
    "the workers' ends; measurements are not affected.",
    Signal.TRACES: "The endpoint takes no spans: {}. There are no traces of this worker; "
    "measurements are not affected. OTEL_TRACES_EXPORTER=none makes none.",
}
"""What is missing where an endpoint takes no such signal."""

_BEAT_EVERY_S: Final = 0.5
"""With a short export interval, how often an idle worker says that it lives. A bridge takes one for
dead after 15 s."""

_LOOK_EVERY_S: Final = 1.0
"""With a long export interval, how often the fill of the buffer is looked at."""

_FIRST_LOOK_S: Final = 0.1
"""The same while nothing was ever collected. A receiver waits for the workers that it knows, so
what is measured first must not wait long."""

_HURRIES: Final = 4
"""In one interval, how many exports are made at once because somebody hurries; who hurries more
often waits for the rest of it."""

_MAX_HURRY_S: Final = 4.0
"""The same within so long if the export interval is longer."""

_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0
_URGENT_BACKOFF_S: Final = 0.25
"""Between attempts while somebody waits in ``flush`` or ``shutdown``."""


@dataclass(frozen=True, slots=True)
class Source:
    """What an exporter exports. All but ``abandon`` are called on the exporter thread.

    Attributes:
        collect: Takes what was recorded since the last call.
        abandon: Forgets it, and returns how many measurements that were.
        is_crowded: Whether to collect before the interval is over.
        flush_beside: Called when all was delivered that somebody waits for, before the goodbye:
            what another exporter has belongs before that. With half of the seconds that are left,
            so that if that one's endpoint is away there is time for the goodbye and the answer.
        close: Called once, last.
        heartbeat: What to send if there was nothing to collect; None to be silent.
        greeting: What to send before anything else.
        goodbye: What to send when everything else has been delivered and nothing will follow.
    """

    collect: Callable[[], list[Request]]
    abandon: Callable[[], int]
    is_crowded: Callable[[], bool]
    flush_beside: Callable[[float], object] = lambda _timeout_s: None
    close: Callable[[], None] = lambda: None
    heartbeat: Callable[[], Request | None] = lambda: None
    greeting: Callable[[], list[Request]] = list
    goodbye: Callable[[], Request | None] = lambda: None


class Exporter:
    """Runs one daemon thread. ``flush`` and ``shutdown`` may be called from any other thread.

    Args:
        source: What to export.
        open_transport: Called on the exporter thread, once for each signal that there is something
            of, and again after a fork. See ``Lanes``.
        interval_s: Between two collections.
        guard: Counts what is lost.
        max_queue_bytes: Of bodies that wait for the endpoint of a signal.
        main: What is exported mostly: measurements, or spans.
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
        self._noun = _NOUNS[main]
        self._source = source
        self._open_transport = open_transport
        self._interval_s = interval_s
        self._guard = guard
        self._max_queue_bytes = max_queue_bytes
        self._abandoned: list[Transport] = []
        # Whether anybody has ever listened there. A forked child knows it from its parent.
        self._is_reached = False
        self._reset()

    def _reset(self) -> None:
        # _condition guards the nine below; everything after them belongs to the thread.
        self._condition = Condition()
        self._is_hurried = False
        self._flush_wanted = 0
        self._flush_done = 0
        self._flush_delivered = 0
        self._flush_until_s = 0.0
        self._stop_at_s: float | None = None
        self._stop_unreached_at_s = 0.0
        self._has_delivered = False
        self._has_ended = False
        self._lanes = Lanes(self._open_transport, self._max_queue_bytes, self._main)
        self._last_failure = "no answer yet"
        self._next_collect_s = 0.0
        self._collected_s: deque[float] = deque([0.0] * _HURRIES, _HURRIES)  # the last times
        self._next_beat_s = 0.0
        is_waited_for = self._main is Signal.METRICS
        self._look_every_s = _FIRST_LOOK_S if is_waited_for else _LOOK_EVERY_S
        self._thread = Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def restart_after_fork(self) -> None:
        """Start a thread of the child's own, with an empty queue: the parent sends the rest."""
        # Kept alive on purpose: closing it here would speak on the parent's connections.
        self._abandoned += self._lanes.opened()
        was_stopping = self._stop_at_s is not None
        self._reset()
        if not was_stopping:
            self.start()

    def flush(self, timeout_s: float) -> bool:
        """Send all that was recorded before the call.

        Returns:
            True once the endpoint has answered for it, False if ``timeout_s`` passed first.
        """
        with self._condition:
            if not self._is_waitable():
                return False
            self._flush_wanted += 1
            ticket = self._flush_wanted
            self._flush_until_s = max(self._flush_until_s, time.monotonic() + timeout_s)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._flush_done >= ticket, timeout_s)
            return self._flush_delivered >= ticket

    def hurry(self) -> None:
        """Let the thread send what was recorded, at once unless that was often asked lately.

        Does not wait for it: for a process that may end in a moment without a chance to flush.
        """
        with self._condition:
            if not self._is_hurried:
                self._is_hurried = True
                self._condition.notify_all()

    def shutdown(self, timeout_s: float, unreached_timeout_s: float | None = None) -> bool:
        """Send what there is and end the thread. Idempotent.

        Args:
            timeout_s: The longest the call blocks.
            unreached_timeout_s: The same where nobody has ever listened; default ``timeout_s``.

        Returns:
            True if everything was delivered in time. What was not is counted and logged.
        """
        with self._condition:
            first = self._stop_at_s is None
            if first:
                now_s = time.monotonic()
                unreached_s = timeout_s if unreached_timeout_s is None else unreached_timeout_s
                self._stop_at_s = now_s + timeout_s
                self._stop_unreached_at_s = now_s + min(timeout_s, unreached_s)
            self._condition.notify_all()
            if self._is_waitable():
                self._condition.wait_for(lambda: self._has_ended, timeout_s)
        lost = self._lanes.waiting() + self._source.abandon()
        delivered = self._has_delivered and not lost
        # The latest totals of counters may be lost without being counted.
        if first and not delivered and (lost or self._main is Signal.METRICS):
            self._guard.drop(
                DropReason.SHUTDOWN,
                "The endpoint did not take the last of what was recorded before the end; lost are "
                f"{lost} {_LOST[self._main]} ({self._last_failure}).",
                lost,
            )
        return delivered

    def _is_waitable(self) -> bool:
        """Whether the caller may wait for the thread."""
        is_other = current_thread() is not self._thread
        return is_other and self._thread.is_alive() and not self._has_ended

    def _run(self) -> None:
        # Our own requests must not be traced or measured by HTTP instrumentation, and a thread
        # must not inherit the span in which it happened to be started.
        context.attach(
            context.set_value("suppress_instrumentation", value=True, context=context.Context())
        )
        self._next_collect_s = time.monotonic() + self._interval_s
        with self._guard:
            self._greet()
            self._beat()  # from now on it is waited for
        while True:
            ticket, stopping = self._wait()
            if ticket or stopping:
                delivered = False
                with self._guard:
                    delivered = self._deliver_all(report_losses=stopping)
                self._answer_flush(ticket, delivered=delivered)
            else:
                with self._guard:
                    self._collect_if_due()
                    self._send_queued()
            if stopping:
                if delivered:
                    with self._guard:
                        self._say_goodbye()
                else:
                    self._end()  # closing may take a while, and nothing more is to be had
                for transport in self._lanes.opened():
                    with self._guard:
                        transport.close()
                with self._guard:
                    self._source.close()
                self._end()
                return

    def _greet(self) -> None:
        for request in self._source.greeting():
            self._put(request)
        self._send_queued()

    def _end(self) -> None:
        with self._condition:
            self._has_ended = True
            self._condition.notify_all()

    def _wait(self) -> tuple[int, bool]:
        """Sleep until there is something to do. Returns (flush ticket or 0, stopping)."""
        with self._condition:
            wake_s = min(self._next_collect_s, time.monotonic() + self._look_every_s)
            wake_s = min(wake_s, self._lanes.wake_s())
            self._condition.wait_for(self._is_wanted, max(0.0, wake_s - time.monotonic()))
            if self._is_hurried:
                self._is_hurried = False
                may_hurry_s = self._collected_s[0] + min(self._interval_s, _MAX_HURRY_S)
                self._next_collect_s = min(self._next_collect_s, may_hurry_s)
            wanted = self._flush_wanted
            return wanted if wanted > self._flush_done else 0, self._stop_at_s is not None

    def _is_wanted(self) -> bool:
        return self._is_hurried or self._is_urgent()

    def _is_urgent(self) -> bool:
        return self._stop_at_s is not None or self._flush_wanted > self._flush_done

    def _collect_if_due(self) -> None:
        is_due = time.monotonic() >= self._next_collect_s
        if is_due or self._source.is_crowded():
            self._collect()
        if is_due and not self._lanes:
            self._beat()

    def _collect(self) -> None:
        now_s = time.monotonic()
        self._next_collect_s = now_s + self._interval_s
        self._collected_s.append(now_s)
        failure: Exception | None = None
        for request in self._source.collect():
            self._look_every_s = _LOOK_EVERY_S
            try:
                self._put(request)
            except Exception as error:  # noqa: BLE001  # a signal that fails costs the other nothing
                failure = error
        if failure is not None:
            raise failure

    def _put(self, request: Request) -> None:
        for oldest in self._lanes.put(request):
            self._guard.drop(
                DropReason.QUEUE_FULL,
                "The endpoint has been away for longer than the queue lasts; the oldest "
                f"{self._noun} are dropped.",
                oldest.measurements,
            )

    def _beat(self) -> None:
        """Say that the worker lives though it has nothing to say.

        Never queued: the next one says as much.
        """
        now_s = time.monotonic()
        lane = self._lanes.main
        if now_s < max(self._next_beat_s, lane.not_before_s):
            return
        request = self._source.heartbeat()
        if request is None:
            return
        self._next_beat_s = now_s + _BEAT_EVERY_S
        transport = self._lanes.transport(lane)
        reply = transport.send(transport.prepare(request.payload))
        self._is_reached = self._is_reached or not reply.unreachable
        if reply.outcome is Outcome.RETRY:
            self._back_off(lane, reply)
        elif reply.outcome is Outcome.REFUSED:
            self._guard.warn("refused", f"The endpoint refuses this worker: {reply.message}.")

    def _send_queued(self) -> None:
        """Send until nothing may be sent now, or something else is due."""
        while not self._is_urgent() and time.monotonic() < self._next_collect_s:
            lane = self._lanes.next(lambda lane: time.monotonic() >= lane.not_before_s)
            if lane is None:
                return
            self._send_oldest(lane)

    def _deliver_all(self, *, report_losses: bool) -> bool:
        """Collect and send everything, for as long as somebody waits for it. False if time ran out.

        Args:
            report_losses: Whether losses on the way are to be sent as well: there is no next time.
        """
        if time.monotonic() >= self._deadline_s():
            return False  # what is recorded now is another session's to send
        known_losses = self._guard.drops.counts()
        self._collect()
        delivered = self._send_all()
        if delivered and report_losses and self._guard.drops.counts() != known_losses:
            self._collect()
            delivered = self._send_all()
        remaining_s = self._deadline_s() - time.monotonic()
        if remaining_s > 0:
            self._source.flush_beside(remaining_s / 2)
        return delivered

    def _send_all(self) -> bool:
        """Send until nothing is left or nobody waits for it any more."""
        failed: list[Lane] = []
        while self._lanes and time.monotonic() < self._deadline_s():
            lane = self._lanes.next(lambda lane: lane not in failed)
            if lane is not None:
                if not self._send_oldest(lane):
                    failed.append(lane)
                continue
            failed.clear()
            if self._source.is_crowded():
                self._collect()
            with self._condition:
                remaining_s = self._deadline_s() - time.monotonic()
                self._condition.wait(max(0.0, min(_URGENT_BACKOFF_S, remaining_s)))
        return not self._lanes

    def _say_goodbye(self) -> None:
        """Send what is to be the last thing. All else has been delivered, however this ends."""
        with self._condition:
            self._has_delivered = True
        request = self._source.goodbye()
        if request is not None:
            self._put(request)
            self._send_all()

    def _deadline_s(self) -> float:
        if self._stop_at_s is None:
            return self._flush_until_s
        return self._stop_at_s if self._is_reached else self._stop_unreached_at_s

    def _answer_flush(self, ticket: int, *, delivered: bool) -> None:
        with self._condition:
            if delivered:
                self._flush_delivered = max(self._flush_delivered, ticket)
            self._flush_done = max(self._flush_done, ticket)
            self._condition.notify_all()

    def _send_oldest(self, lane: Lane) -> bool:
        """One attempt. False if the endpoint cannot take it now; it then gets the same bytes again.

        The same bytes, because the answer may have been lost and not the request: by the points'
        own times the receiver knows what it has.
        """
        try:
            reply = self._lanes.transport(lane).send(lane.queue[0].body)
        except Exception as error:  # noqa: BLE001  # a defect must neither spin nor lose the queue
            self._guard.warn("internal:send", "otel_rl failed to send, retrying.", error=error)
            reply = Reply(Outcome.RETRY, type(error).__name__, unreachable=True)
        self._is_reached = self._is_reached or not reply.unreachable
        if reply.outcome is Outcome.RETRY:
            self._back_off(lane, reply)
            return False
        lane.failures = 0
        lane.not_before_s = 0.0
        item = lane.take_oldest()
        if reply.outcome is Outcome.REFUSED:
            self._refused(lane, reply, item.measurements)
        elif reply.rejected:
            self._guard.drop(
                DropReason.REJECTED,
                f"The endpoint did not take {reply.rejected} {self._noun}: {reply.message}",
                reply.rejected,
            )
        elif reply.message:
            self._guard.warn("endpoint", f"The endpoint warns: {reply.message}")
        return True

    def _refused(self, lane: Lane, reply: Reply, lost: int) -> None:
        missing = _MISSING.get(lane.signal)
        if missing is None:
            self._guard.drop(
                DropReason.REJECTED,
                f"The endpoint refuses measurements: {reply.message}. They are dropped.",
                lost,
            )
            return
        self._guard.drops.add(DropReason.REJECTED, lost)
        if not lane.is_refused:  # said once: a collector without logs will go on having none
            lane.is_refused = True
            self._guard.warn(f"no_{lane.signal}", missing.format(reply.message))

    def _back_off(self, lane: Lane, reply: Reply) -> None:
        self._last_failure = reply.message
        delay_s = min(_FIRST_BACKOFF_S * 2**lane.failures, _MAX_BACKOFF_S)
        lane.failures = min(lane.failures + 1, 16)
        # Half of it at random, so that a thousand workers do not come back in the same instant.
        delay_s *= random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, hides nothing
        lane.not_before_s = time.monotonic() + max(delay_s, reply.retry_after_s or 0.0)
        self._guard.warn("away", f"The endpoint is away, retrying: {reply.message}.")
