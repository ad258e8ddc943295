"""Sends queued requests, and acts on the endpoint's answers: losses, warnings, the next attempt."""

import random
import time
from typing import Final

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason
from otel_rl.worker.export.queues import SendQueue, SendQueues
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.request_packer import Request

__all__ = ["Sender"]

_NOUNS: Final = {Signal.METRICS: "measurements", Signal.TRACES: "spans"}
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

_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0


class Sender:
    """Sends the requests of an exporter's queues, one attempt at a time. One thread.

    Args:
        queues: Queues of the exporter.
        guard: Counts losses.
        is_reached: True if the endpoint has answered before.
    """

    def __init__(self, queues: SendQueues, guard: Guard, *, is_reached: bool) -> None:
        self.queues = queues
        self.is_reached = is_reached
        """True once the endpoint has answered."""
        self.last_failure = "no answer yet"
        """Reason for what is left: of the last attempt, or that the time is up."""
        self._guard = guard
        self._noun = _NOUNS[queues.main.signal]

    def put(self, request: Request) -> None:
        """Queue a request; the oldest ones make room for it."""
        for oldest in self.queues.put(request):
            self._guard.drop(
                DropReason.QUEUE_FULL,
                "The endpoint has been unavailable for longer than the send queue lasts; the "
                f"oldest {self._noun} are dropped.",
                oldest.measurements,
            )

    def send_alone(self, request: Request) -> None:
        """Make one attempt to send a request that is never queued: a later one replaces it."""
        queue = self.queues.main
        transport = self.queues.transport(queue)
        reply = transport.send(transport.prepare(request.payload))
        self.is_reached = self.is_reached or not reply.unreachable
        if reply.outcome is Outcome.RETRY:
            self._back_off(queue, reply)
        elif reply.wants_token:
            self._guard.warn("token", _UNKNOWN_SENDER.format(reply.message))
        elif reply.outcome is Outcome.REFUSED:
            self._guard.warn("refused", f"The endpoint refuses this worker: {reply.message}.")

    def send_oldest(self, queue: SendQueue) -> bool:
        """Make one attempt. False if the endpoint cannot accept it now; it is sent again unchanged.

        Unchanged, because the answer may have been lost instead of the request: the receiver
        recognises repetitions by the points' times.
        """
        try:
            reply = self.queues.transport(queue).send(queue.requests[0].body)
        except Exception as error:  # noqa: BLE001  # a defect must neither spin nor lose the queue
            self._guard.warn("internal:send", "otel_rl failed to send, retrying.", error=error)
            reply = Reply(Outcome.RETRY, type(error).__name__, unreachable=True)
        self.is_reached = self.is_reached or not reply.unreachable
        if reply.outcome is Outcome.RETRY:
            self._back_off(queue, reply)
            return False
        queue.failures = 0
        queue.not_before_s = 0.0
        self.last_failure = "too late"
        item = queue.take_oldest()
        if reply.outcome is Outcome.REFUSED:
            self._refused(queue, reply, item.measurements)
        elif reply.rejected:
            self._guard.drop(
                DropReason.REJECTED,
                f"The endpoint did not accept {reply.rejected} {self._noun}: {reply.message}",
                reply.rejected,
            )
        elif reply.message:
            self._guard.warn("endpoint", f"The endpoint warns: {reply.message}")
        return True

    def _refused(self, queue: SendQueue, reply: Reply, lost: int) -> None:
        if reply.wants_token:  # the same for all signals
            self._guard.drops.add(DropReason.REJECTED, lost)
            self._guard.warn("token", _UNKNOWN_SENDER.format(reply.message))
            return
        missing = _MISSING.get(queue.signal)
        if missing is None:
            self._guard.drop(
                DropReason.REJECTED,
                f"The endpoint refuses measurements: {reply.message}. They are dropped.",
                lost,
            )
            return
        self._guard.drops.add(DropReason.REJECTED, lost)
        if not queue.is_refused:  # logged once: the endpoint's configuration rarely changes
            queue.is_refused = True
            self._guard.warn(f"no_{queue.signal}", missing.format(reply.message))

    def _back_off(self, queue: SendQueue, reply: Reply) -> None:
        self.last_failure = reply.message
        delay_s = min(_FIRST_BACKOFF_S * 2**queue.failures, _MAX_BACKOFF_S)
        queue.failures = min(queue.failures + 1, 16)
        # Half of it is random, so that a thousand workers do not return at the same instant.
        delay_s *= random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, hides nothing
        queue.not_before_s = time.monotonic() + max(delay_s, reply.retry_after_s or 0.0)
        self._guard.warn("retry", f"The endpoint is unavailable, retrying: {reply.message}.")
