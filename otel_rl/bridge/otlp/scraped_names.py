"""Maps metrics scraped by a Collector to the registry's names."""

from collections.abc import Iterable
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_rl.semconv.aliases import scraped_alias
from otel_rl.semconv.folded_attributes import APART
from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Instrument

__all__ = ["Translated", "translated"]


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
