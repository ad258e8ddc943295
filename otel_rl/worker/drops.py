"""Counts everything that a worker could not deliver, by reason."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.semconv.names import RL_REASON

__all__ = ["DropReason", "Drops"]


class DropReason(StrEnum):
    """Reason why a measurement, an event or a span was dropped. A closed set: each is documented.

    Attributes:
        BUFFER_FULL: Between two exports came more than the buffer holds.
        QUEUE_FULL: The endpoint was unreachable for longer than the queue lasts.
        NOT_A_NUMBER: The value is a text, None, or an array of several elements.
        NOT_ADDABLE: NaN, infinity or a negative number for a counter or histogram.
        BAD_STEP: The step is no 64-bit integer.
        BAD_TIME: The time is no number of nanoseconds since 1970.
        BAD_REDUCE: Not one of ``Reduction``.
        BAD_NAME: The name has not 1 to 255 characters.
        BAD_ATTRIBUTES: Attributes or config are no mapping.
        TOO_LARGE: Over a bound.
        TOO_MANY_SAMPLES: Over 256 in a ``log_samples``, or 65,536 in a ``lineage.link``.
        BAD_SAMPLE: A text sample is empty or no mapping, or the samples are no list.
        TEXT_CUT: Over 16,384 characters in a text, or 65,536 in a sample; cut.
        NO_STAMP: The sample takes no key or attribute for its stamp.
        BAD_STATUS: The status is unknown to ``finish``.
        REJECTED: Refused by the endpoint for good.
        TOO_MANY_PHASES: Over 128 phase names in a thread or task.
        UNCLOSED_PHASE: Phase open when its thread, task or process ended, or nested over 64 deep.
        NOT_STARTED: Before ``init`` without an experiment, or after a shutdown.
        SHUTDOWN: Unsent when the process ended.
        CONSOLE: Console lines over the bounds.
        NO_GPU: GPUs are to be sampled, and one or all of them cannot be; the log has the reason.
        INTERNAL: A defect, see the log.
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

    The lock is never waited for: a signal handler that waited would wait for the frame that it
    interrupted.
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
        """Report for the next worker of this process only losses that are not yet reported."""
        self._of_others = self._shown

    def add(self, reason: DropReason, count: int = 1) -> None:
        """Count ``count`` measurements as lost."""
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
        """Sum up the added counts, unless another thread is doing so."""
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
