"""Writes the spans of a run as a Chrome trace, which Perfetto and ``chrome://tracing`` open."""

from otel_rl.perfetto.chrome_trace import Counter, TraceSummary, write_trace
from otel_rl.perfetto.span_table import SpanTable

__all__ = ["Counter", "SpanTable", "TraceSummary", "write_trace"]
