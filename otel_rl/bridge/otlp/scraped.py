"""Metrics that a Collector has scraped, as if their exporters used the registry's names."""

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from otel_rl.semconv.names import METRICS
from otel_rl.semconv.scraped import Scraped, meaning
from otel_rl.semconv.spec import Instrument

__all__ = ["translate"]


def translate(metric: Metric) -> None:
    """Give a metric the registry's name, unit, kind and attributes, in place, if a rule says so."""
    found = meaning(metric.name)
    if found is None:
        return
    spec = METRICS.get(found.name)
    metric.name = found.name
    metric.unit = "" if spec is None else spec.unit
    for point in _points(metric):
        _relabel(point.attributes, found)
        if found.scale != 1:
            _scale(point, found.scale)
    if spec is not None and spec.instrument is Instrument.UP_DOWN_COUNTER:
        _as_level(metric)


# The messages are those of the view, which are of other classes than the module's: see ``view.py``.


def _points(metric: Metric) -> Iterable[Any]:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else ()


def _relabel(attributes: Any, found: Scraped) -> None:
    texts = dict(found.attributes)
    for label in list(attributes):
        if label.key in found.labels:
            key, value = found.labels[label.key]
            texts[key] = value.format(label.value.string_value)
        if label.key in found.labels or label.key in found.dropped:
            attributes.remove(label)
    for key, text in texts.items():
        attributes.add(key=key).value.string_value = text


def _scale(point: Any, factor: float) -> None:
    """Of numbers alone: no histogram that a rule is about has another unit than the registry's."""
    as_sent = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    point.as_double = as_sent * factor


def _as_level(metric: Metric) -> None:
    """A gauge that the registry has as an up-down counter; Prometheus knows no difference."""
    if metric.WhichOneof("data") != "gauge":
        return
    gauge = type(metric.gauge)()
    gauge.CopyFrom(metric.gauge)  # it goes as soon as there is a sum
    metric.sum.data_points.extend(gauge.data_points)
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
