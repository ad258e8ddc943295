"""The TracerProvider of a worker: the SDK's, with a resource that follows forks and ``init``.

Its spans are light ones, as long as otel_rl alone looks at them.
"""

from collections.abc import Sequence
from time import time_ns
from typing import Final

from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    get_current_span,
)
from opentelemetry.util.types import Attributes

from otel_rl.records import Signal
from otel_rl.semconv.names import RL_RUN_ID
from otel_rl.worker.export import Exporter, Source
from otel_rl.worker.light_span import LightLimits, LightSpan
from otel_rl.worker.sampling import StepSampler
from otel_rl.worker.settings import SignalSettings
from otel_rl.worker.span_buffer import SpanBuffer
from otel_rl.worker.transport import open_transport

__all__ = ["SpanSender", "WorkerTracerProvider"]


class WorkerTracerProvider(TracerProvider):
    """An SDK TracerProvider whose resource can change while tracers are in use.

    Args:
        resource: Whose spans these are.
        buffer: Where they wait when they have ended.
        keeps_steps: Whether spans are kept by their steps, not as ``OTEL_TRACES_SAMPLER`` says.
    """

    def __init__(self, resource: Resource, buffer: SpanBuffer, *, keeps_steps: bool = True) -> None:
        self._current = resource
        self.steps = StepSampler()
        self.steps.run_id = _run_id(resource)
        self._tracers_made: dict[SdkTracer, _WorkerTracer] = {}
        limits = SpanLimits()
        # Without a provider of its own the SDK would ask for the global one from inside a lock.
        super().__init__(
            sampler=self.steps if keeps_steps else None,
            span_limits=limits,
            resource=resource,
            shutdown_on_exit=False,
            meter_provider=NoOpMeterProvider(),
        )
        self.light_limits = LightLimits(limits)
        self.add_span_processor(buffer)
        self.light_buffer = buffer if keeps_steps else None
        """Where light spans go; None if somebody else samples the spans, or is to see each."""

    @property
    def resource(self) -> Resource:
        """Whose spans these are now."""
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
        if not isinstance(tracer, SdkTracer):  # OTEL_SDK_DISABLED
            return tracer
        # setdefault is atomic: two threads get the same tracer.
        made = self._tracers_made.get(tracer)
        if made is None:
            tracer.resource = self._current
            scope = InstrumentationScope(
                instrumenting_module_name,
                instrumenting_library_version or "",
                schema_url,
                attributes,
            )
            made = self._tracers_made.setdefault(tracer, _WorkerTracer(self, tracer, scope))
        return made

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """See ``opentelemetry.sdk.trace.TracerProvider.add_span_processor``."""
        self.light_buffer = None
        super().add_span_processor(span_processor)

    def change_resource(self, resource: Resource) -> None:
        """Spans that start from now on are of ``resource``."""
        self._current = resource
        self.steps.run_id = _run_id(resource)
        for tracer in tuple(self._tracers_made):
            tracer.resource = resource

    def keep_steps(self, share: float) -> None:
        """Traces that start from now on are kept if they are of a share of all steps."""
        self.steps.keep(share)


_FLAGS: Final = {
    (is_kept, is_random): TraceFlags(is_kept | is_random << 1)
    for is_kept in (False, True)
    for is_random in (False, True)
}
"""By whether a span is sampled and its trace's id was made at random."""


class _WorkerTracer(Tracer):
    """Makes light spans where that makes no difference, else the SDK's.

    Args:
        provider: Whose spans these are.
        tracer: The SDK's.
        scope: Of both.
    """

    def __init__(
        self, provider: WorkerTracerProvider, tracer: SdkTracer, scope: InstrumentationScope
    ) -> None:
        self._provider = provider
        self._sdk = tracer
        self._scope = scope

    def __getattr__(self, name: str) -> object:
        """What libraries ask the SDK's, such as ``id_generator``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sdk, name)

    # As the SDK has it, with our own start_span.
    start_as_current_span = SdkTracer.start_as_current_span

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,  # noqa: FBT001, FBT002  # as Tracer has it
        set_status_on_exception: bool = True,  # noqa: FBT001, FBT002  # as Tracer has it
    ) -> Span:
        """See ``opentelemetry.trace.Tracer.start_span``."""
        provider = self._provider
        buffer, limits = provider.light_buffer, provider.light_limits
        plain, plain_links = limits.attributes(attributes), limits.links(links)
        is_usual = record_exception and set_status_on_exception
        if buffer is None or plain is None or plain_links is None or not is_usual:
            return self._sdk.start_span(
                name,
                context,
                kind,
                attributes,
                links,
                start_time,
                record_exception,
                set_status_on_exception,
            )
        parent = get_current_span(context).get_span_context()
        is_kept, state = provider.steps.decide(parent, attributes)
        ids = provider.id_generator
        if parent.is_valid:
            trace_id, is_random = parent.trace_id, parent.trace_flags.random_trace_id
        else:
            trace_id, is_random = ids.generate_trace_id(), ids.is_trace_id_random()
        own = SpanContext(
            trace_id,
            ids.generate_span_id(),
            is_remote=False,
            trace_flags=_FLAGS[is_kept, is_random],
            trace_state=state,
        )
        if not is_kept:
            return NonRecordingSpan(own)
        return LightSpan(
            name,
            own,
            parent if parent.is_valid else None,
            kind,
            plain,
            plain_links,
            time_ns() if start_time is None else start_time,
            provider.resource,
            self._scope,
            limits,
            buffer.on_end,
        )


def _run_id(resource: Resource) -> str:
    return str(resource.attributes.get(RL_RUN_ID, ""))


class SpanSender:
    """Sends the spans of a buffer where ``signal`` says, by a thread of its own. Survives a fork.

    An endpoint for traces that is away or slow keeps no measurement waiting.

    Args:
        buffer: Where the spans wait. Those of an earlier sender are this one's from now on.
        signal: Endpoint and protocol.
        interval_s: Between two exports.
    """

    def __init__(self, buffer: SpanBuffer, signal: SignalSettings, interval_s: float) -> None:
        self._buffer = buffer
        self._exporter = Exporter(
            Source(buffer.collect, buffer.abandon, lambda: buffer.is_crowded),
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
        """Take no more spans. What was not flushed is lost, and counted."""
        if self._buffer.reader is self:
            self._buffer.reader = None
        self._exporter.shutdown(0.0)

    def restart_after_fork(self) -> None:
        """Send the child's own spans over connections of its own."""
        self._buffer.forget()
        self._exporter.restart_after_fork()
