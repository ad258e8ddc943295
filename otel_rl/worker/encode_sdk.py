"""What the SDK's own instruments collected, as requests no larger than a server takes."""

from collections.abc import Iterable, Iterator

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import MetricsData

from otel_rl.worker import wire
from otel_rl.worker.encode import MAX_REQUEST_BYTES, Request
from otel_rl.worker.intervals import Intervals

__all__ = ["encode_sdk"]

_NESTING_BYTES = 32
"""Upper bound of the tags and lengths around one metric or point."""


def encode_sdk(
    data: MetricsData, intervals: Intervals, *, max_request_bytes: int = MAX_REQUEST_BYTES
) -> tuple[list[Request], int]:
    """Serialize a collection, cut between points where one request would be too large.

    Args:
        data: What the SDK collected.
        intervals: Of all exports of the process.
        max_request_bytes: No request is larger.

    Returns:
        The requests, and the number of points that no request can hold.
    """
    whole = encode_metrics(data)
    _tile(whole, intervals)
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


def _tile(request: ExportMetricsServiceRequest, intervals: Intervals) -> None:
    """Give gauges and deltas the times of ADR 0000: the SDK's fall when the clock is set back."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            identity = _identity(scope.scope)
            for metric in scope.metrics:
                name = wire.field(1, metric.name.encode())
                for point in _tiling_points(metric):
                    key = identity + name, _sorted(7, point.attributes)
                    start_ns, time_ns = intervals.following(key, point.time_unix_nano)
                    point.start_time_unix_nano, point.time_unix_nano = start_ns, time_ns


def _identity(scope: InstrumentationScope) -> bytes:
    """As ``Stream.identity`` has it, because one name may be a gauge of both kinds."""
    body = wire.field(1, scope.name.encode())
    if scope.version:
        body += wire.field(2, scope.version.encode())
    return wire.field(1, body + _sorted(3, scope.attributes))


def _tiling_points(
    metric: Metric,
) -> Iterable[NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint]:
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    if metric.histogram.aggregation_temporality == delta:
        return metric.histogram.data_points
    if metric.exponential_histogram.aggregation_temporality == delta:
        return metric.exponential_histogram.data_points
    return metric.gauge.data_points


def _sorted(number: int, attributes: Iterable[KeyValue]) -> bytes:
    ordered = sorted(attributes, key=lambda pair: pair.key)
    return b"".join(wire.field(number, pair.SerializeToString()) for pair in ordered)


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
