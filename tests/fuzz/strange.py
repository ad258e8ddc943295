"""Requests that OTLP allows and nobody expects: they pass the door, and go on to the rows."""

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
    ResourceMetrics,
)

from tests.fuzz.corpus import Request, S
from tests.fuzz.strange_events import strange_events
from tests.fuzz.strange_spans import strange_spans

_STEPS = (0, -1, 1, 7, 2**31, 2**53, 2**63 - 1, -(2**63))
_VALUES = (0.0, -0.0, 1.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan)
_COUNTS = (0, 1, 2**31, 2**53, 2**63, 2**64 - 1)
_TEMPORALITIES = (AGGREGATION_TEMPORALITY_DELTA, AGGREGATION_TEMPORALITY_CUMULATIVE)
_ROLES = ("trainer", "generator", "a/b", "..", "\U0001f9ea", "x" * 128, "otel_rl", "phase")
_UNITS = ("", "s", "1", "{token}", "\x00", "u" * 200)
_NAMES = (
    "rl.policy.version",
    "rl.phase.duration",
    "rl.train.loss",
    "otel_rl.bridge.rows.created",
    "step",
    "_step",
    "a.b",
    "a/b",
    "a//b",
    "..",
    "loss/max",
    "n" * 255,
    "\U0001f4a3",
    "te\u0430m",
)


def strange_request(random: Random, sound: Request) -> Request:
    """``sound`` with one to six of its values legal and unexpected."""
    request = type(sound).FromString(sound.SerializeToString())
    if isinstance(request, ExportLogsServiceRequest):
        strange_events(random, request)
    if isinstance(request, ExportTraceServiceRequest):
        strange_spans(random, request)
    if isinstance(request, ExportMetricsServiceRequest):
        places = [
            (resource_metrics, metric)
            for resource_metrics in request.resource_metrics
            for scope_metrics in resource_metrics.scope_metrics
            for metric in scope_metrics.metrics
        ]
        for _ in range(random.randint(1, 6) if places else 0):
            resource_metrics, metric = random.choice(places)
            random.choice(_CHANGES)(random, resource_metrics, metric)
    return request


def _points(metric: Metric) -> Sequence:  # type: ignore[type-arg]  # of five types
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind is not None else ()


def _times(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    """Earlier, later, the same, backwards, or unknown."""
    for point in _points(metric):
        shift = random.choice((0, 1, -1, S, -S, 400 * S, -86_400 * S))
        point.time_unix_nano = max(0, point.time_unix_nano + shift)
        if random.random() < 0.5:
            point.start_time_unix_nano = random.choice(
                (0, point.time_unix_nano, point.time_unix_nano + 1, 1, 2**64 - 1)
            )


def _steps(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    for owner in _attribute_owners(metric):
        for attribute in owner:
            if attribute.key == "rl.loop.iteration":
                attribute.value.CopyFrom(_step(random))
        if random.random() < 0.2:
            owner.add(key="rl.loop.iteration").value.CopyFrom(_step(random))


def _step(random: Random) -> AnyValue:
    step = random.choice(_STEPS)
    return random.choice(
        (
            AnyValue(int_value=step),
            AnyValue(string_value=str(step)),
            AnyValue(double_value=random.choice(_VALUES)),
            AnyValue(bool_value=True),
            AnyValue(),
        )
    )


def _values(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    for point in _points(metric):
        for field in ("as_double", "sum", "min", "max", "zero_threshold"):
            if field in point.DESCRIPTOR.fields_by_name and random.random() < 0.5:
                setattr(point, field, random.choice(_VALUES))
        if "as_int" in point.DESCRIPTOR.fields_by_name and random.random() < 0.3:
            point.as_int = random.choice(_STEPS)


def _counts(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    for point in _points(metric):
        names = point.DESCRIPTOR.fields_by_name
        if "count" in names:
            point.count = random.choice(_COUNTS)
        if "zero_count" in names:
            point.zero_count = random.choice(_COUNTS)
        if "bucket_counts" in names and point.bucket_counts:
            point.bucket_counts[random.randrange(len(point.bucket_counts))] = random.choice(_COUNTS)
        if "quantile_values" in names:
            for quantile in point.quantile_values:
                quantile.quantile = random.choice((*_VALUES, 0.5, 2.0, -1.0))
                quantile.value = random.choice(_VALUES)


def _buckets(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    for point in _points(metric):
        names = point.DESCRIPTOR.fields_by_name
        if "explicit_bounds" in names:
            bounds = sorted({random.choice(_VALUES[:-1]) for _ in range(random.randint(0, 6))})
            del point.explicit_bounds[:]
            del point.bucket_counts[:]
            point.explicit_bounds.extend(bounds)
            point.bucket_counts.extend(random.choice(_COUNTS) for _ in range(len(bounds) + 1))
        if "scale" in names:
            point.scale = random.choice((-11, -10, 0, 1, 20, 21, 2**31 - 1))
            point.positive.offset = random.choice((0, -1, 1000, -1000, 2**31 - 1, -(2**31)))


def _kind(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    """Another type, temporality or direction under the same name."""
    kind = metric.WhichOneof("data")
    if kind in {"sum", "histogram", "exponential_histogram"}:
        getattr(metric, kind).aggregation_temporality = random.choice((0, 1, 2, 3, 99))
    if kind == "sum":
        metric.sum.is_monotonic = random.random() < 0.5
    if kind == "gauge" and random.random() < 0.5:
        points = list(metric.gauge.data_points)
        metric.sum.data_points.extend(points)
        metric.sum.aggregation_temporality = random.choice(_TEMPORALITIES)


def _name(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    metric.name = random.choice(_NAMES)
    metric.unit = random.choice(_UNITS)


def _worker(random: Random, resource: ResourceMetrics, _metric: Metric) -> None:
    values: dict[str, Sequence[str | int]] = {
        "rl.worker.role": _ROLES,
        "rl.worker.index": (0, 1, -1, 2**31, 2**63 - 1),
        "rl.worker.count": (0, 1, -1, 3, 2**63 - 1),
        "rl.trial.name": ("default", "other", "t" * 128, "../x"),
        "rl.experiment.name": ("fuzz", "f/../z", *(f"fuzz-{n}" for n in range(40))),
        "service.instance.id": ("", "one", "two", "i" * 200),
        "telemetry.distro.name": ("otel_rl", "other"),
    }
    key = random.choice(list(values))
    value = random.choice(values[key])
    attributes = [a for a in resource.resource.attributes if a.key != key]
    changed = KeyValue(key=key)
    if isinstance(value, int):
        changed.value.int_value = value
    else:
        changed.value.string_value = value
    del resource.resource.attributes[:]
    resource.resource.attributes.extend([*attributes, changed])


def _scope(random: Random, resource: ResourceMetrics, _metric: Metric) -> None:
    scope = random.choice(resource.scope_metrics).scope
    scope.name = random.choice(("otel_rl", "", "\x00", "other"))
    del scope.attributes[:]
    reduce = random.choice(("mean", "sum", "min", "max", "std", "last", "MEAN", "", "p99"))
    scope.attributes.add(key="rl.reduce").value.string_value = reduce


def _series(random: Random, _resource: ResourceMetrics, metric: Metric) -> None:
    """As many series as points may make."""
    points = _points(metric)
    for point in list(points)[:1]:
        for n in range(random.choice((1, 20, 100))):
            another = points.add()  # type: ignore[attr-defined]  # a repeated field
            another.CopyFrom(point)
            another.attributes.add(key="n").value.int_value = n + random.choice((0, 1000))


def _attribute_owners(metric: Metric) -> Iterator:  # type: ignore[type-arg]  # repeated KeyValue
    for point in _points(metric):
        yield point.attributes
        if "exemplars" in point.DESCRIPTOR.fields_by_name:
            for exemplar in point.exemplars:
                yield exemplar.filtered_attributes


_CHANGES: Sequence[Callable[[Random, ResourceMetrics, Metric], None]] = (
    _times,
    _steps,
    _values,
    _counts,
    _buckets,
    _kind,
    _name,
    _worker,
    _scope,
    _series,
)
