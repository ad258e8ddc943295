"""For programs with a MeterProvider of their own, from OpenTelemetry's SDK.

from otel_rl.sdk import exact_view

MeterProvider([reader], views=[exact_view()], exemplar_filter=AlwaysOnExemplarFilter())
"""

from otel_rl.worker.metrics.exemplar_view import exact_view

__all__ = ["exact_view"]
