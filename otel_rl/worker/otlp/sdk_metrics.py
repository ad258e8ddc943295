"""Encodes metrics of the SDK's own instruments, in requests within the size limit."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.metrics.export import MetricsData, NumberDataPoint
from opentelemetry.sdk.util.instrumentation import InstrumentationScope as SdkScope

from otel_rl.semconv.names import OTEL_RL_STEP_COUNT, RL_LOOP_ITERATION
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker, encode_bare_scope

__all__ = ["Zero", "Zeros", "encode_sdk"]

_INT64: Final = range(-(1 << 63), 1 << 63)

Zero = tuple[tuple[SdkScope, str, Mapping[str, object]], int, int]
"""((scope, name, attributes) of a histogram's series, step, time in ns) of a measurement of 0."""


class Zeros:
    """Measurements of 0 in steps, for the histograms of an export.

    The SDK offers them to no reservoir, so that they are no exemplars.

    Args:
        zeros: In their order.
    """

    def __init__(self, zeros: Iterable[Zero]) -> None:
        self._of_series: dict[bytes, dict[int, tuple[int, int]]] = {}
        for (scope, name, attributes), step, time_ns in zeros:
            series = _series(encode_bare_scope(scope), name, protobuf.attributes(1, attributes))
            steps = self._of_series.setdefault(series, {})
            steps[step] = steps.get(step, (0, 0))[0] + 1, time_ns

    def add_to(self, scope: bytes, metric: Metric) -> None:
        """Add exemplars to the points of a metric of an encoded scope."""
        if not self._of_series:
            return
        for point in metric.exponential_histogram.data_points:
            series = _series(scope, metric.name, _sorted(1, point.attributes))
            for step, (count, time_ns) in self._of_series.pop(series, {}).items():
                marks = {RL_LOOP_ITERATION: step, OTEL_RL_STEP_COUNT: count}
                point.exemplars.add(
                    time_unix_nano=time_ns,
                    as_int=0,
                    filtered_attributes=[
                        KeyValue(key=key, value=AnyValue(int_value=value))
                        for key, value in marks.items()
                    ],
                )


def _series(scope: bytes, name: str, attributes: bytes) -> bytes:
    return scope + name.lower().encode() + attributes


def encode_sdk(
    data: MetricsData,
    intervals: Intervals,
    packer: RequestPacker,
    zeros: Zeros | None = None,
) -> int:
    """Add a collection to requests, split between points where a metric is too large for one.

    Args:
        data: Collected by the SDK, of the packer's resource.
        intervals: Of all exports of the process.
        packer: Of metrics.
        zeros: For the histograms, if there are any.

    Returns:
        The number of points that no request can hold.
    """
    encoded, too_large = _encoded(data)
    for resource in encoded.resource_metrics:
        for scope in resource.scope_metrics:
            identity = _identity(scope.scope)
            url = scope.schema_url
            head = identity + protobuf.field(3, url.encode()) if url else identity
            for metric in scope.metrics:
                if zeros is not None:
                    zeros.add_to(identity, metric)
                _tile(identity, metric, intervals)
                too_large += _added(packer, head, metric)
    return too_large


def _encoded(data: MetricsData) -> tuple[ExportMetricsServiceRequest, int]:
    """Encode a collection, without the metrics that have a value of no number.

    Returns:
        The request, and the number of points that are left out.
    """
    try:
        return encode_metrics(data), 0
    except Exception:  # noqa: BLE001  # of one value; what cannot be encoded is counted below
        request, lost = ExportMetricsServiceRequest(), 0
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                alone = replace(scope, metrics=[_within_64_bits(metric)])
                try:
                    part = encode_metrics(MetricsData([replace(resource, scope_metrics=[alone])]))
                except Exception:  # noqa: BLE001  # counted
                    lost += len(metric.data.data_points)
                else:
                    request.MergeFrom(part)
    return request, lost


def _within_64_bits(metric: SdkMetric) -> SdkMetric:
    """Return the metric with larger integers, such as sums of FLOPs, as floats."""
    data: Any = metric.data
    points = []
    for point in data.data_points:
        exemplars = [replace(one, value=_fitting(one.value)) for one in point.exemplars]
        changed = replace(point, exemplars=exemplars)
        if isinstance(changed, NumberDataPoint):
            changed = replace(changed, value=_fitting(changed.value))
        points.append(changed)
    return replace(metric, data=replace(data, data_points=points))


def _fitting(value: float) -> float:
    return float(value) if isinstance(value, int) and value not in _INT64 else value


def _identity(scope: InstrumentationScope) -> bytes:
    """Encode like ``Stream.identity``, because both kinds of gauge may share a name."""
    body = protobuf.field(1, scope.name.encode())
    if scope.version:
        body += protobuf.field(2, scope.version.encode())
    return protobuf.field(1, body + _sorted(3, scope.attributes))


def _tile(scope: bytes, metric: Metric, intervals: Intervals) -> None:
    """Set the times of a gauge or delta per ADR 0000: the SDK's go back with the clock."""
    kind, data = _data(metric)
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    if kind == "gauge" or (kind != "sum" and data.aggregation_temporality == delta):
        name = scope + protobuf.field(1, metric.name.encode())
        for point in data.data_points:
            key = name, _sorted(7, point.attributes)
            start_ns, time_ns = intervals.following(key, point.time_unix_nano)
            point.start_time_unix_nano, point.time_unix_nano = start_ns, time_ns


def _sorted(number: int, attributes: Iterable[KeyValue]) -> bytes:
    ordered = sorted(attributes, key=lambda pair: pair.key)
    return b"".join(protobuf.field(number, pair.SerializeToString()) for pair in ordered)


def _added(packer: RequestPacker, scope: bytes, metric: Metric) -> int:
    """Add the metric, or parts of it. Returns the number of points left out."""
    encoded = metric.SerializeToString()
    head = protobuf.head(2, len(encoded))
    if packer.add(scope, (head, encoded), len(head) + len(encoded), _measurements(metric)):
        return 0
    halves = Metric(), Metric()
    for half in halves:
        half.CopyFrom(metric)
    first, second = (_data(half)[1].data_points for half in halves)
    if len(first) < 2:
        return len(first)
    middle = len(first) // 2
    del first[middle:]
    del second[:middle]
    return sum(_added(packer, scope, half) for half in halves)


def _measurements(metric: Metric) -> int:
    """Count what only this request holds: totals of counters are repeated, counts of steps not."""
    kind, data = _data(metric)
    points = data.data_points
    if kind == "sum":
        return sum(
            attribute.key == RL_LOOP_ITERATION
            for point in points
            for exemplar in point.exemplars
            for attribute in exemplar.filtered_attributes
        )
    return len(points) if kind == "gauge" else sum(point.count for point in points)


def _data(metric: Metric) -> tuple[str, Any]:
    """Return the kind of a metric of the SDK, and the message of that kind."""
    kind = metric.WhichOneof("data") or "gauge"
    return kind, getattr(metric, kind)
