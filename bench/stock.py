"""The stock OpenTelemetry SDK, as a program would set it up."""

from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource

import otel_rl

RESOURCE = Resource({"service.name": "bench"})


def stock_sdk(reader: MetricReader, *, exact: bool) -> MeterProvider:
    """A provider that keeps every measurement of a gauge, or as usual the last one."""
    return MeterProvider(
        [reader],
        RESOURCE,
        views=[otel_rl.exact_view()] if exact else [],
        exemplar_filter=AlwaysOnExemplarFilter() if exact else None,
        shutdown_on_exit=False,
    )
