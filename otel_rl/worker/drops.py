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
        BUFFER_FULL: More measurements, or spans, between two exports than the buffer holds.
        QUEUE_FULL: The endpoint was unreachable for longer than the send queue lasts.
        NOT_A_NUMBER: The value is not a number: text, None, an array of several elements.
        NOT_ADDABLE: A counter or histogram received NaN, infinity, or a negative value.
        BAD_STEP: The step is not a 64-bit integer.
        BAD_REDUCE: The reduction is not one of ``Reduction``.
        BAD_NAME: The name is not a text of 1 to 255 characters.
        BAD_ATTRIBUTES: The attributes, or a config, are not a mapping.
        TOO_LARGE: One point, span or event is larger than a request may be, or one setting larger
            than a config may be.
        TOO_MANY_SAMPLES: More than 256 samples in one call of ``log_samples``, or 65,536 in one of
            ``lineage.link``.
        BAD_SAMPLE: The sample is not a mapping or is empty, or the samples are not a list.
        TEXT_CUT: A text of a sample is longer than 16,384 characters, or all of them than 65,536;
            the run holds its beginning.
        NO_STAMP: The sample accepts neither a key nor an attribute, so it got no stamp.
        BAD_STATUS: ``end_experiment`` received an unknown status.
        REJECTED: The endpoint refused it permanently.
        TOO_MANY_PHASES: The steps of one thread or task had more than 128 different phases.
        UNCLOSED_PHASE: A step or phase was still open when its thread or task, or the process,
            ended; or 64 were nested.
        NOT_STARTED: Logged before ``init`` with no experiment in the environment, or after
            ``shutdown``; or a span that ended after it, or after the program's own shutdown of its
            tracing.
        SHUTDOWN: Not yet sent when the process ended.
        CONSOLE: A line of the console over the limits of a worker; the console of the run says how
            many.
        INTERNAL: A defect of otel_rl itself, with a logged traceback.
    """

    BUFFER_FULL = "buffer_full"
    QUEUE_FULL = "queue_full"
    NOT_A_NUMBER = "not_a_number"
    NOT_ADDABLE = "not_addable"
    BAD_STEP = "bad_step"
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
