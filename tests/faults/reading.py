"""What an OTLP request says, read by the oracle's own eyes: nothing of the bridge is used.

A *mark* is a measurement of a metric ``id.*``. Its value is an integer that no other measurement of
the scenario has, so that it can be found in the run. A *count* is a point of a counter ``count.*``.
Every other metric is ignored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Exemplar,
    Metric,
    NumberDataPoint,
)

_STEP = "rl.loop.iteration"


@dataclass(frozen=True, slots=True)
class Mark:
    """One measurement, and where the run has to show it.

    Attributes:
        key: The tracker key of the worker's own series.
        value: Unique.
        step: The step of the row that holds it, None if any will do.
    """

    key: str
    value: float
    step: int | None


@dataclass(frozen=True, slots=True)
class Count:
    """One point of a counter.

    Attributes:
        key: The tracker key of the role's total.
        series: The process and the metric.
        start_ns: Since when it counts.
        time_ns: Until when.
        value: How many.
        is_delta: Whether ``start_ns`` moves with each point.
    """

    key: str
    series: str
    start_ns: int
    time_ns: int
    value: int
    is_delta: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """All that matters of one request."""

    marks: tuple[Mark, ...]
    counts: tuple[Count, ...]


def read(request: ExportMetricsServiceRequest) -> Reading:
    """Find the marks and counts of a request."""
    marks: list[Mark] = []
    counts: list[Count] = []
    for resource_metrics in request.resource_metrics:
        resource = _texts(resource_metrics.resource.attributes)
        role, index = resource["rl.worker.role"], resource["rl.worker.index"]
        is_exact = resource.get("telemetry.distro.name") == "otel_rl"
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                path = metric.name.replace(".", "/")
                if metric.name.startswith("id."):
                    key = f"workers/{role}/{index}/{path}"
                    for point in metric.gauge.data_points:
                        marks += _marks(key, point, is_exact=is_exact)
                elif metric.name.startswith("count."):
                    series = f"{resource['service.instance.id']}/{metric.name}"
                    counts += _counts(f"{role}/{path}", series, metric)
    return Reading(tuple(marks), tuple(counts))


def _marks(key: str, point: NumberDataPoint, *, is_exact: bool) -> Iterator[Mark]:
    if is_exact and point.exemplars:
        for exemplar in point.exemplars:
            yield Mark(key, _number(exemplar), _step(exemplar.filtered_attributes))
    else:
        yield Mark(key, _number(point), _step(point.attributes))


def _counts(key: str, series: str, metric: Metric) -> Iterator[Count]:
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    is_delta = metric.sum.aggregation_temporality == delta
    for point in metric.sum.data_points:
        yield Count(
            key,
            series,
            point.start_time_unix_nano,
            point.time_unix_nano,
            int(_number(point)),
            is_delta,
        )


def _number(point: NumberDataPoint | Exemplar) -> float:
    return float(point.as_int) if point.WhichOneof("value") == "as_int" else point.as_double


def _step(attributes: Iterable[KeyValue]) -> int | None:
    return next((pair.value.int_value for pair in attributes if pair.key == _STEP), None)


def _texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value.string_value or str(pair.value.int_value) for pair in attributes}
