"""Decides what of a request is taken. Pure: time is an argument, nothing is kept between calls.

Bytes that are not OTLP are refused whole. What of a well-formed request breaks a limit is left out,
counted and named to the sender; the rest passes untouched, so a request with nothing to refuse
keeps its bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp.view import MetricsView
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.refusals import Refusals
from otel_rl.bridge.receive.screen import Screen
from otel_rl.bridge.receive.wire import check_message_count
from otel_rl.errors import MalformedRequest
from otel_rl.records import Signal

__all__ = ["REQUEST_TYPES", "Admitted", "ExportRequest", "admit"]

ExportRequest = ExportMetricsServiceRequest | ExportTraceServiceRequest
"""The request messages that the bridge takes."""

REQUEST_TYPES: Mapping[Signal, type[ExportRequest]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}
"""The protobuf type of each signal that the bridge takes."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What was taken of one request.

    Attributes:
        payload: The request without what was refused, or None if nothing is left to keep.
        accepted: Data points or spans in ``payload``.
        refused: Data points or spans left out, by reason.
        exemplars_refused: Exemplars left out of points that were taken, by reason.
        message: For the sender: what was refused, why, and what to do. Empty if nothing was.
    """

    payload: bytes | None
    accepted: int
    refused: Mapping[Refusal, int] = field(default_factory=dict)
    exemplars_refused: Mapping[Refusal, int] = field(default_factory=dict)
    message: str = ""


def admit(
    signal: Signal, request: ExportRequest | bytes, limits: ReceiveLimits, now_ns: int
) -> Admitted:
    """Hold a request to the limits.

    Args:
        signal: METRICS or TRACES.
        request: As protobuf bytes or as a message.
        limits: The bounds.
        now_ns: The bridge's own clock; bounds the times of points.

    Raises:
        MalformedRequest: The bytes are not a request of this signal.
        RequestTooLarge: It holds too many messages.
    """
    payload = request if isinstance(request, bytes) else request.SerializeToString()
    request_type = REQUEST_TYPES[signal]
    check_message_count(payload, request_type.DESCRIPTOR, limits.max_messages_per_request)
    refusals = Refusals("data points" if signal is Signal.METRICS else "spans")
    screen = Screen(limits, now_ns, refusals)
    message: Message
    try:
        if signal is Signal.METRICS:
            message = metrics = MetricsView.FromString(payload)
            screen.metrics(metrics)
        else:
            message = traces = ExportTraceServiceRequest.FromString(payload)
            screen.traces(traces)
    except DecodeError as exc:
        msg = f"The body is not a protobuf {request_type.DESCRIPTOR.name}."
        raise MalformedRequest(msg) from exc
    kept = message.SerializeToString() if screen.has_changed else payload
    return Admitted(
        kept if screen.accepted else None,
        screen.accepted,
        refusals.items,
        refusals.exemplars,
        refusals.message(),
    )
