"""The stock OpenTelemetry SDK, as a program would set it up."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_rl.sdk import exact_view

RESOURCE = Resource({"service.name": "bench"})


def stock_sdk(reader: MetricReader, *, exact: bool) -> MeterProvider:
    """Return a provider that keeps every measurement of a gauge, or the last one as usual."""
    return MeterProvider(
        [reader],
        RESOURCE,
        views=[exact_view()] if exact else [],
        exemplar_filter=AlwaysOnExemplarFilter() if exact else None,
        shutdown_on_exit=False,
    )


def stock_tracing(url: str, resource: Resource = RESOURCE) -> TracerProvider:
    """Return a provider that sends every span to ``url``."""
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    return provider
