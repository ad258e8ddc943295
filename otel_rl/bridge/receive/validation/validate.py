"""Validates a request. Pure: time is an argument, no state is kept between calls.

Malformed bytes are refused as a whole, or for one resource if the others are readable. Items over a
limit are removed, counted and reported to the sender; other items pass unchanged, so a request of
one experiment with nothing to refuse keeps its bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp.columns import InDoubt, ResourceReading
from otel_rl.bridge.otlp.views import MetricsView, RawMetrics
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.parsing.partial_parse import UnreadablePart, parse_partially
from otel_rl.bridge.receive.parsing.preparse import check_message_count
from otel_rl.bridge.receive.refused_items import Refusals, by_reason
from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportRequest, SignalSpec
from otel_rl.bridge.receive.validation.sanitize import Admission, Sanitizer
from otel_rl.errors import MalformedRequest
from otel_rl.records import Batch, ExperimentKey, Signal


@dataclass(frozen=True, slots=True)
class Validated:
    """The accepted part of one request.

    Attributes:
        batches: The request without refused items, as one batch for each of its experiments.
        accepted: Number of data points, spans or events in ``batches``.
        refused_of_runs: Number of refused data points, spans or events, by reason and by
            experiment, where the experiment is known and admitted.
        exemplars_refused: Number of exemplars removed from accepted points, by reason.
        ignored: Number of log records removed because the bridge does not use them.
        dropped_earlier: Number of data points of earlier requests that were dropped after their
            answer, and are reported now.
        message: Text for the sender: refused items, the reason, and the remedy. Empty if none was
            refused.
    """

    batches: Sequence[Batch]
    accepted: int
    refused_of_runs: Mapping[tuple[ExperimentKey | None, Refusal], int] = field(
        default_factory=dict
    )
    exemplars_refused: Mapping[Refusal, int] = field(default_factory=dict)
    ignored: int = 0
    dropped_earlier: int = 0
    message: str = ""

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """Return the number of refused data points, spans or events, by reason."""
        return by_reason(self.refused_of_runs)


def validate(
    signal: Signal,
    request: ExportRequest | bytes,
    limits: ReceiveLimits,
    now_ns: int,
    admission: Admission | None = None,
) -> Validated:
    """Apply the limits to a request.

    Time and memory are in proportion to the content, see ``check_message_count``.

    Args:
        request: The request, as protobuf bytes or as a message.
        now_ns: Time by the bridge's own clock; it bounds the times of points.
        admission: See ``Sanitizer``.

    Raises:
        MalformedRequest: Neither the request nor any part of it is of this signal.
        RequestTooLarge: The request holds too many messages, points, spans or log records.
    """
    payload = request if isinstance(request, bytes) else request.SerializeToString()
    spec = SIGNALS[signal]
    try:
        _check_number(signal, payload, limits)
        return _admit(signal, payload, limits, now_ns, Refusals(spec.items), admission)
    except MalformedRequest:
        salvaged = parse_partially(
            spec, payload, limits.max_messages_per_request, limits.max_points_per_request
        )
        if salvaged is None:
            raise
    refusals = _refused(spec, salvaged.unreadable, admission)
    admitted = _admit(signal, salvaged.payload, limits, now_ns, refusals, admission)
    left_out = sum(part.items for part in salvaged.unreadable if not part.is_wanted)
    return replace(admitted, ignored=admitted.ignored + left_out)


def validate_known(
    payload: bytes, limits: ReceiveLimits, now_ns: int, admission: Admission
) -> Validated:
    """Do the same as ``validate`` for a metrics request with only known identities.

    Raises:
        InDoubt: An identity is not known, or a value is not within the bounds.
        RequestTooLarge: See ``validate``.
    """
    refusals = Refusals(SIGNALS[Signal.METRICS].items)
    try:
        _check_number(Signal.METRICS, payload, limits)
        return _admit(Signal.METRICS, payload, limits, now_ns, refusals, admission, only_known=True)
    except MalformedRequest as exc:
        raise InDoubt from exc


def _refused(
    spec: SignalSpec, unreadable: Sequence[UnreadablePart], admission: Admission | None
) -> Refusals:
    refusals = Refusals(spec.items)
    for part in unreadable:
        if not part.is_wanted:
            continue
        key = part.experiment
        owner = "a resource" if key is None else f"experiment {str(key)[:64]!r}"
        # A run shows its refused items, but not those of senders that may not write it.
        is_welcome = key is not None and (admission is None or admission(key, part.team) is None)
        detail = f"What {owner} sends cannot be read"
        refusals.add(Refusal.MALFORMED, detail, part.items, run=key if is_welcome else None)
    return refusals


def _admit(
    signal: Signal,
    payload: bytes,
    limits: ReceiveLimits,
    now_ns: int,
    refusals: Refusals,
    admission: Admission | None,
    *,
    only_known: bool = False,
) -> Validated:
    """Validate a readable request. ``refusals`` holds earlier refusals, and gets the new ones."""
    spec = SIGNALS[signal]
    screen = Sanitizer(
        limits, now_ns, refusals, admission, size_bytes=len(payload), only_known=only_known
    )
    message: ExportRequest
    readings: Sequence[ResourceReading] = ()
    try:
        if signal is Signal.METRICS:
            message = metrics = RawMetrics.FromString(payload)
            readings = screen.metrics(metrics)
        elif signal is Signal.TRACES:
            message = traces = ExportTraceServiceRequest.FromString(payload)
            screen.traces(traces)
        else:
            message = logs = ExportLogsServiceRequest.FromString(payload)
            screen.logs(logs)
    except DecodeError as exc:
        msg = f"The body is not a protobuf {spec.request.DESCRIPTOR.name}."
        raise MalformedRequest(msg) from exc
    batches: list[Batch] = []
    if screen.accepted:
        unchanged = None if screen.has_changed else payload
        keys = screen.experiments
        columns = dict[ExperimentKey, list[ResourceReading]]()
        for key, reading in zip(keys, readings, strict=signal is Signal.METRICS):
            columns.setdefault(key, []).append(reading)
        parts = _by_experiment(message, spec.resources, keys, unchanged)
        batches = [Batch(key, signal, part, now_ns, columns.get(key, ())) for key, part in parts]
    return Validated(
        batches,
        screen.accepted,
        refusals.of_runs,
        refusals.exemplars,
        screen.ignored,
        message=refusals.message(),
    )


def _check_number(signal: Signal, payload: bytes, limits: ReceiveLimits) -> None:
    parsed_as = MetricsView if signal is Signal.METRICS else SIGNALS[signal].request
    check_message_count(payload, parsed_as.DESCRIPTOR, limits.max_messages_per_request)


def _by_experiment(
    request: ExportRequest,
    resources: str,
    experiments: Sequence[ExperimentKey],
    unchanged: bytes | None,
) -> Iterator[tuple[ExperimentKey, bytes]]:
    """Split a request by experiment; a collector may join requests of several."""
    of_keys: dict[ExperimentKey, list[Message]] = {}
    for key, resource in zip(experiments, getattr(request, resources), strict=True):
        of_keys.setdefault(key, []).append(resource)
    if len(of_keys) == 1:
        yield experiments[0], request.SerializeToString() if unchanged is None else unchanged
        return
    for key, selected in of_keys.items():
        part = type(request)()
        getattr(part, resources).extend(selected)
        yield key, part.SerializeToString()
