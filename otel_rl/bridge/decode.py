"""One accepted batch to measurements, sums and histograms.

The batch was parsed and checked at the door, so what fails here is a bug, not bad input. Decoding
keeps nothing between batches but caches.

How a gauge point is read (docs/adr/0000): by its exemplars, if they are complete or carry steps,
else by its own value. How it is known when it comes again: see ``Covered``. How far a worker has
come is what its heartbeat says, or for any other sender the times of its points.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    SummaryDataPoint,
)

from otel_rl.bridge.decode_events import decode_events
from otel_rl.bridge.decode_spans import decode_spans
from otel_rl.bridge.device import at_host
from otel_rl.bridge.otlp.attributes import step_of, text_pairs
from otel_rl.bridge.otlp.exemplars import ExemplarColumns, read_exemplars
from otel_rl.bridge.otlp.scraped import translate
from otel_rl.bridge.otlp.sender import Sender, sender_of
from otel_rl.bridge.otlp.view import MetricsView, exemplars_of
from otel_rl.records import (
    Batch,
    Covered,
    Decoded,
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
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["decode"]

_Timed = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint

_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

# Bound of a cache, for a few thousand processes.
_MAX_SERIES = 1 << 16


def decode(batch: Batch) -> Decoded:
    """What ``batch`` says, in the order of the request.

    Points without an event time get the batch's ``received_ns``. Spans are not decoded.
    """
    if batch.signal is Signal.LOGS:
        return decode_events(batch)
    if batch.signal is Signal.TRACES:
        return decode_spans(batch)
    points: list[Point] = []
    exports: dict[Worker, int] = {}
    if batch.signal is Signal.METRICS:
        for resource_metrics in MetricsView.FromString(batch.payload).resource_metrics:
            sender = sender_of(resource_metrics.resource.SerializeToString())
            before = len(points)
            points.extend(_points(resource_metrics, sender, batch.received_ns))
            sent_ns = _beat_ns(resource_metrics)
            if not sender.exact:
                sent_ns = max(map(_latest_ns, points[before:]), default=sent_ns)
            exports[sender.worker] = max(exports.get(sender.worker, 0), sent_ns)
    return Decoded(points, [Export(worker, ns) for worker, ns in exports.items()])


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the points of a scope have in common.

    Attributes:
        sender: Whose they are.
        name: Of the scope, with its version and attributes.
        reduction: As the sender asked for.
        now_ns: The time of points that have none.
    """

    sender: Sender
    name: str
    reduction: Reduction | None
    now_ns: int

    def series(
        self, metric: Metric, instrument: Instrument, attributes: Iterable[KeyValue]
    ) -> Series:
        """The series of a point with ``attributes``; the same object each time, mostly."""
        return _series(
            self.sender,
            self.name,
            metric.name,
            metric.unit,
            instrument,
            self.reduction,
            tuple([attribute.SerializeToString() for attribute in attributes]),
        )

    def covers(self, point: _Timed, *, tiles: bool) -> Covered | None:
        """How a point is known when it comes again, see ``Covered``.

        Args:
            point: As sent.
            tiles: Whether its start moves with each point of the series.
        """
        start_ns, end_ns = point.start_time_unix_nano, point.time_unix_nano
        if not end_ns:
            return None
        return Covered(start_ns if tiles and self.sender.exact and start_ns < end_ns else 0, end_ns)


@lru_cache(maxsize=_MAX_SERIES)
def _series(
    sender: Sender,
    scope: str,
    name: str,
    unit: str,
    instrument: Instrument,
    reduction: Reduction | None,
    attributes: tuple[bytes, ...],
) -> Series:
    parsed = text_pairs(map(KeyValue.FromString, attributes))
    if sender.host:
        parsed = at_host(parsed, sender.host)
    return Series(sender.worker, name, unit, parsed, reduction, instrument, scope)


def _points(resource_metrics: ResourceMetrics, sender: Sender, now_ns: int) -> Iterator[Point]:
    for scope_metrics in resource_metrics.scope_metrics:
        sent = scope_metrics.scope
        scope = _Scope(sender, _scope_name(sent), _reduction(sent), now_ns)
        for metric in scope_metrics.metrics:
            if not sender.exact:
                translate(metric)
            match metric.WhichOneof("data"):
                case "gauge":
                    for point in metric.gauge.data_points:
                        if not point.flags & _NO_VALUE:
                            yield _gauge(metric, point, scope)
                case "sum":
                    yield from _sums(metric, scope)
                case "histogram":
                    yield from _histograms(metric, scope)
                case "exponential_histogram":
                    yield from _exponential_histograms(metric, scope)
                case "summary":
                    yield from _summaries(metric, scope)
                case _:
                    pass  # a metric without data says nothing: accepted and ignored


def _gauge(metric: Metric, point: NumberDataPoint, scope: _Scope) -> Measurements:
    attributes, now_ns = point.attributes, scope.now_ns
    # Where an SDK without the exact View leaves the step.
    step = step_of(attributes) if attributes else None
    rest: Iterable[KeyValue] = attributes
    if step is not None:
        rest = [pair for pair in attributes if pair.key != names.RL_LOOP_ITERATION]
    series = scope.series(metric, Instrument.GAUGE, rest)
    exemplars = list(exemplars_of(point))
    measured = read_exemplars(exemplars) if exemplars else None
    covers = None
    if measured is not None:
        if scope.sender.exact:
            covers = scope.covers(point, tiles=True)
        else:
            measured = _with_steps(measured)
    if measured is not None:
        times_ns, values, steps = measured
        if 0 in times_ns:
            times_ns = [time_ns or now_ns for time_ns in times_ns]
        if step is not None:
            steps = [step if own is None else own for own in steps]
    else:
        times_ns, values, steps = [point.time_unix_nano or now_ns], [_number(point)], [step]
        if step is None:
            covers = scope.covers(point, tiles=True)
    return Measurements(series, times_ns, values, steps, covers)


def _with_steps(measured: ExemplarColumns) -> ExemplarColumns | None:
    """Those with a step: a stock SDK keeps a sample, of which only a step makes one worth a row."""
    if None not in measured.steps:
        return measured
    kept = [row for row in zip(*measured, strict=True) if row[2] is not None]
    return ExemplarColumns(*zip(*kept, strict=True)) if kept else None


def _sums(metric: Metric, scope: _Scope) -> Iterator[SumPoint]:
    temporality = _temporality(metric.sum.aggregation_temporality)
    instrument = Instrument.COUNTER if metric.sum.is_monotonic else Instrument.UP_DOWN_COUNTER
    for point in metric.sum.data_points:
        if not point.flags & _NO_VALUE:
            yield SumPoint(
                series=scope.series(metric, instrument, point.attributes),
                start_ns=point.start_time_unix_nano,
                time_ns=point.time_unix_nano or scope.now_ns,
                value=_number(point),
                temporality=temporality,
                covers=scope.covers(point, tiles=temporality is Temporality.DELTA),
            )


def _histograms(metric: Metric, scope: _Scope) -> Iterator[HistogramPoint]:
    temporality = _temporality(metric.histogram.aggregation_temporality)
    for point in metric.histogram.data_points:
        if not point.flags & _NO_VALUE:
            yield _histogram(metric, point, scope, temporality, _explicit_buckets(point))


def _exponential_histograms(metric: Metric, scope: _Scope) -> Iterator[HistogramPoint]:
    temporality = _temporality(metric.exponential_histogram.aggregation_temporality)
    for point in metric.exponential_histogram.data_points:
        if not point.flags & _NO_VALUE:
            yield _histogram(metric, point, scope, temporality, _exponential_buckets(point))


def _histogram(
    metric: Metric,
    point: HistogramDataPoint | ExponentialHistogramDataPoint,
    scope: _Scope,
    temporality: Temporality,
    buckets: tuple[tuple[float, float, int], ...],
) -> HistogramPoint:
    return HistogramPoint(
        series=scope.series(metric, Instrument.HISTOGRAM, point.attributes),
        start_ns=point.start_time_unix_nano,
        time_ns=point.time_unix_nano or scope.now_ns,
        temporality=temporality,
        count=point.count,
        total=point.sum if point.HasField("sum") else None,
        minimum=point.min if point.HasField("min") else None,
        maximum=point.max if point.HasField("max") else None,
        buckets=buckets,
        covers=scope.covers(point, tiles=temporality is Temporality.DELTA),
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


def _summaries(metric: Metric, scope: _Scope) -> Iterator[SummaryPoint]:
    for point in metric.summary.data_points:
        if not point.flags & _NO_VALUE:
            yield SummaryPoint(
                series=scope.series(metric, Instrument.GAUGE, point.attributes),
                time_ns=point.time_unix_nano or scope.now_ns,
                count=point.count,
                total=point.sum,
                quantiles=tuple((q.quantile, q.value) for q in point.quantile_values),
                covers=scope.covers(point, tiles=False),
            )


def _scope_name(scope: InstrumentationScope) -> str:
    attributes = [pair for pair in scope.attributes if pair.key != names.RL_REDUCE]
    if not attributes:
        return f"{scope.name}@{scope.version}" if scope.version else scope.name
    return f"{scope.name}@{scope.version}{dict(text_pairs(attributes))}"


def _reduction(scope: InstrumentationScope) -> Reduction | None:
    for attribute in scope.attributes:
        if attribute.key == names.RL_REDUCE:
            try:
                return Reduction(attribute.value.string_value)
            except ValueError:
                return None  # a word from a later version: the registry's reduction stands
    return None


def _number(point: NumberDataPoint) -> float:
    # Integers stay integers, so that sums of them are exact.
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _temporality(value: AggregationTemporality.ValueType) -> Temporality:
    if value == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA:
        return Temporality.DELTA
    return Temporality.CUMULATIVE


def _latest_ns(point: Point) -> int:
    return max(point.times_ns) if isinstance(point, Measurements) else point.time_ns


def _beat_ns(resource_metrics: ResourceMetrics) -> int:
    """The latest time of a point that has a time and no value; 0 if there is none."""
    return max(
        (
            point.time_unix_nano
            for scope_metrics in resource_metrics.scope_metrics
            for metric in scope_metrics.metrics
            for point in metric.gauge.data_points
            if point.flags & _NO_VALUE
        ),
        default=0,
    )
