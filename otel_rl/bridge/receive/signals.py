"""What differs between the signals: the messages, the words and the counters of each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
    SummaryDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.bridge.counters import Counter
from otel_rl.records import Signal
from otel_rl.semconv import names

__all__ = ["SIGNALS", "ExportRequest", "ExportResponse", "SignalSpec"]

ExportRequest = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest
"""The request messages that the bridge takes."""

ExportResponse = (
    ExportMetricsServiceResponse | ExportTraceServiceResponse | ExportLogsServiceResponse
)
"""The response messages of the signals that the bridge takes."""


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """How OTLP and the bridge's counters speak of a signal.

    Attributes:
        request: What is sent.
        response: What it is answered by.
        items: What a request holds, in the plural.
        resources: The field of ``request`` that holds them, by resource.
        rejected: The field of ``partial_success`` that counts those that were refused.
        accepted_counter: Counts those that were taken.
        refused_counter: Counts those that were refused, by reason.
        item_types: Full names of the messages that they are.
        markers: One of them stands in the bytes of every item that the bridge keeps. Empty if it
            keeps all.
    """

    request: type[ExportRequest]
    response: type[ExportResponse]
    items: str
    resources: str
    rejected: str
    accepted_counter: Counter
    refused_counter: Counter
    item_types: Collection[str]
    markers: Collection[bytes] = ()


SIGNALS: Mapping[Signal, SignalSpec] = {
    Signal.METRICS: SignalSpec(
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
        items="data points",
        resources="resource_metrics",
        rejected="rejected_data_points",
        accepted_counter=Counter.POINTS_ACCEPTED,
        refused_counter=Counter.POINTS_REFUSED,
        item_types=[
            point.DESCRIPTOR.full_name
            for point in (
                NumberDataPoint,
                HistogramDataPoint,
                ExponentialHistogramDataPoint,
                SummaryDataPoint,
            )
        ],
    ),
    Signal.TRACES: SignalSpec(
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
        items="spans",
        resources="resource_spans",
        rejected="rejected_spans",
        accepted_counter=Counter.SPANS_ACCEPTED,
        refused_counter=Counter.SPANS_REFUSED,
        item_types=[Span.DESCRIPTOR.full_name],
    ),
    Signal.LOGS: SignalSpec(
        ExportLogsServiceRequest,
        ExportLogsServiceResponse,
        items="log records",
        resources="resource_logs",
        rejected="rejected_log_records",
        accepted_counter=Counter.LOGS_ACCEPTED,
        refused_counter=Counter.LOGS_REFUSED,
        item_types=[LogRecord.DESCRIPTOR.full_name],
        markers=[name.encode() for name in names.EVENTS],
    ),
}
"""The signals that the bridge takes."""
