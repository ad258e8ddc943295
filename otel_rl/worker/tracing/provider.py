"""The TracerProvider of a worker: the SDK's, with a resource that follows forks and ``init``."""

from inspect import signature
from typing import Any
from weakref import WeakSet

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_RUN_ID
from otel_rl.signals import Signal
from otel_rl.worker.export.exporter import Exporter, Source
from otel_rl.worker.export.transport import open_transport
from otel_rl.worker.settings import SignalSettings
from otel_rl.worker.step_context import StepOnSpans
from otel_rl.worker.tracing.sampler import StepSampler
from otel_rl.worker.tracing.span_buffer import SpanBuffer

__all__ = ["SpanSender", "WorkerTracerProvider"]


class WorkerTracerProvider(TracerProvider):
    """SDK TracerProvider whose resource can change while tracers are in use.

    Args:
        resource: Resource of the spans.
        buffer: Receives ended spans.
        keeps_steps: True samples spans by step; False by ``OTEL_TRACES_SAMPLER``.
    """

    def __init__(self, resource: Resource, buffer: SpanBuffer, *, keeps_steps: bool = True) -> None:
        self._current = resource
        self.steps = StepSampler()
        self.steps.run_id = _run_id(resource)
        self._tracers_made = WeakSet[SdkTracer]()
        # From 1.40 on the SDK has metrics of its own, and would ask for the global provider from
        # inside a lock.
        has_metrics = "meter_provider" in signature(TracerProvider).parameters
        own: dict[str, Any] = {"meter_provider": NoOpMeterProvider()} if has_metrics else {}
        super().__init__(
            sampler=self.steps if keeps_steps else None,
            resource=resource,
            shutdown_on_exit=False,
            **own,
        )
        self.add_span_processor(StepOnSpans())
        self.add_span_processor(buffer)

    @property
    def resource(self) -> Resource:
        """Present resource of the spans."""
        return self._current

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> Tracer:
        """See ``opentelemetry.trace.TracerProvider.get_tracer``."""
        tracer = super().get_tracer(
            instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        )
        # The SDK reads the resource once, when it makes a tracer. A newer SDK makes it once.
        if isinstance(tracer, SdkTracer) and tracer not in self._tracers_made:
            self._tracers_made.add(tracer)
            tracer.resource = self._current
        return tracer

    def change_resource(self, resource: Resource) -> None:
        """Set the resource of spans that start from now on."""
        self._current = resource
        self.steps.run_id = _run_id(resource)
        for tracer in tuple(self._tracers_made):
            tracer.resource = resource

    def keep_steps(self, share: float) -> None:
        """Keep the traces of a share of all steps, for traces that start from now on."""
        self.steps.keep(share)


def _run_id(resource: Resource) -> str:
    return str(resource.attributes.get(RL_RUN_ID, ""))


class SpanSender:
    """Sends the spans of a buffer to ``signal`` in a thread of its own. Survives a fork.

    A slow or unreachable endpoint for traces does not delay measurements.

    Args:
        buffer: Source of the spans. This sender takes over those of an earlier one.
        signal: Endpoint and protocol.
        interval_s: Between two exports.
    """

    def __init__(self, buffer: SpanBuffer, signal: SignalSettings, interval_s: float) -> None:
        self._buffer = buffer
        self._exporter = Exporter(
            Source(
                buffer.collect,
                buffer.abandon,
                lambda: buffer.is_crowded,
                unready_since_ns=lambda: buffer.unready_since_ns,
            ),
            lambda _signal, beside: open_transport(signal, beside),
            interval_s,
            buffer.guard,
            main=Signal.TRACES,
        )
        buffer.reader = self
        buffer.are_wanted = True
        self._exporter.start()

    def flush(self, timeout_s: float) -> bool:
        """Send the spans that have ended. See ``Exporter.flush``."""
        return self._exporter.flush(timeout_s)

    def hurry(self) -> None:
        """See ``Exporter.hurry``."""
        self._exporter.hurry()

    def close(self) -> None:
        """Stop accepting spans. Unflushed spans are lost and counted."""
        if self._buffer.reader is self:
            self._buffer.reader = None
        self._exporter.shutdown(0.0)

    def restart_after_fork(self) -> None:
        """Send the child's own spans over new connections."""
        self._buffer.forget()
        self._exporter.restart_after_fork()
