"""Instruments of one process: what they hold between exports, and their points."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ScopeMetrics,
)

from exams.second.program import Telemetry
from exams.second.sdk.encode import STEP, pairs, unit_of
from exams.second.systems.world import Point

_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

_Series = tuple[str, str, tuple[tuple[str, str | int | float], ...]]


@dataclass
class _Spread:
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.counts[sum(value > bound for bound in _BOUNDS)] += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)


class Instruments:
    """All instruments of a process.

    Args:
        how: The program's way to report.
        begin_ns: Start of the process.
    """

    def __init__(self, how: Telemetry, begin_ns: int) -> None:
        self._how, self._begin_ns = how, begin_ns
        self._sums: dict[_Series, float] = defaultdict(float)
        self._spreads: dict[_Series, _Spread] = defaultdict(_Spread)
        self._gauges: dict[_Series, float] = {}
        self._told_ns: dict[_Series, int] = {}

    def export(self, points: Iterable[tuple[int, Point]], now_ns: int, scope: ScopeMetrics) -> None:
        """Add what was measured, and what a cumulative SDK repeats."""
        fresh: dict[_Series, list[tuple[int, Point]]] = defaultdict(list)
        for at_ns, point in points:
            self._take(at_ns, point, fresh)
        if self._how.is_ours:
            self._exact(fresh, scope)
        else:
            self._gauge_points(fresh, now_ns, scope)
        self._sum_points(now_ns, scope)
        self._spread_points(now_ns, scope)

    def _take(self, at_ns: int, point: Point,
              fresh: dict[_Series, list[tuple[int, Point]]]) -> None:  # fmt: skip
        attributes = dict(point.attributes)
        if point.step is not None and not self._how.is_ours:
            attributes[STEP] = point.step
        series = (point.kind, point.name, tuple(sorted(attributes.items())))
        if point.kind == "gauge":
            if self._how.is_ours or math.isfinite(point.value):
                self._gauges[series] = point.value
                fresh[series].append((at_ns, point))
        elif point.kind == "count":
            self._sums[series] += point.value
        elif point.kind == "level":
            self._sums[series] = point.value
        else:
            self._spreads[series].add(point.value)

    def _exact(self, fresh: Mapping[_Series, Sequence[tuple[int, Point]]],
               scope: ScopeMetrics) -> None:  # fmt: skip
        for series, measured in fresh.items():
            metric = scope.metrics.add(name=series[1], unit=unit_of(series[1]))
            point = metric.gauge.data_points.add(as_double=measured[-1][1].value)
            point.attributes.extend(pairs(dict(series[2])))
            first_ns, last_ns = measured[0][0], measured[-1][0]
            point.start_time_unix_nano = self._told_ns.get(series, min(self._begin_ns, first_ns))
            point.time_unix_nano = max(last_ns, point.start_time_unix_nano + 1)
            self._told_ns[series] = point.time_unix_nano
            for at_ns, one in measured:
                exemplar = point.exemplars.add(time_unix_nano=at_ns, as_double=one.value)
                if one.step is not None:
                    exemplar.filtered_attributes.extend(pairs({STEP: one.step}))

    def _gauge_points(self, fresh: Iterable[_Series], now_ns: int, scope: ScopeMetrics) -> None:
        metrics: dict[str, Metric] = {}
        for series in list(fresh) if self._how.is_delta else self._gauges:
            metric = metrics.setdefault(series[1], Metric(name=series[1], unit=unit_of(series[1])))
            point = NumberDataPoint(as_double=self._gauges[series], time_unix_nano=now_ns)
            point.attributes.extend(pairs(dict(series[2])))
            metric.gauge.data_points.append(point)
        scope.metrics.extend(metrics.values())

    def _sum_points(self, now_ns: int, scope: ScopeMetrics) -> None:
        for series, value in self._sums.items():
            is_count = series[0] == "count"
            is_delta = is_count and self._how.is_delta and not self._how.is_ours
            if is_delta and not value:
                continue
            metric = scope.metrics.add(name=series[1])
            metric.sum.is_monotonic = is_count
            metric.sum.aggregation_temporality = _DELTA if is_delta else _CUMULATIVE
            begin_ns = self._told_ns.get(series, self._begin_ns) if is_delta else self._begin_ns
            point = metric.sum.data_points.add(as_double=value, time_unix_nano=now_ns)
            point.start_time_unix_nano = begin_ns
            point.attributes.extend(pairs(dict(series[2])))
            if is_delta:
                self._told_ns[series] = now_ns
                self._sums[series] = 0.0

    def _spread_points(self, now_ns: int, scope: ScopeMetrics) -> None:
        for series, spread in list(self._spreads.items()):
            metric = scope.metrics.add(name=series[1], unit="s")
            metric.histogram.aggregation_temporality = _DELTA if self._how.is_delta else _CUMULATIVE
            begin_ns = self._told_ns.get(series, self._begin_ns)
            point = HistogramDataPoint(
                start_time_unix_nano=begin_ns, time_unix_nano=now_ns, count=sum(spread.counts),
                sum=spread.total, bucket_counts=spread.counts, explicit_bounds=_BOUNDS,
                min=spread.least, max=spread.most,
            )  # fmt: skip
            point.attributes.extend(pairs(dict(series[2])))
            metric.histogram.data_points.append(point)
            if self._how.is_delta:
                self._told_ns[series] = now_ns
                del self._spreads[series]
