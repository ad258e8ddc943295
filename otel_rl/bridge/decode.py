"""One accepted batch to measurements, sums and histograms, grouped by experiment.

The batch was parsed and checked at the door, so what fails here is a bug, not bad input. Decoding
keeps nothing between batches but caches.

How a gauge point is read (docs/adr/0000): by its exemplars, if they are complete or carry steps,
else by its own value.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.records import (
    Batch,
    Decoded,
    ExperimentKey,
    Export,
    HistogramPoint,
    Measurements,
    Point,
    Series,
    Signal,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction

__all__ = ["decode"]

NONFINITE_SCOPE = "otel_rl.nonfinite"
DISTRO = "otel_rl"

_NONFINITE = {0.0: math.nan, 1.0: math.inf, -1.0: -math.inf}

_DEFAULT_ROLE = "worker"

_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


def decode(batch: Batch) -> list[Decoded]:
    """What ``batch`` says, one entry per experiment, in the order of the request.

    Points without an event time get the batch's ``received_ns``. Spans and logs are not decoded.
    """
    if batch.signal is not Signal.METRICS:
        return []
    request = ExportMetricsServiceRequest.FromString(batch.payload)
    points: dict[ExperimentKey, list[Point]] = {}
    exports: dict[ExperimentKey, dict[Worker, int]] = {}
    for resource_metrics in request.resource_metrics:
        key, worker, exact = _identity(resource_metrics.resource)
        found = points.setdefault(key, [])
        before = len(found)
        found.extend(_points(resource_metrics, worker, exact=exact, now_ns=batch.received_ns))
        latest = max((_latest_ns(point) for point in found[before:]), default=0)
        workers = exports.setdefault(key, {})
        workers[worker] = max(workers.get(worker, 0), latest)
    return [
        Decoded(key, found, [Export(worker, ns) for worker, ns in exports[key].items()])
        for key, found in points.items()
    ]


def _identity(resource: Resource) -> tuple[ExperimentKey, Worker, bool]:
    """The run, the worker, and whether its exemplars are complete."""
    attributes = dict(_attributes(resource.attributes))
    service = attributes.get("service.name", "")
    role = attributes.get(names.RL_WORKER_ROLE) or (
        _DEFAULT_ROLE if not service or service.startswith("unknown_service") else service
    )
    key = ExperimentKey(
        attributes[names.RL_EXPERIMENT_NAME], attributes.get(names.RL_TRIAL_NAME) or "default"
    )
    instance = attributes.get("service.instance.id") or "/".join(
        attributes.get(name, "") for name in ("host.name", "process.pid", names.RL_WORKER_INDEX)
    )
    worker = Worker(
        role=role,
        instance=instance,
        index=_int(attributes.get(names.RL_WORKER_INDEX)),
        count=_int(attributes.get(names.RL_WORKER_COUNT)),
    )
    return key, worker, attributes.get("telemetry.distro.name") == DISTRO


def _points(
    resource_metrics: ResourceMetrics, worker: Worker, *, exact: bool, now_ns: int
) -> Iterator[Point]:
    for scope_metrics in resource_metrics.scope_metrics:
        reduction = _reduction(scope_metrics.scope)
        nonfinite = scope_metrics.scope.name == NONFINITE_SCOPE
        for metric in scope_metrics.metrics:
            match metric.WhichOneof("data"):
                case "gauge":
                    for point in metric.gauge.data_points:
                        if not point.flags & _NO_VALUE:
                            yield from _gauge(
                                metric,
                                point,
                                worker,
                                reduction,
                                exact=exact,
                                nonfinite=nonfinite,
                                now_ns=now_ns,
                            )
                case "sum":
                    yield from _sums(metric, worker, reduction, now_ns)
                case "histogram":
                    yield from _histograms(metric, worker, reduction, now_ns)
                case "exponential_histogram":
                    yield from _exponential_histograms(metric, worker, reduction, now_ns)
                case "summary":
                    yield from _summaries(metric, worker, reduction, now_ns)
                case _:
                    pass  # a metric without data says nothing: accepted and ignored


def _gauge(
    metric: Metric,
    point: NumberDataPoint,
    worker: Worker,
    reduction: Reduction | None,
    *,
    exact: bool,
    nonfinite: bool,
    now_ns: int,
) -> Iterator[Measurements]:
    step, attributes = _step_and_rest(point.attributes)
    series = Series(worker, metric.name, metric.unit, attributes, reduction)
    measured = [(exemplar, _step(exemplar.filtered_attributes)) for exemplar in point.exemplars]
    if not exact:
        # A stock SDK keeps a sample of the exemplars; only a step makes one worth a row.
        measured = [pair for pair in measured if pair[1] is not None]
    if measured:
        times = [exemplar.time_unix_nano or now_ns for exemplar, _ in measured]
        values = [_number(exemplar) for exemplar, _ in measured]
        steps = [step if own is None else own for _, own in measured]
    else:
        times = [point.time_unix_nano or now_ns]
        values = [_number(point)]
        steps = [step]
    if nonfinite:
        values = [_NONFINITE.get(value, math.nan) for value in values]
    yield Measurements(series, times, values, steps)


def _sums(
    metric: Metric, worker: Worker, reduction: Reduction | None, now_ns: int
) -> Iterator[SumPoint]:
    temporality = _temporality(metric.sum.aggregation_temporality)
    for point in metric.sum.data_points:
        if point.flags & _NO_VALUE:
            continue
        yield SumPoint(
            series=Series(
                worker, metric.name, metric.unit, _attributes(point.attributes), reduction
            ),
            start_ns=point.start_time_unix_nano,
            time_ns=point.time_unix_nano or now_ns,
            value=_number(point),
            temporality=temporality,
            monotonic=metric.sum.is_monotonic,
        )


def _histograms(
    metric: Metric, worker: Worker, reduction: Reduction | None, now_ns: int
) -> Iterator[HistogramPoint]:
    temporality = _temporality(metric.histogram.aggregation_temporality)
    for point in metric.histogram.data_points:
        if not point.flags & _NO_VALUE:
            yield _histogram(
                metric, point, worker, reduction, temporality, _explicit_buckets(point), now_ns
            )


def _exponential_histograms(
    metric: Metric, worker: Worker, reduction: Reduction | None, now_ns: int
) -> Iterator[HistogramPoint]:
    temporality = _temporality(metric.exponential_histogram.aggregation_temporality)
    for point in metric.exponential_histogram.data_points:
        if not point.flags & _NO_VALUE:
            yield _histogram(
                metric, point, worker, reduction, temporality, _exponential_buckets(point), now_ns
            )


def _histogram(
    metric: Metric,
    point: HistogramDataPoint | ExponentialHistogramDataPoint,
    worker: Worker,
    reduction: Reduction | None,
    temporality: Temporality,
    buckets: tuple[tuple[float, float, int], ...],
    now_ns: int,
) -> HistogramPoint:
    return HistogramPoint(
        series=Series(worker, metric.name, metric.unit, _attributes(point.attributes), reduction),
        start_ns=point.start_time_unix_nano,
        time_ns=point.time_unix_nano or now_ns,
        temporality=temporality,
        count=point.count,
        total=point.sum if point.HasField("sum") else None,
        minimum=point.min if point.HasField("min") else None,
        maximum=point.max if point.HasField("max") else None,
        buckets=buckets,
    )


def _explicit_buckets(point: HistogramDataPoint) -> tuple[tuple[float, float, int], ...]:
    bounds = [-math.inf, *point.explicit_bounds, math.inf]
    return tuple(
        (lower, upper, count)
        for lower, upper, count in zip(bounds, bounds[1:], point.bucket_counts, strict=False)
        if count
    )


def _exponential_buckets(
    point: ExponentialHistogramDataPoint,
) -> tuple[tuple[float, float, int], ...]:
    # https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
    def bound(index: int) -> float:
        exponent = math.ldexp(index, -point.scale)
        try:
            return math.pow(2.0, exponent)
        except OverflowError:
            return math.inf

    negative = [
        (-bound(index + 1), -bound(index), count)
        for index, count in enumerate(point.negative.bucket_counts, point.negative.offset)
        if count
    ]
    zero = [(-point.zero_threshold, point.zero_threshold, point.zero_count)]
    positive = [
        (bound(index), bound(index + 1), count)
        for index, count in enumerate(point.positive.bucket_counts, point.positive.offset)
        if count
    ]
    return (*reversed(negative), *(zero if point.zero_count else ()), *positive)


def _summaries(
    metric: Metric, worker: Worker, reduction: Reduction | None, now_ns: int
) -> Iterator[SummaryPoint]:
    for point in metric.summary.data_points:
        if not point.flags & _NO_VALUE:
            yield SummaryPoint(
                series=Series(
                    worker, metric.name, metric.unit, _attributes(point.attributes), reduction
                ),
                time_ns=point.time_unix_nano or now_ns,
                count=point.count,
                total=point.sum,
                quantiles=tuple((q.quantile, q.value) for q in point.quantile_values),
            )


def _reduction(scope: InstrumentationScope) -> Reduction | None:
    for attribute in scope.attributes:
        if attribute.key == names.RL_REDUCE:
            try:
                return Reduction(attribute.value.string_value)
            except ValueError:
                return None  # a word from a later version: the registry's reduction stands
    return None


def _number(point: NumberDataPoint | Exemplar) -> float:
    # Integers stay integers, so that sums of them are exact.
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _temporality(value: AggregationTemporality.ValueType) -> Temporality:
    if value == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA:
        return Temporality.DELTA
    return Temporality.CUMULATIVE


def _step(attributes: Iterable[KeyValue]) -> int | None:
    for attribute in attributes:
        if attribute.key == names.RL_LOOP_ITERATION:
            return _int(_text(attribute.value))
    return None


def _step_and_rest(
    attributes: Sequence[KeyValue],
) -> tuple[int | None, tuple[tuple[str, str], ...]]:
    """The step, where an SDK without the exact View leaves it on the point, and the rest."""
    step = _step(attributes)
    if step is None:
        return None, _attributes(attributes)
    rest = [attribute for attribute in attributes if attribute.key != names.RL_LOOP_ITERATION]
    return step, _attributes(rest)


def _attributes(attributes: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((attribute.key, _text(attribute.value)) for attribute in attributes))


def _text(value: AnyValue) -> str:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return repr(value.double_value)
        case "array_value":
            return ",".join(_text(item) for item in value.array_value.values)
        case "kvlist_value":
            return ",".join(f"{kv.key}={_text(kv.value)}" for kv in value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
    return ""


def _int(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(float(text)) if "." in text else int(text)
    except (ValueError, OverflowError):
        return None


def _latest_ns(point: Point) -> int:
    return max(point.times_ns) if isinstance(point, Measurements) else point.time_ns
