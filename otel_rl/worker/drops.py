"""Counts everything that a worker could not deliver, by reason."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.semconv.names import RL_REASON


class DropReason(StrEnum):
    """Reason why a measurement, an event or a span was dropped. A closed set: each is documented.

    Attributes:
        BUFFER_FULL: More was recorded between two exports than the buffer holds. Record less, or
            shorten ``OTEL_METRIC_EXPORT_INTERVAL``.
        QUEUE_FULL: The endpoint was unreachable for longer than the queue lasts. Check the bridge
            or the collector.
        NOT_A_NUMBER: The value is a text, None, or an array of several elements. Log a number.
        NOT_ADDABLE: A counter or histogram got NaN, infinity or a negative number.
        BAD_STEP: The step is no 64-bit integer, or lies behind the current one of ``wandb.log``.
        BAD_TIME: The time is no number of nanoseconds since 1970.
        BAD_REDUCE: The reduction is not one of ``Reduction``.
        BAD_NAME: The name is empty, or longer than 255 characters.
        BAD_ATTRIBUTES: The attributes or the config are no mapping.
        TOO_LARGE: One item alone is over its bound: an event, a span, a config, attributes.
        TOO_MANY_SAMPLES: A ``log_samples`` got more than 256 samples, or a ``lineage.link`` more
            than 65,536.
        BAD_SAMPLE: A text sample is empty or no mapping, or the samples are no list.
        TEXT_CUT: A text was longer than 16,384 characters, or a sample than 65,536: it was cut.
        NO_STAMP: The sample takes no key or attribute for its stamp. Keep the result of
            ``lineage.stamp`` beside it.
        BAD_STATUS: ``finish`` got a status, or ``lineage.score`` an outcome, that it does not know.
        REJECTED: The endpoint refused the data for good. The log of the worker has its answer.
        TOO_MANY_PHASES: A thread or task has more than 128 names of phases. Leave ids out of the
            names.
        UNCLOSED_PHASE: A phase was open when its thread, task or process ended, or phases were
            nested over 64 deep.
        NOT_STARTED: Something was recorded before ``init`` without an experiment, or after a
            shutdown.
        SHUTDOWN: Data was unsent when the process ended. Raise ``OTEL_RL_EXIT_TIMEOUT``, or check
            the endpoint.
        CONSOLE: Lines of the console were over their bounds.
        NO_GPU: GPUs are to be sampled, and one or all of them cannot be; the log has the reason.
        INTERNAL: A defect: report it with the log.
    """

    BUFFER_FULL = "buffer_full"
    QUEUE_FULL = "queue_full"
    NOT_A_NUMBER = "not_a_number"
    NOT_ADDABLE = "not_addable"
    BAD_STEP = "bad_step"
    BAD_TIME = "bad_time"
    BAD_REDUCE = "bad_reduce"
    BAD_NAME = "bad_name"
    BAD_ATTRIBUTES = "bad_attributes"
    TOO_LARGE = "too_large"
    TOO_MANY_SAMPLES = "too_many_samples"
    BAD_SAMPLE = "bad_sample"
    TEXT_CUT = "text_cut"
    NO_STAMP = "no_stamp"
    BAD_STATUS = "bad_status"
    REJECTED = "rejected"
    TOO_MANY_PHASES = "too_many_phases"
    UNCLOSED_PHASE = "unclosed_phase"
    NOT_STARTED = "not_started"
    SHUTDOWN = "shutdown"
    CONSOLE = "console"
    NO_GPU = "no_gpu"
    INTERNAL = "internal"


class Drops:
    """Drop counts of one process since its start. Safe in any thread and signal handler.

    The lock is never waited for: a signal handler that waited for it would wait for the frame that
    it interrupted.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from zero with a fresh lock: a forked child counts its own losses."""
        # _lock guards _counts. Any thread appends to _added; it is emptied under the lock.
        self._lock = threading.Lock()
        self._counts: dict[DropReason, int] = {}
        self._added: deque[tuple[DropReason, int]] = deque()
        self._shown: Mapping[DropReason, int] = {}
        self._of_others: Mapping[DropReason, int] = {}

    def begin_anew(self) -> None:
        """Report for the process's next worker only losses that were not reported yet."""
        self._of_others = self._shown

    def add(self, reason: DropReason, count: int = 1) -> None:
        if count > 0:
            self._added.append((reason, count))
            self._fold()

    def counts(self) -> Mapping[DropReason, int]:
        """Return a copy of the counts so far, without zeros.

        A concurrent addition may appear only in the next call.
        """
        self._fold()
        return dict(self._counts)

    def _fold(self) -> None:
        """Add up the added counts, unless another thread is doing so."""
        while self._added and self._lock.acquire(blocking=False):
            try:
                while self._added:
                    reason, count = self._added.popleft()
                    self._counts[reason] = self._counts.get(reason, 0) + count
            finally:
                self._lock.release()

    def observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Callback of the observable counter ``otel_rl.worker.measurements.dropped``."""
        self._shown = shown = self.counts()
        others = self._of_others
        return [
            Observation(count - others.get(reason, 0), {RL_REASON: reason.value})
            for reason, count in shown.items()
            if count > others.get(reason, 0)
        ]
