"""The answer to a request that was taken, in whole or in part."""

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rl.bridge.receive.admit import Admitted
from otel_rl.records import Signal

__all__ = ["ExportResponse", "export_response"]

ExportResponse = ExportMetricsServiceResponse | ExportTraceServiceResponse
"""The response messages of the signals that the bridge takes."""


def export_response(signal: Signal, admitted: Admitted) -> ExportResponse:
    """Says what was refused; ``partial_success`` stays unset where everything was taken.

    Where only exemplars were refused, no point was: then the message is a warning, which OTLP
    expresses as a count of 0 with a message.
    """
    refused = sum(admitted.refused.values())
    if signal is Signal.METRICS:
        metrics = ExportMetricsServiceResponse()
        if admitted.message:
            metrics.partial_success.rejected_data_points = refused
            metrics.partial_success.error_message = admitted.message
        return metrics
    traces = ExportTraceServiceResponse()
    if admitted.message:
        traces.partial_success.rejected_spans = refused
        traces.partial_success.error_message = admitted.message
    return traces
