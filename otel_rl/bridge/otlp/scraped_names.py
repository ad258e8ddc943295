"""Maps metrics scraped by a Collector to the registry's names."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from otel_rl.semconv.aliases import Alias, Dialect, scraped_alias
from otel_rl.semconv.folded_attributes import APART
from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Instrument

__all__ = ["Translated", "translate", "translated"]


class Translated(NamedTuple):
    """What the points of a scraped metric are in the registry.

    Attributes:
        name: The metric's name.
        unit: The metric's unit.
        attributes: Of the points.
        scale: Factor of their values; histograms in the rules have the registry's unit.
        is_level: Whether it is an up-down counter, which Prometheus does not tell from a gauge.
    """

    name: str
    unit: str
    attributes: list[KeyValue]
    scale: float
    is_level: bool


def translated(name: str, unit: str, attributes: Iterable[KeyValue]) -> Translated | None:
    """Translate a metric with certain attributes; None if no rule applies."""
    found = scraped_alias(name)
    if found is None:
        return None
    dialect, alias = found
    apart = [
        KeyValue(key=f"{APART}{one.key}", value=one.value)
        if one.key in dialect.series_labels
        else one
        for one in attributes
    ]
    if alias is None:
        return Translated(name, unit, apart, 1, is_level=False)
    kept, texts = list[KeyValue](), dict(alias.attributes)
    for label in apart:
        known = dialect.labels.get(label.key)
        if known is not None:
            texts[known.name] = known.value.format(label.value.string_value)
        elif label.key not in dialect.dropped_labels:
            kept.append(label)
    kept += [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in texts.items()]
    spec = METRICS.get(alias.name)
    is_level = spec is not None and spec.instrument is Instrument.UP_DOWN_COUNTER
    return Translated(alias.name, alias.unit, kept, alias.scale, is_level)


def translate(metric: Metric) -> None:
    """Translate name, unit, kind and attributes of a metric in place, if a rule applies."""
    found = scraped_alias(metric.name)
    if found is None:
        return
    dialect, alias = found
    if dialect.series_labels:
        _set_apart(metric, dialect.series_labels)
    if alias is None:
        return
    metric.name, metric.unit = alias.name, alias.unit
    for point in _points(metric):
        _relabel(point.attributes, dialect, alias)
        if alias.scale != 1:
            _scale(point, alias.scale)
    spec = METRICS.get(alias.name)
    if spec is not None and spec.instrument is Instrument.UP_DOWN_COUNTER:
        _as_level(metric)


# The messages are those of the view, of other classes than the module's: see ``raw_exemplars.py``.


def _points(metric: Metric) -> Iterable[Any]:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else ()


def _set_apart(metric: Metric, labels: frozenset[str]) -> None:
    for point in _points(metric):
        for label in point.attributes:
            if label.key in labels:
                label.key = f"{APART}{label.key}"


def _relabel(attributes: Any, dialect: Dialect, alias: Alias) -> None:
    texts = dict(alias.attributes)
    for label in list(attributes):
        known = dialect.labels.get(label.key)
        if known is not None:
            texts[known.name] = known.value.format(label.value.string_value)
        if known is not None or label.key in dialect.dropped_labels:
            attributes.remove(label)
    for key, text in texts.items():
        attributes.add(key=key).value.string_value = text


def _scale(point: Any, factor: float) -> None:
    """Scale the values of a number metric; histograms in the rules have the registry's unit."""
    as_sent = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    point.as_double = as_sent * factor


def _as_level(metric: Metric) -> None:
    """Turn a gauge into the registry's up-down counter; Prometheus does not distinguish them."""
    if metric.WhichOneof("data") != "gauge":
        return
    gauge = type(metric.gauge)()
    gauge.CopyFrom(metric.gauge)  # setting the sum clears the gauge
    metric.sum.data_points.extend(gauge.data_points)
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
