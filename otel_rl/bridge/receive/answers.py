"""Answers to requests, for HTTP and gRPC alike: the one table from errors to answers.

Retryable errors are 503 and UNAVAILABLE, all others are final: the Go exporter drops a batch on any
status but 429, 502, 503 and 504, and the Python exporter does not retry 429. So an unforeseen error
is 503 too, never 500, which would cost the sender its data.

A request is answered when it is durable, before its new series are known. So points that are
dropped because of the limit on series are reported in ``partial_success`` of the answer to the
sender's next request for the experiment, and counted once.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.duration_pb2 import Duration

# The two have stubs, but no py.typed.
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from otel_rl.bridge.counters import Outcome
from otel_rl.bridge.receive.refused_items import MAX_MESSAGE_BYTES, shorten
from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportResponse
from otel_rl.bridge.receive.validate import Validated
from otel_rl.errors import (
    JournalClosed,
    JournalError,
    JournalFull,
    MalformedRequest,
    OtelRLError,
    Overloaded,
    RequestTooLarge,
    SlowSender,
    Unauthenticated,
)
from otel_rl.records import Batch, ExperimentKey
from otel_rl.signals import Signal


class GrpcCode(IntEnum):
    """gRPC statuses of answers, by gRPC's names; importing gRPC itself would take 9 MB."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a sender whose request was not taken.

    Attributes:
        outcome: Outcome under which the request is counted.
    """

    http: int
    grpc: GrpcCode
    outcome: Outcome

    @property
    def is_retryable(self) -> bool:
        return self.grpc is GrpcCode.UNAVAILABLE

    @property
    def code(self) -> int:
        return self.grpc.value


ANSWERS: Mapping[type[OtelRLError], Answer] = {
    MalformedRequest: Answer(400, GrpcCode.INVALID_ARGUMENT, Outcome.MALFORMED),
    RequestTooLarge: Answer(413, GrpcCode.RESOURCE_EXHAUSTED, Outcome.TOO_LARGE),
    Unauthenticated: Answer(401, GrpcCode.UNAUTHENTICATED, Outcome.UNAUTHENTICATED),
    Overloaded: Answer(503, GrpcCode.UNAVAILABLE, Outcome.OVERLOADED),
    SlowSender: Answer(503, GrpcCode.UNAVAILABLE, Outcome.SLOW),
    JournalFull: Answer(503, GrpcCode.UNAVAILABLE, Outcome.NO_ROOM),
    JournalClosed: Answer(503, GrpcCode.UNAVAILABLE, Outcome.STOPPING),
    JournalError: Answer(503, GrpcCode.UNAVAILABLE, Outcome.FAILED),
}
"""All expected errors of the receive stage. A subclass is answered as its nearest ancestor."""

UNFORESEEN = Answer(503, GrpcCode.UNAVAILABLE, Outcome.FAILED)
"""Answer to any other error: the sender keeps its data until the bridge is repaired."""

TOO_MANY_CONNECTIONS = Answer(503, GrpcCode.UNAVAILABLE, Outcome.TOO_MANY_CONNECTIONS)
"""Answer to a connection that is closed before its request."""

NOT_FOUND = Answer(404, GrpcCode.UNIMPLEMENTED, Outcome.NOT_FOUND)
"""Answer to an unknown path."""


def answer_to(error: BaseException) -> Answer:
    for ancestor in type(error).__mro__:
        if issubclass(ancestor, OtelRLError) and ancestor in ANSWERS:
            return ANSWERS[ancestor]
    return UNFORESEEN


def status_message(answer: Answer, message: str, *, retry_after_s: int) -> Status:
    """Build the ``google.rpc.Status`` of an answer, with RetryInfo if the answer is retryable."""
    status = Status(code=answer.code, message=shorten(message, MAX_MESSAGE_BYTES))
    if answer.is_retryable:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=retry_after_s)))
    return status


def export_response(signal: Signal, admitted: Validated) -> ExportResponse:
    """Build the response; ``partial_success`` stays unset if everything was accepted.

    Refused exemplars of accepted points are a warning, which OTLP expresses as a count of 0 with a
    message. Points of earlier requests that were dropped after their answer count here.
    """
    spec = SIGNALS[signal]
    response = spec.response()
    if admitted.message:
        response.partial_success.error_message = admitted.message
        rejected = sum(admitted.refused.values()) + admitted.dropped_earlier
        setattr(response.partial_success, spec.rejected, rejected)
    return response


# Senders with a pending report. Beyond it, and for overlong names, only the run and the counters
# report the drop.
_MAX_SENDERS = 10_000
_MAX_NAME_CHARS = 512

Told = tuple[int, str]
"""Number of dropped points and the message for their sender; 0 and empty if there are none."""


class Overflow:
    """Dropped points whose senders do not know of it yet. Any thread may call any method."""

    def __init__(self) -> None:
        # _lock guards _owed. Most bridges never have an entry, so it is checked first.
        self._lock = threading.Lock()
        self._owed: dict[tuple[ExperimentKey, str], tuple[int, str]] = {}

    def add(self, key: ExperimentKey, dropped: Mapping[str, tuple[int, str]]) -> None:
        """Record dropped points: by worker, the number of points and the name of a metric."""
        with self._lock:
            for instance, (points, example) in dropped.items():
                before, first = self._owed.get((key, instance), (0, example))
                has_room = len(self._owed) < _MAX_SENDERS and len(instance) <= _MAX_NAME_CHARS
                if before or has_room:
                    self._owed[key, instance] = (before + points, first)

    def take(self, batches: Sequence[Batch]) -> Told:
        if not self._owed:
            return 0, ""
        with self._lock:
            experiments = {key for key, _ in self._owed}
        points, examples = 0, []
        senders = {
            (batch.experiment, reading.sender.worker.instance): None
            for batch in batches
            if batch.experiment in experiments
            for reading in batch.columns
        }
        for key, instance in senders:
            with self._lock:
                owed = self._owed.pop((key, instance), None)
            if owed is not None:
                points += owed[0]
                examples.append(f"{owed[1]!r} of experiment {str(key)[:64]!r}")
        if not points:
            return 0, ""
        return points, (
            f"Data points dropped since the last answer: {points} (too_many_series), first of "
            f"{examples[0]}. The experiment has as many series as it may: send what has a new "
            "value every time as a value, not as an attribute, or raise rows.max_series "
            "of the bridge."
        )
