"""OTLP requests as pieces of one point each, which may be joined and cut like a collector does."""

from collections.abc import Iterable, Mapping
from functools import cache

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from tests.support.otlp_requests import key_values

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

_REDUCE_SUM = key_values({"rl.reduce": "sum"})


def piece(resource: Mapping[str, str | int], metric: Metric) -> bytes:
    """A request with one metric. Pieces that are joined, byte by byte, are a request again."""
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    resource_metrics.resource.attributes.extend(_resource(tuple(resource.items())))
    scope_metrics = resource_metrics.scope_metrics.add()
    scope_metrics.scope.attributes.extend(_REDUCE_SUM)
    scope_metrics.metrics.append(metric)
    return request.SerializeToString()


def measurements(
    name: str, start_ns: int, time_ns: int, measured: Iterable[tuple[int, int, int | None]]
) -> Metric:
    """A gauge point of otel_rl's own: (time, value, step) of each measurement."""
    metric = Metric(name=name)
    point = metric.gauge.data_points.add(start_time_unix_nano=start_ns, time_unix_nano=time_ns)
    for measured_ns, value, step in measured:
        exemplar = point.exemplars.add(time_unix_nano=measured_ns, as_double=value)
        point.as_double = value
        if step is not None:
            exemplar.filtered_attributes.extend(_step(step))
    return metric


def heartbeat(time_ns: int) -> Metric:
    """Says that everything that was measured up to then has been sent."""
    metric = Metric(name="otel_rl.worker.heartbeat")
    metric.gauge.data_points.add(time_unix_nano=time_ns, flags=1)
    return metric


def level(name: str, time_ns: int, value: int, step: int | None = None) -> Metric:
    """A gauge point of anybody's SDK."""
    metric = Metric(name=name)
    point = metric.gauge.data_points.add(time_unix_nano=time_ns, as_double=value)
    if step is not None:
        point.attributes.extend(_step(step))
    return metric


def counted(
    name: str,
    start_ns: int,
    time_ns: int,
    value: int,
    temporality: AggregationTemporality.ValueType,
) -> Metric:
    """A point of a counter."""
    metric = Metric(name=name)
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = temporality
    metric.sum.data_points.add(start_time_unix_nano=start_ns, time_unix_nano=time_ns, as_int=value)
    return metric


def distribution(name: str, start_ns: int, time_ns: int, count: int) -> Metric:
    """A point of a histogram that is sent as deltas."""
    metric = Metric(name=name)
    metric.histogram.aggregation_temporality = DELTA
    metric.histogram.data_points.add(
        start_time_unix_nano=start_ns,
        time_unix_nano=time_ns,
        count=count,
        sum=2.0 * count,
        bucket_counts=[0, count],
        explicit_bounds=[1.0],
    )
    return metric


@cache
def _resource(attributes: tuple[tuple[str, str | int], ...]) -> list[KeyValue]:
    return key_values(dict(attributes))


@cache
def _step(step: int) -> list[KeyValue]:
    return key_values({"rl.loop.iteration": step})
