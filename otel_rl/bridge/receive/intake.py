"""What HTTP and gRPC have in common: admit a request, hand it on, answer, count."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from otel_rl.bridge.counters import Counter, Counters, Outcome, Where
from otel_rl.bridge.receive.admit import Admitted, ExportRequest, admit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.screen import Admission
from otel_rl.bridge.receive.status import UNFORESEEN, Answer, answer_to
from otel_rl.records import Batch, Signal

__all__ = ["Intake"]

_log = logging.getLogger(__name__)

_LOG_INTERVAL_S = 60.0  # a sender retries every second; its error is worth one line a minute


class Intake:
    """Takes requests from any thread and hands what is admitted to ``accept``.

    Args:
        accept: Makes the batches of a request durable before it returns. Called from many threads
            at once, so that those which wait for the disk together share one fsync. Raises
            JournalFull or JournalClosed where it cannot; then the sender tries again.
        limits: Bounds on requests.
        counters: Counts every request, point and span.
        clock_ns: The bridge's own clock.
    """

    def __init__(
        self,
        *,
        accept: Callable[[Sequence[Batch]], None],
        limits: ReceiveLimits,
        counters: Counters,
        clock_ns: Callable[[], int],
    ) -> None:
        self._accept = accept
        self._limits = limits
        self._counters = counters
        self._clock_ns = clock_ns
        # _lock guards _next_log_s.
        self._lock = threading.Lock()
        self._next_log_s = 0.0

    def take(
        self,
        signal: Signal,
        request: ExportRequest | bytes,
        admission: Admission | None = None,
    ) -> Admitted:
        """Admit a request and make it durable. Blocks for the disk.

        Counts points and spans once they are durable: those of a request that is sent again
        because of an error are not counted twice.

        Args:
            signal: METRICS or TRACES.
            request: As protobuf bytes or as a message.
            admission: Says of an experiment why nothing of it is taken; None if it is welcome.

        Raises:
            RequestError: The sender should not send this again.
            JournalError: The sender should send this again.
        """
        now_ns = self._clock_ns()
        admitted = admit(signal, request, self._limits, now_ns, admission)
        if admitted.batches:
            self._accept(admitted.batches)
        self._count(signal, admitted)
        return admitted

    def count(self, outcome: Outcome) -> None:
        """Count a request that never came as far as ``take``."""
        self._counters.add(Counter.REQUESTS, reason=outcome)

    def answer(self, error: Exception, where: Where) -> tuple[Answer, str]:
        """How to answer a request that ended in ``error``, and in what words. Counts it.

        An error that nobody foresaw is logged, at most once a minute, and not described to the
        sender: it may hold anything.
        """
        answer = answer_to(error)
        self.count(answer.outcome)
        if answer is not UNFORESEEN:
            return answer, str(error)
        self._counters.add(Counter.EXCEPTIONS, reason=where)
        if self._may_log():
            _log.error("A request failed unexpectedly, the sender will retry.", exc_info=error)
        return answer, "The bridge failed to store the request. Its log says why."

    def _count(self, signal: Signal, admitted: Admitted) -> None:
        is_metrics = signal is Signal.METRICS
        accepted = Counter.POINTS_ACCEPTED if is_metrics else Counter.SPANS_ACCEPTED
        refused = Counter.POINTS_REFUSED if is_metrics else Counter.SPANS_REFUSED
        self.count(Outcome.PARTIAL if admitted.message else Outcome.OK)
        self._counters.add(accepted, admitted.accepted)
        for (run, reason), n in admitted.refused_of_runs.items():
            self._counters.add(refused, n, reason=reason, run=run)
        for reason, n in admitted.exemplars_refused.items():
            self._counters.add(Counter.EXEMPLARS_REFUSED, n, reason=reason)

    def _may_log(self) -> bool:
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._next_log_s:
                return False
            self._next_log_s = now_s + _LOG_INTERVAL_S
            return True
