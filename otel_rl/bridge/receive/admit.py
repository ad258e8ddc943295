"""Decides what of a request is taken. Pure: time is an argument, nothing is kept between calls.

Bytes that are not OTLP are refused whole, or if they are only those of one resource among others,
for that resource. What of the rest breaks a limit is left out, counted and named to the sender;
everything else passes untouched, so a request of one experiment with nothing to refuse keeps its
bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp.view import MetricsView
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.refusals import Refusals, by_reason
from otel_rl.bridge.receive.salvage import salvage
from otel_rl.bridge.receive.screen import Admission, Screen
from otel_rl.bridge.receive.signals import SIGNALS, ExportRequest
from otel_rl.bridge.receive.wire import check_message_count, weigh
from otel_rl.errors import MalformedRequest
from otel_rl.records import Batch, ExperimentKey, Signal

__all__ = ["Admitted", "admit", "memory_of"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """What was taken of one request.

    Attributes:
        batches: The request without what was refused, one batch for each experiment in it.
        accepted: Data points, spans or events in ``batches``.
        refused_of_runs: Data points, spans or events left out, by experiment, if that is known and
            welcome, and reason.
        exemplars_refused: Exemplars left out of points that were taken, by reason.
        ignored: Log records left out because the bridge has no use for them.
        dropped_earlier: Data points of earlier requests that could not be kept after all, of which
            the sender is told now.
        message: For the sender: what was refused, why, and what to do. Empty if nothing was.
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
        """Data points, spans or events left out, by reason."""
        return by_reason(self.refused_of_runs)


def admit(
    signal: Signal,
    request: ExportRequest | bytes,
    limits: ReceiveLimits,
    now_ns: int,
    admission: Admission | None = None,
    *,
    is_weighed: bool = False,
) -> Admitted:
    """Hold a request to the limits.

    Takes time and memory in proportion to what is in it, see ``weigh``.

    Args:
        signal: Whose request it is.
        request: As protobuf bytes or as a message.
        limits: The bounds.
        now_ns: The bridge's own clock; bounds the times of points.
        admission: See ``Screen``.
        is_weighed: Whether ``memory_of`` was asked, so that nothing is counted again.

    Raises:
        MalformedRequest: The bytes are not a request of this signal, nor are parts of them.
        RequestTooLarge: It holds too many messages, points, spans or log records.
    """
    payload = request if isinstance(request, bytes) else request.SerializeToString()
    spec = SIGNALS[signal]
    try:
        if not is_weighed:
            check_message_count(
                payload,
                _parsed_as(signal).DESCRIPTOR,
                limits.max_messages_per_request,
                limits.max_points_per_request,
            )
        return _admit(signal, payload, limits, now_ns, Refusals(spec.items), admission)
    except MalformedRequest:
        salvaged = salvage(
            spec, payload, limits.max_messages_per_request, limits.max_points_per_request
        )
        if salvaged is None:
            raise
    refusals = Refusals(spec.items)
    for part in salvaged.unreadable:
        if not part.is_wanted:
            continue
        key = part.experiment
        owner = "a resource" if key is None else f"experiment {str(key)[:64]!r}"
        # A run tells of what was refused, but not of those who may not write it.
        is_welcome = key is not None and (admission is None or admission(key) is None)
        refusals.add(
            Refusal.MALFORMED,
            f"What {owner} sends cannot be read",
            part.items,
            run=key if is_welcome else None,
        )
    admitted = _admit(signal, salvaged.payload, limits, now_ns, refusals, admission)
    left_out = sum(part.items for part in salvaged.unreadable if not part.is_wanted)
    return replace(admitted, ignored=admitted.ignored + left_out)


def _admit(
    signal: Signal,
    payload: bytes,
    limits: ReceiveLimits,
    now_ns: int,
    refusals: Refusals,
    admission: Admission | None,
) -> Admitted:
    """See ``admit``. ``refusals`` holds what was refused before, and then everything."""
    spec = SIGNALS[signal]
    screen = Screen(limits, now_ns, refusals, admission, size_bytes=len(payload))
    message: ExportRequest
    try:
        if signal is Signal.METRICS:
            message = metrics = MetricsView.FromString(payload)
            screen.metrics(metrics)
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
        parts = _by_experiment(message, spec.resources, screen.experiments, unchanged)
        batches = [Batch(key, signal, part, now_ns) for key, part in parts]
    return Admitted(
        batches,
        screen.accepted,
        refusals.of_runs,
        refusals.exemplars,
        screen.ignored,
        message=refusals.message(),
    )


def memory_of(signal: Signal, payload: bytes, limits: ReceiveLimits) -> int:
    """Memory that ``admit`` takes for a request, in bytes, at most.

    Raises:
        RequestTooLarge: As ``admit`` does.
        MalformedRequest: It cannot be told; ``admit`` may take parts of it.
    """
    return weigh(
        payload,
        _parsed_as(signal).DESCRIPTOR,
        limits.max_messages_per_request,
        limits.max_points_per_request,
    )


def _parsed_as(signal: Signal) -> type[ExportRequest]:
    return MetricsView if signal is Signal.METRICS else SIGNALS[signal].request


def _by_experiment(
    request: ExportRequest,
    resources: str,
    experiments: Sequence[ExperimentKey],
    unchanged: bytes | None,
) -> Iterator[tuple[ExperimentKey, bytes]]:
    """The request cut by experiment. A collector joins what different experiments sent.

    Args:
        request: What is kept.
        resources: Its field that holds its resources.
        experiments: Of each of its resources.
        unchanged: Its bytes, if they are known.
    """
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
