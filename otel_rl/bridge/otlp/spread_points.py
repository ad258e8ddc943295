"""Makes points of histograms and summaries: each is an object, as their lengths differ."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Protocol, cast

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    SummaryDataPoint,
)

from otel_rl.bridge.otlp.counts_of_steps import step_distributions
from otel_rl.bridge.otlp.identities import Sender, serialized, split_step
from otel_rl.bridge.otlp.views import exemplars_of
from otel_rl.records import Buckets, Covered, HistogramPoint, Series, SummaryPoint, Temporality
from otel_rl.semconv.spec import Instrument

FindSeries = Callable[[Instrument, str, tuple[bytes, ...]], Series]
"""Returns the series of a metric's points by their instrument, kind of data and attributes."""

_NO_VALUE: Final = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA

_DATA: Final = {"histogram": "", "exponential_histogram": "exponential", "summary": "summary"}
"""Of a metric's kind, see ``Series.data``."""

_MAX_BUCKETS: Final = 1 << 13
"""Bounds of buckets of exponential histograms that are kept; a MiB."""

_MAX_LAYOUTS: Final = 1 << 8
"""Layouts of each kind that are kept, of mostly 16 to 160 buckets."""

_Histogram = HistogramDataPoint | ExponentialHistogramDataPoint
_Spread = _Histogram | SummaryDataPoint
_Layout = tuple[tuple[float, float], ...]


class PointRules(Protocol):
    """Bounds of the receiving side that can be checked for whole columns.

    A value within the bounds has no fault. A value outside may have none either.
    """

    @property
    def mark(self) -> object:
        """Value that marks the identities that these rules have accepted."""

    @property
    def earliest_ns(self) -> int: ...

    @property
    def latest_ns(self) -> int: ...

    @property
    def short_bytes(self) -> int:
        """Size of an exemplar, or of a point's attributes, below which it has no fault."""

    @property
    def max_exemplars(self) -> int: ...

    @property
    def max_buckets(self) -> int: ...

    def are_sound(self, metric: str, kind: str, points: Sequence[Any]) -> bool:
        """Return whether no point of a histogram or summary has a fault."""


class InDoubt(Exception):  # it is no error
    """A value is new, or not within the bounds: each item of the resource must be checked."""


def spread_points(
    metric: Metric,
    kind: str,
    points: Sequence[_Spread],
    find: FindSeries,
    sender: Sender,
    now_ns: int,
    rules: PointRules | None,
) -> Iterator[HistogramPoint | SummaryPoint]:
    """Yield the points of a histogram, of either kind, or of a summary.

    Raises:
        InDoubt: A point is not certain to be within the bounds.
    """
    if rules is not None and kind != "histogram":
        rules = _checked(metric, kind, points, rules)
    is_scaled, data = kind == "exponential_histogram", _DATA[kind]
    temporality = Temporality.CUMULATIVE
    if kind != "summary":
        temporality = temporality_of(getattr(metric, kind).aggregation_temporality)
    is_delta = temporality is Temporality.DELTA
    if is_delta:
        data = f"{data} delta".lstrip()
    for point in points:
        if point.flags & _NO_VALUE:
            rules = _checked(metric, kind, points, rules)
            continue
        attributes = tuple(serialized(point.attributes))
        # Before an identity is made of the attributes, which would take the place of known ones.
        if rules is not None and not (
            sum(map(len, attributes)) <= rules.short_bytes
            and rules.earliest_ns <= point.time_unix_nano <= rules.latest_ns
        ):
            rules = _checked(metric, kind, points, rules)
        attributes, step = split_step(attributes)
        if kind == "summary":
            summary = cast("SummaryDataPoint", point)
            series = find(Instrument.GAUGE, data, attributes)
            if series is not None:
                yield _summary(summary, series, step, sender, now_ns)
            continue
        histogram = cast("_Histogram", point)
        series = find(Instrument.HISTOGRAM, data, attributes)
        if exemplars := exemplars_of(histogram):
            rules = _checked(metric, kind, points, rules)
            share = find(Instrument.HISTOGRAM, "share", attributes)
            yield from _shares(histogram, exemplars, share, now_ns)
        start_ns, time_ns = point.start_time_unix_nano, point.time_unix_nano
        if is_scaled:
            buckets, is_sound = _scaled_buckets(cast("ExponentialHistogramDataPoint", point)), True
        else:
            buckets, is_sound = _explicit_buckets(cast("HistogramDataPoint", point))
        if rules is not None and not (is_sound and len(buckets.counts) <= rules.max_buckets):
            rules = _checked(metric, kind, points, rules)
        yield HistogramPoint(
            series=series,
            start_ns=start_of(sender, start_ns),
            time_ns=time_ns or now_ns,
            temporality=temporality,
            count=histogram.count,
            total=histogram.sum if histogram.HasField("sum") else None,
            minimum=histogram.min if histogram.HasField("min") else None,
            maximum=histogram.max if histogram.HasField("max") else None,
            buckets=buckets,
            covers=covered(sender, start_ns, time_ns, tiles=is_delta and step is None),
            step=step,
            is_scraped=sender.is_scraped,
        )


def _checked(
    metric: Metric, kind: str, points: Sequence[_Spread], rules: PointRules | None
) -> PointRules | None:
    """Raise InDoubt if a point may have a fault; else return that no rules are left to apply."""
    if rules is not None and not rules.are_sound(metric.name, kind, points):
        raise InDoubt
    return None


def start_of(sender: Sender, start_ns: int) -> int:
    """Return the time since which a point counts; 0 if unknown.

    An SDK with a millisecond clock may start and collect at the same time with a valid count, so
    its start is moved back a little. For any other sender a start at the time of the point means
    unknown, see ``cumulative.py``.
    """
    return start_ns - 1 if start_ns and sender.knows_starts else start_ns


def covered(sender: Sender, start_ns: int, end_ns: int, *, tiles: bool) -> Covered | None:
    """Return the key that recognises a repeat of a point, see ``Covered``.

    Args:
        tiles: Whether the start moves with each point of the series; with steps, for each step.
    """
    if not end_ns:
        return None
    return Covered(start_ns if tiles and sender.exact and start_ns < end_ns else 0, end_ns)


def temporality_of(value: AggregationTemporality.ValueType) -> Temporality:
    is_delta = value == _DELTA
    return Temporality.DELTA if is_delta else Temporality.CUMULATIVE


def _summary(
    point: SummaryDataPoint, series: Series, step: int | None, sender: Sender, now_ns: int
) -> SummaryPoint:
    return SummaryPoint(
        series=series,
        time_ns=point.time_unix_nano or now_ns,
        count=point.count,
        total=point.sum,
        quantiles=tuple((q.quantile, q.value) for q in point.quantile_values),
        covers=covered(sender, point.start_time_unix_nano, point.time_unix_nano, tiles=False),
        step=step,
        start_ns=start_of(sender, point.start_time_unix_nano),
        is_scraped=sender.is_scraped,
    )


def _shares(
    point: _Histogram, exemplars: Sequence[bytes], series: Series, now_ns: int
) -> Iterator[HistogramPoint]:
    """Yield the measurements of single steps, from the exemplars of a point (ADR 15)."""
    times_ns = point.start_time_unix_nano, point.time_unix_nano
    for of_step in step_distributions(exemplars, *times_ns):
        yield HistogramPoint(
            series=series,
            start_ns=0,
            time_ns=of_step.time_ns or now_ns,
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


def _explicit_buckets(point: HistogramDataPoint) -> tuple[Buckets, bool]:
    """Return the buckets of a point, and whether they have the right number and ascend."""
    layout, is_ascending = _explicit_layout(tuple(point.explicit_bounds[:]))
    counts = point.bucket_counts[:]
    if len(counts) != len(layout):  # a point may have none of both
        n = min(len(counts), len(layout))
        return Buckets(layout[:n], counts[:n]), False
    return Buckets(layout, counts), is_ascending


def _scaled_buckets(point: ExponentialHistogramDataPoint) -> Buckets:
    positive, negative = point.positive, point.negative
    below, above = [*reversed(negative.bucket_counts)], [*positive.bucket_counts]
    layout = _scaled_layout(
        point.scale,
        point.zero_threshold,
        (negative.offset, len(below)),
        (positive.offset, len(above)),
    )
    return Buckets(layout, [*below, point.zero_count, *above])


@lru_cache(maxsize=_MAX_LAYOUTS)
def _explicit_layout(explicit_bounds: tuple[float, ...]) -> tuple[_Layout, bool]:
    """Return the layout of a histogram, and whether its bounds ascend."""
    bounds = [-math.inf, *explicit_bounds, math.inf]
    return tuple(pairwise(bounds)), all(one < other for one, other in pairwise(explicit_bounds))


@lru_cache(maxsize=_MAX_LAYOUTS)
def _scaled_layout(
    scale: int, zero_threshold: float, below: tuple[int, int], above: tuple[int, int]
) -> _Layout:
    """Return the layout of an exponential histogram.

    Args:
        below: Offset and number of the buckets below zero.
        above: Offset and number of the buckets above zero.
    """
    offset, n = below
    negative = [_bucket(scale, index) for index in range(offset + n - 1, offset - 1, -1)]
    offset, n = above
    return (
        *[(-upper, -lower) for lower, upper in negative],
        (-zero_threshold, zero_threshold),
        *[_bucket(scale, index) for index in range(offset, offset + n)],
    )


@lru_cache(maxsize=_MAX_BUCKETS)
def _bucket(scale: int, index: int) -> tuple[float, float]:
    """Return the bounds of a bucket, which are the same in each export of a series.

    https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
    """
    return _bound(scale, index), _bound(scale, index + 1)


def _bound(scale: int, index: int) -> float:
    exponent = math.ldexp(index, -scale)
    try:
        return math.pow(2.0, exponent)
    except OverflowError:
        return math.inf
