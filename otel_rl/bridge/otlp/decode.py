"""Decodes an accepted batch into measurements, sums and histograms.

The batch was validated on receipt, so a failure here is a bug, not bad input. Only caches are kept
between batches.

A gauge point is read by its exemplars if they are complete or carry steps, else by its own value
(docs/adr/0000). The step is removed from the attributes of every kind of point. Repeats are
recognised as described in ``Covered``. The progress of a worker is that of its heartbeat; for any
other sender it is the times of its points.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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

from otel_rl.bridge.otlp.attributes import step_of, text_pairs, typed_pairs
from otel_rl.bridge.otlp.counts_of_steps import step_distributions, step_sums
from otel_rl.bridge.otlp.device_attributes import at_host
from otel_rl.bridge.otlp.events import decode_events, event_parts
from otel_rl.bridge.otlp.exemplars import ExemplarColumns, read_exemplars
from otel_rl.bridge.otlp.known_bodies import KnownBody, learn_body, read_known
from otel_rl.bridge.otlp.known_points import JoinedPoints, KnownPoints, KnownShares, KnownSums
from otel_rl.bridge.otlp.raw_exemplars import MetricsView, MetricView, exemplars_of
from otel_rl.bridge.otlp.resource import COPY_MARKS, Sender, sender_of
from otel_rl.bridge.otlp.scraped_names import translate
from otel_rl.bridge.otlp.shapes import HISTOGRAMS, MAX_BODY_BYTES, resource_parts
from otel_rl.bridge.otlp.spans import decode_spans, span_parts
from otel_rl.records import (
    PART,
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
from otel_rl.semconv.folded_attributes import fold
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["decode", "decode_parts"]

_Timed = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint

_KNOWN = KnownPoints | KnownShares | KnownSums

_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

# The mark of a scope, as a Prometheus exporter writes it and as older receivers leave it.
_COPY_LABEL = "otel_scope_otel_rl_copy"

# Cost of a resource without points, in points.
_RESOURCE = 4

# Bounds of two caches, for a few thousand processes: together they hold 48 MiB of received data.
_MAX_SERIES, _MAX_LONG_SERIES = 1 << 16, 1 << 10
_MAX_SCOPES = 1 << 10
_MAX_BUCKETS = 1 << 13  # of exponential histograms; a MiB
_LONG_BYTES = 512  # attributes and scope; most have less than a hundred bytes


def decode(batch: Batch) -> Decoded:
    """Decode ``batch``, in the order of the request.

    Points without an event time get the batch's ``received_ns``.
    """
    if batch.signal is Signal.LOGS:
        return decode_events(batch)
    if batch.signal is Signal.TRACES:
        return decode_spans(batch)
    *parts, last = _metric_parts(batch)
    return replace(last, points=[point for part in (*parts, last) for point in part.points])


def decode_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    """Decode in parts of about ``most`` points each, however large the batch is.

    The parts are the same at every call. Facts about the whole batch, such as the progress of its
    workers, are in the last one. Spans are in the order of their ends, so that a nested span
    precedes its parent also across parts; the parts before them are empty, and only take time.
    """
    match batch.signal:
        case Signal.LOGS:
            yield from event_parts(batch, most)
        case Signal.TRACES:
            yield from span_parts(batch, most)
        case Signal.METRICS:
            yield from _metric_parts(batch, most)


def _metric_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    # Points in their order: those of known shapes as they are, and the others in lists.
    points: list[Sequence[Point]] = []
    exports: dict[Worker, Export] = {}
    size = 0
    for sender, of_resource, beat_ns in _resources(batch):
        latest_ns: int | None = None
        for part in of_resource:
            if isinstance(part, _KNOWN) and size + len(part) < most:
                points.append(part)
                size += len(part)  # one value each
                continue
            others: list[Point] = []
            for point in part:
                others.append(point)
                if not sender.exact:
                    latest_ns = max(latest_ns or 0, _latest_ns(point))
                size += _size(point)
                if size >= most:
                    yield Decoded(_joined([*points, others]), (), has_more=True)
                    points, others, size = [], [], 0
            if others:
                points.append(others)
        sent_ns = beat_ns if latest_ns is None else latest_ns
        before_ns = exports[sender.worker].time_ns if sender.worker in exports else 0
        exports[sender.worker] = Export(
            sender.worker,
            max(before_ns, sent_ns),
            sender.exact,
            host=sender.host,
            pid=sender.pid,
        )
        size += _RESOURCE
    yield Decoded(_joined(points), list(exports.values()))


def _joined(parts: Sequence[Sequence[Point]]) -> Sequence[Point]:
    return parts[0] if len(parts) == 1 else JoinedPoints(parts)


def _resources(batch: Batch) -> Iterator[tuple[Sender, Iterable[Iterable[Point]], int]]:
    """Yield the sender, the points and the latest heartbeat of each resource.

    Workers of otel_rl send the same series in the same order each time: a body of a known shape is
    read without being parsed, into the same points.
    """
    payload, now_ns = batch.payload, batch.received_ns
    parts = resource_parts(payload)
    if parts is None:
        for resource_metrics in MetricsView.FromString(payload).resource_metrics:
            sender = sender_of(resource_metrics.resource.SerializeToString())
            if sender.is_copy or _are_copies(resource_metrics):
                continue
            yield sender, [_points(resource_metrics, sender, now_ns)], _beat_ns(resource_metrics)
        return
    for part in parts:
        sender = sender_of(payload[part.resource : part.resource_end])
        if sender.is_copy:
            continue
        body = payload[part.body : part.body_end]
        is_short = sender.exact and len(body) <= MAX_BODY_BYTES
        known = read_known(sender, body, now_ns) if is_short else None
        histograms = None if known is None else _known_histograms(known, sender, now_ns)
        if known is not None and histograms is not None:
            counted = [part for part in (known.shares, known.sums, histograms) if part]
            yield sender, (known.gauges, *counted), known.beat_ns
            continue
        (parsed,) = MetricsView.FromString(payload[part.start : part.end]).resource_metrics
        copies = [_is_copy(scope_metrics.scope) for scope_metrics in parsed.scope_metrics]
        if copies and all(copies):
            continue
        # A body may hold a second resource; it has no shape then.
        merged = sender_of(parsed.resource.SerializeToString())
        points: Iterable[Point] = _points(parsed, merged, now_ns)
        if is_short and not any(copies):  # a known body is read as it is
            points = sorted(points, key=_order)
            learn_body(sender, body, now_ns, points)
        yield merged, [points], _beat_ns(parsed)


def _order(point: Point) -> int:
    """Return the place of a point by its kind: a known body is read in this order."""
    if isinstance(point, SumPoint):
        return 1 if point.is_share else 2
    return 0 if isinstance(point, Measurements) else 3


def _known_histograms(known: KnownBody, sender: Sender, now_ns: int) -> Sequence[Point] | None:
    """Return the points of the histograms of a known body; None if other metrics are among them."""
    points: list[Point] = []
    for serialized_scope, serialized in known.histograms:
        metric = MetricView.FromString(serialized)
        if metric.WhichOneof("data") not in HISTOGRAMS:
            return None
        points += _points_of(metric, _scope(sender, serialized_scope, now_ns))
    return points


def _scope(sender: Sender, serialized: bytes, now_ns: int) -> "_Scope":
    is_long = len(serialized) > _LONG_BYTES
    name, reduction = (_read_scope if is_long else _known_scope)(serialized)
    return _Scope(sender, name, reduction, now_ns)


def _size(point: Point) -> int:
    """Return the work of a point, in single values."""
    if isinstance(point, Measurements):
        return len(point.values)
    return 1 + (len(point.buckets) >> 2 if isinstance(point, HistogramPoint) else 0)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Common fields of the points of a scope.

    Attributes:
        sender: Sender of the points.
        name: Of the scope, with its version and attributes.
        reduction: As requested by the sender.
        now_ns: Time of points without one.
    """

    sender: Sender
    name: str
    reduction: Reduction | None
    now_ns: int

    def series(
        self,
        metric: Metric,
        instrument: Instrument,
        attributes: Iterable[KeyValue],
        data: str = "",
    ) -> tuple[Series, int | None]:
        """Return the series of a point, mostly the same object each time, and its step.

        The step is not part of the series; otherwise each step would be another one.
        """
        serialized = tuple([attribute.SerializeToString() for attribute in attributes])
        size_bytes = sum(map(len, serialized)) + len(self.name)
        return (_series if size_bytes <= _LONG_BYTES else _long_series)(
            self.sender,
            self.name,
            metric.name,
            metric.unit,
            instrument,
            self.reduction,
            data,
            serialized,
        )

    def start_ns(self, point: _Timed) -> int:
        """Return the time since which a point counts; 0 if unknown.

        An SDK with a millisecond clock may start and collect at the same time with a valid count,
        so its start is moved back a little. For any other sender a start at the time of the point
        means unknown, see ``cumulative.py``.
        """
        start_ns = point.start_time_unix_nano
        return start_ns - 1 if start_ns and self.sender.knows_starts else start_ns

    def covers(self, point: _Timed, *, tiles: bool) -> Covered | None:
        """Return the key that recognises a repeat of a point, see ``Covered``.

        Args:
            point: As sent.
            tiles: Whether its start moves with each point of the series; with steps, of each step.
        """
        start_ns, end_ns = point.start_time_unix_nano, point.time_unix_nano
        if not end_ns:
            return None
        return Covered(start_ns if tiles and self.sender.exact and start_ns < end_ns else 0, end_ns)


def _read_series(
    sender: Sender,
    scope: str,
    name: str,
    unit: str,
    instrument: Instrument,
    reduction: Reduction | None,
    data: str,
    attributes: tuple[bytes, ...],
) -> tuple[Series, int | None]:
    messages = [KeyValue.FromString(attribute) for attribute in attributes]
    # Place of the step in an SDK without the exact View.
    step = step_of(messages)
    if step is not None:
        messages = [pair for pair in messages if pair.key != names.RL_LOOP_ITERATION]
    parsed, folded = fold(name, text_pairs(messages))
    if sender.host:
        parsed = at_host(parsed, sender.host)
    # In the series, so that each has its own totals; not in the key.
    typed = (*typed_pairs(messages), *folded)
    found = Series(sender.worker, name, unit, parsed, reduction, instrument, scope, typed, data)
    return found, step


_series = lru_cache(maxsize=_MAX_SERIES)(_read_series)
_long_series = lru_cache(maxsize=_MAX_LONG_SERIES)(_read_series)


def _points(resource_metrics: ResourceMetrics, sender: Sender, now_ns: int) -> Iterator[Point]:
    for scope_metrics in resource_metrics.scope_metrics:
        sent = scope_metrics.scope
        if _is_copy(sent):
            continue
        scope = _Scope(sender, _scope_name(sent), _reduction(sent), now_ns)
        for metric in scope_metrics.metrics:
            yield from _points_of(metric, scope)


def _are_copies(resource_metrics: ResourceMetrics) -> bool:
    """Report whether a worker has sent all of these itself, so that they tell of no other one."""
    scopes = resource_metrics.scope_metrics
    return bool(scopes) and all(_is_copy(scope_metrics.scope) for scope_metrics in scopes)


def _is_copy(scope: InstrumentationScope) -> bool:
    return any(attribute.key in COPY_MARKS for attribute in scope.attributes)


def _remove_copies(metric: Metric) -> None:
    """Remove the points that carry the mark of their scope as a label."""
    if _COPY_LABEL.encode() not in metric.SerializeToString():
        return
    kind = metric.WhichOneof("data")
    points = getattr(metric, kind).data_points if kind else []
    for place in reversed(range(len(points))):
        if any(label.key == _COPY_LABEL for label in points[place].attributes):
            del points[place]


def _points_of(metric: Metric, scope: _Scope) -> Iterator[Point]:
    if not scope.sender.exact:
        _remove_copies(metric)
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
            pass  # a metric without data is empty: accepted and ignored


def _gauge(metric: Metric, point: NumberDataPoint, scope: _Scope) -> Measurements:
    now_ns = scope.now_ns
    series, step = scope.series(metric, Instrument.GAUGE, point.attributes)
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
        return Measurements(series, times_ns, values, steps, covers)
    if step is None:
        covers = scope.covers(point, tiles=True)
    # A stock SDK keeps a point for every set of attributes, so also for every past step.
    told_since_ns = None
    if step is not None and not scope.sender.exact:
        told_since_ns = point.start_time_unix_nano
    times_ns = [point.time_unix_nano or now_ns]
    return Measurements(series, times_ns, [_number(point)], [step], covers, told_since_ns)


def _with_steps(measured: ExemplarColumns) -> ExemplarColumns | None:
    """Return the exemplars with a step: a stock SDK samples, and only a step is worth a row."""
    if None not in measured.steps:
        return measured
    kept = [row for row in zip(*measured, strict=True) if row[2] is not None]
    return ExemplarColumns(*zip(*kept, strict=True)) if kept else None


def _sums(metric: Metric, scope: _Scope) -> Iterator[SumPoint]:
    instrument = Instrument.COUNTER if metric.sum.is_monotonic else Instrument.UP_DOWN_COUNTER
    temporality = _temporality(metric.sum.aggregation_temporality)
    is_delta = temporality is Temporality.DELTA
    data = "delta" if is_delta else ""
    for point in metric.sum.data_points:
        if point.flags & _NO_VALUE:
            continue
        for of_step in step_sums(exemplars_of(point)):
            series, _ = scope.series(metric, instrument, point.attributes, "share")
            yield SumPoint(
                series=series,
                start_ns=of_step.begun_ns,
                time_ns=of_step.time_ns or scope.now_ns,
                value=of_step.value,
                temporality=Temporality.DELTA,
                covers=of_step.covers,
                step=of_step.step,
                is_share=True,
            )
        series, step = scope.series(metric, instrument, point.attributes, data)
        yield SumPoint(
            series=series,
            start_ns=scope.start_ns(point),
            time_ns=point.time_unix_nano or scope.now_ns,
            value=_number(point),
            temporality=temporality,
            covers=scope.covers(point, tiles=is_delta and step is None),
            step=step,
            is_scraped=scope.sender.is_scraped,
        )


def _histograms(metric: Metric, scope: _Scope) -> Iterator[HistogramPoint]:
    temporality = _temporality(metric.histogram.aggregation_temporality)
    for point in metric.histogram.data_points:
        if not point.flags & _NO_VALUE:
            yield from _distributions(metric, point, scope)
            yield _histogram(metric, point, scope, temporality, _explicit_buckets(point), "")


def _exponential_histograms(metric: Metric, scope: _Scope) -> Iterator[HistogramPoint]:
    temporality = _temporality(metric.exponential_histogram.aggregation_temporality)
    for point in metric.exponential_histogram.data_points:
        if not point.flags & _NO_VALUE:
            yield from _distributions(metric, point, scope)
            buckets = _exponential_buckets(point)
            yield _histogram(metric, point, scope, temporality, buckets, "exponential")


def _distributions(
    metric: Metric, point: HistogramDataPoint | ExponentialHistogramDataPoint, scope: _Scope
) -> Iterator[HistogramPoint]:
    times_ns = point.start_time_unix_nano, point.time_unix_nano
    for of_step in step_distributions(exemplars_of(point), *times_ns):
        series, _ = scope.series(metric, Instrument.HISTOGRAM, point.attributes, "share")
        yield HistogramPoint(
            series=series,
            start_ns=0,
            time_ns=of_step.time_ns or scope.now_ns,
            temporality=Temporality.DELTA,
            count=of_step.count,
            total=of_step.total,
            minimum=of_step.minimum,
            maximum=of_step.maximum,
            buckets=of_step.buckets,
            covers=of_step.covers,
            step=of_step.step,
            is_share=True,
        )


def _histogram(
    metric: Metric,
    point: HistogramDataPoint | ExponentialHistogramDataPoint,
    scope: _Scope,
    temporality: Temporality,
    buckets: tuple[tuple[float, float, int], ...],
    data: str,
) -> HistogramPoint:
    is_delta = temporality is Temporality.DELTA
    if is_delta:
        data = f"{data} delta".lstrip()
    series, step = scope.series(metric, Instrument.HISTOGRAM, point.attributes, data)
    return HistogramPoint(
        series=series,
        start_ns=scope.start_ns(point),
        time_ns=point.time_unix_nano or scope.now_ns,
        temporality=temporality,
        count=point.count,
        total=point.sum if point.HasField("sum") else None,
        minimum=point.min if point.HasField("min") else None,
        maximum=point.max if point.HasField("max") else None,
        buckets=buckets,
        covers=scope.covers(point, tiles=is_delta and step is None),
        step=step,
        is_scraped=scope.sender.is_scraped,
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
    scale, positive, negative = point.scale, point.positive, point.negative
    zero = [(-point.zero_threshold, point.zero_threshold, point.zero_count)]
    return (
        *[
            (-upper, -lower, count)
            for index, count in reversed([*enumerate(negative.bucket_counts, negative.offset)])
            if count
            for lower, upper in [_bucket(scale, index)]
        ],
        *(zero if point.zero_count else ()),
        *[
            (*_bucket(scale, index), count)
            for index, count in enumerate(positive.bucket_counts, positive.offset)
            if count
        ],
    )


@lru_cache(maxsize=_MAX_BUCKETS)
def _bucket(scale: int, index: int) -> tuple[float, float]:
    """Return the bounds of a bucket, the same ones in each export of a series.

    https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
    """
    return _bound(scale, index), _bound(scale, index + 1)


def _bound(scale: int, index: int) -> float:
    exponent = math.ldexp(index, -scale)
    try:
        return math.pow(2.0, exponent)
    except OverflowError:
        return math.inf


def _summaries(metric: Metric, scope: _Scope) -> Iterator[SummaryPoint]:
    for point in metric.summary.data_points:
        if not point.flags & _NO_VALUE:
            series, step = scope.series(metric, Instrument.GAUGE, point.attributes, "summary")
            yield SummaryPoint(
                series=series,
                time_ns=point.time_unix_nano or scope.now_ns,
                count=point.count,
                total=point.sum,
                quantiles=tuple((q.quantile, q.value) for q in point.quantile_values),
                covers=scope.covers(point, tiles=False),
                step=step,
                start_ns=scope.start_ns(point),
                is_scraped=scope.sender.is_scraped,
            )


def _scope_name(scope: InstrumentationScope) -> str:
    attributes = [pair for pair in scope.attributes if pair.key != names.RL_REDUCE]
    if not attributes:
        return f"{scope.name}@{scope.version}" if scope.version else scope.name
    typed = typed_pairs(attributes)
    return f"{scope.name}@{scope.version}{dict(text_pairs(attributes))}{dict(typed) or ''}"


def _read_scope(serialized: bytes) -> tuple[str, Reduction | None]:
    scope = InstrumentationScope.FromString(serialized)
    return _scope_name(scope), _reduction(scope)


_known_scope = lru_cache(maxsize=_MAX_SCOPES)(_read_scope)


def _reduction(scope: InstrumentationScope) -> Reduction | None:
    for attribute in scope.attributes:
        if attribute.key == names.RL_REDUCE:
            try:
                return Reduction(attribute.value.string_value)
            except ValueError:
                return None  # a later version's value: the registry's reduction holds
    return None


def _number(point: NumberDataPoint) -> float:
    # Integers stay integers, so that sums of them are exact.
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _temporality(value: AggregationTemporality.ValueType) -> Temporality:
    is_delta = value == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    return Temporality.DELTA if is_delta else Temporality.CUMULATIVE


def _latest_ns(point: Point) -> int:
    return max(point.times_ns) if isinstance(point, Measurements) else point.time_ns


def _beat_ns(resource_metrics: ResourceMetrics) -> int:
    """Return the latest time of a point with a time and no value; 0 if there is none."""
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
