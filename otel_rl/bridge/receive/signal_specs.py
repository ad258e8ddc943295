"""Differences between the signals: message types, terms and counters of each."""

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
from otel_rl.semconv import names
from otel_rl.signals import Signal

ExportRequest = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest
"""Request messages that the bridge accepts."""

ExportResponse = (
    ExportMetricsServiceResponse | ExportTraceServiceResponse | ExportLogsServiceResponse
)
"""Response messages of the signals that the bridge accepts."""


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """OTLP's terms and the bridge's counters for one signal.

    Attributes:
        items: Name of a request's items, in the plural.
        resources: Field of ``request`` that holds the items by resource.
        rejected: Field of ``partial_success`` that counts refused items.
        refused_counter: Counter of refused items, by reason.
        item_types: Full names of the item messages.
        markers: Byte strings, one of which is in every item that the bridge keeps. Empty if the
            bridge keeps all items.
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
"""Signals that the bridge accepts."""
