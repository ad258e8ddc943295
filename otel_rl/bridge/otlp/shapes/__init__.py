"""Requests of a known shape: the same bytes but for times, values and steps (docs/adr/0020)."""

from otel_rl.bridge.otlp.shapes.body_shape import (
    BodyNumbers,
    BodyShape,
    Columns,
    ShareColumns,
    SumColumns,
)
from otel_rl.bridge.otlp.shapes.cut import HISTOGRAMS, CutBody, Cuts, Histogram
from otel_rl.bridge.otlp.shapes.layout import MAX_BODY_BYTES, Layout, layout_of
from otel_rl.bridge.otlp.shapes.resource_parts import (
    ResourcePart,
    each_part,
    resource_parts,
)
from otel_rl.bridge.otlp.shapes.shape_cache import ShapeCache

__all__ = [
    "HISTOGRAMS",
    "MAX_BODY_BYTES",
    "BodyNumbers",
    "BodyShape",
    "Columns",
    "CutBody",
    "Cuts",
    "Histogram",
    "Layout",
    "ResourcePart",
    "ShapeCache",
    "ShareColumns",
    "SumColumns",
    "each_part",
    "layout_of",
    "resource_parts",
]
