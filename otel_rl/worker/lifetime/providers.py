"""Providers of a process, and the resource that they report."""

import os
import socket

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

from otel_rl.semconv.names import (
    OTEL_RL_WORKER_SPANS_DROPPED,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_TAG,
)
from otel_rl.version import __version__
from otel_rl.worker.events.console import Console
from otel_rl.worker.events.queue import EventQueue
from otel_rl.worker.identity import Identity, instance_id
from otel_rl.worker.later_providers import take_later
from otel_rl.worker.lifetime.process_guard import GUARD
from otel_rl.worker.metrics.gauges import SCOPE_NAME
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.phases.gc_time import GcTime
from otel_rl.worker.phases.open_phases import show_phases
from otel_rl.worker.settings import (
    Settings,
)
from otel_rl.worker.system.host import HostRecorder
from otel_rl.worker.system.sampler import GpuSampler
from otel_rl.worker.tracing.provider import WorkerTracerProvider
from otel_rl.worker.tracing.sharing import share_with_later
from otel_rl.worker.tracing.spans import CountedSpans

__all__ = ["Providers", "resource_of"]


class Providers:
    """Providers that user code holds for the life of the process, across sessions."""

    def __init__(self, resource: Resource, settings: Settings) -> None:
        self.meter = BufferedMeterProvider(resource, GUARD)
        meter = self.meter.get_meter(SCOPE_NAME, __version__)
        show_phases(meter, GUARD)
        self.gc_time = GcTime(meter)
        self.gpus = GpuSampler(meter, GUARD)
        self.host = HostRecorder(meter, GUARD)
        self.events = EventQueue(resource, GUARD)
        self.console = Console(GUARD)
        keeps_steps = settings.trace_steps is not None
        self.spans = CountedSpans(settings.span_capacity, settings.span_interval_s)
        self.tracer = WorkerTracerProvider(resource, self.spans, keeps_steps=keeps_steps)
        self.meter.counts_anew(self.spans.guard.drops)
        meter.create_observable_counter(
            OTEL_RL_WORKER_SPANS_DROPPED,
            [self.spans.guard.drops.observe],
            unit="{span}",
            description="Spans that this worker could not deliver.",
        )

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Report as another worker from now on.

        Args:
            resource: Of that worker.
            keep_buffer: Whether what is recorded and not yet sent is that worker's.
        """
        self.meter.restart(resource, keep_buffer=keep_buffer)
        self.gpus.count_anew()
        self.host.forget()
        self.tracer.change_resource(resource)
        self.events.bind(resource)
        if not keep_buffer:
            self.events.forget()
            self.console.forget()

    def install(self) -> None:
        """Make these the global providers, unless the program has its own."""
        _install_meter_provider(self.meter)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self.tracer)
        share_with_later(self.tracer, self.spans.guard)
        take_later(metrics, "meter", self.meter, self.meter.share_with)


def resource_of(identity: Identity) -> Resource:
    """Build the resource; ``OTEL_RESOURCE_ATTRIBUTES`` fills in missing attributes."""
    attributes = identity.attributes()
    attributes |= {
        "service.instance.id": instance_id(),
        "process.pid": os.getpid(),
        "telemetry.distro.name": "otel_rl",
        "telemetry.distro.version": __version__,
    }
    found = Resource.create(attributes)
    # Index and tag come from the identity only: a forked child has none, whatever it inherits.
    kept = {
        key: value
        for key, value in found.attributes.items()
        if key in attributes or key not in (RL_WORKER_INDEX, RL_WORKER_COUNT, RL_WORKER_TAG)
    }
    return Resource({"host.name": socket.gethostname(), **kept}, found.schema_url)


def _install_meter_provider(provider: BufferedMeterProvider) -> None:
    # The API cannot report whether a provider is set, but its placeholders live in its own module.
    if type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics"):
        metrics.set_meter_provider(provider)
    elif metrics.get_meter_provider() is not provider:
        GUARD.warn(
            "foreign_meter_provider",
            "The program has set a MeterProvider of its own, so gauges made by the OpenTelemetry "
            "API go there; otel_rl.log is not affected. Add otel_rl.sdk.exact_view() to that "
            "provider's views to keep every measurement, or call otel_rl.init() before it is set.",
        )
