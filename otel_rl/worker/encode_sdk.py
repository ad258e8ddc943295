"""What the SDK's own instruments collected, as requests no larger than a server takes."""

from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.metrics.export import MetricsData

from otel_rl.worker.encode import MAX_REQUEST_BYTES, Request

__all__ = ["encode_sdk"]

_NESTING_BYTES = 32
"""Upper bound of the tags and lengths around one metric or point."""


def encode_sdk(
    data: MetricsData, *, max_request_bytes: int = MAX_REQUEST_BYTES
) -> tuple[list[Request], int]:
    """Serialize a collection, cut between points where one request would be too large.

    Returns:
        The requests, and the number of points that no request can hold.
    """
    whole = encode_metrics(data)
    if whole.ByteSize() <= max_request_bytes:
        return [Request(whole.SerializeToString(), _measurements(whole))], 0
    pages: list[ExportMetricsServiceRequest] = []
    size_bytes, too_large = max_request_bytes, 0
    for resource, scope, metric in _single_points(whole):
        alone = ExportMetricsServiceRequest()
        _copy_into(alone, resource, scope).metrics.append(metric)
        cost_bytes = alone.ByteSize() + _NESTING_BYTES
        if cost_bytes > max_request_bytes:
            too_large += 1
            continue
        if size_bytes + cost_bytes > max_request_bytes:
            pages.append(ExportMetricsServiceRequest())
            size_bytes = 0
        # Repeats resource, scope and metric for each point: legal, rare, and simple.
        pages[-1].resource_metrics.extend(alone.resource_metrics)
        size_bytes += cost_bytes
    return [Request(page.SerializeToString(), _measurements(page)) for page in pages], too_large


def _single_points(
    request: ExportMetricsServiceRequest,
) -> Iterator[tuple[ResourceMetrics, ScopeMetrics, Metric]]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is None:
                    continue
                for point in getattr(metric, kind).data_points:
                    single = Metric()
                    single.CopyFrom(metric)
                    del getattr(single, kind).data_points[:]
                    getattr(single, kind).data_points.append(point)
                    yield resource, scope, single


def _copy_into(
    request: ExportMetricsServiceRequest, resource: ResourceMetrics, scope: ScopeMetrics
) -> ScopeMetrics:
    target = request.resource_metrics.add(
        resource=resource.resource, schema_url=resource.schema_url
    )
    return target.scope_metrics.add(scope=scope.scope, schema_url=scope.schema_url)


def _measurements(request: ExportMetricsServiceRequest) -> int:
    """How many measurements only this request holds. The next one repeats a counter's total."""
    found = 0
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found += len(metric.gauge.data_points)
                found += sum(point.count for point in metric.histogram.data_points)
                found += sum(point.count for point in metric.exponential_histogram.data_points)
    return found
