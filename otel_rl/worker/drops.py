"""What a worker could not deliver, counted by reason. Every loss goes through here."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.semconv.names import RL_REASON

__all__ = ["DropReason", "Drops"]


class DropReason(StrEnum):
    """Why a measurement, an event or a span was dropped. A closed set: each is documented.

    Attributes:
        BUFFER_FULL: More measurements, or spans, between two exports than the buffer holds.
        QUEUE_FULL: The endpoint was away for longer than the queue of requests lasts.
        NOT_A_NUMBER: The value was no number: text, None, an array of several elements.
        NOT_ADDABLE: A counter or histogram was given NaN, infinity, or less than zero.
        BAD_STEP: The step was no integer of 64 bits.
        BAD_REDUCE: The reduction is not one of ``Reduction``.
        BAD_NAME: The name was no text of 1 to 255 characters.
        BAD_ATTRIBUTES: The attributes, or a config, were no mapping.
        TOO_LARGE: One point or span alone was larger than a request may be, or one setting of a
            config larger than a config.
        TOO_MANY_SAMPLES: More than 256 samples in one call of ``log_samples``, or 65,536 in one of
            ``carrier.link``.
        BAD_SAMPLE: The sample was no mapping, or an empty one; or there was no list of them.
        TEXT_CUT: A text of a sample was longer than 16,384 characters, or all of them than 65,536;
            its beginning is in the run.
        NO_STAMP: A sample that takes neither a key nor an attribute, so it got no stamp.
        BAD_STATUS: ``finish`` was given a status that is none.
        REJECTED: The endpoint answered that it will never take it.
        TOO_MANY_PHASES: The steps of one thread or task had more than 128 different phases.
        UNCLOSED_PHASE: A step or phase was still open when its thread or task, or the process,
            ended; or 64 were open within each other.
        NOT_STARTED: Logged before ``init`` with no experiment in the environment, or after
            ``shutdown``; or a span that ended after it, or after the program's own shutdown of its
            tracing.
        SHUTDOWN: Still waiting for the endpoint when the process ended.
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
    INTERNAL = "internal"


class Drops:
    """Counts of one process since it started. Any thread or signal handler may call anything.

    Nobody ever waits for the lock: a signal handler that did would wait for the very frame that it
    interrupts.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from zero with a fresh lock: a forked child counts its own losses."""
        # _lock guards _counts. _added is appended to by anybody and emptied under the lock.
        self._lock = threading.Lock()
        self._counts: dict[DropReason, int] = {}
        self._added: deque[tuple[DropReason, int]] = deque()
        self._shown: Mapping[DropReason, int] = {}
        self._of_others: Mapping[DropReason, int] = {}

    def begin_anew(self) -> None:
        """Show the next worker of this process only what the last one has not shown."""
        self._of_others = self._shown

    def add(self, reason: DropReason, count: int = 1) -> None:
        """Count ``count`` measurements as lost."""
        if count > 0:
            self._added.append((reason, count))
            self._fold()

    def counts(self) -> Mapping[DropReason, int]:
        """A copy of the counts so far, without zeros.

        What another thread adds at this moment may be missing until the next call.
        """
        self._fold()
        return dict(self._counts)

    def _fold(self) -> None:
        """Add up what was added, unless somebody is at it who will, or did so a moment ago."""
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
