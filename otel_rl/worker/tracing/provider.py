"""The TracerProvider of a worker: the SDK's, with a resource that follows forks and ``init``.

Spans that a program starts itself continue the trace of its launcher, which torchrun, mpirun and
srun pass on in ``TRACEPARENT``. Steps and phases outside of a step are roots of their own and link
to it: a training run in one trace would have too many spans.
"""

from collections.abc import Mapping
from weakref import WeakSet

from opentelemetry.context import Context, attach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_RUN_ID
from otel_rl.worker.step_context import StepOnSpans
from otel_rl.worker.tracing.sampler import StepSampler
from otel_rl.worker.tracing.spans import CountedSpans, without_metrics

__all__ = ["WorkerTracerProvider", "continue_launcher_trace", "root_link"]


class WorkerTracerProvider(TracerProvider):
    """SDK TracerProvider whose resource can change while tracers are in use.

    Args:
        resource: Resource of the spans.
        spans: Receives ended spans.
        keeps_steps: True samples spans by step; False by ``OTEL_TRACES_SAMPLER``.
    """

    def __init__(
        self, resource: Resource, spans: CountedSpans, *, keeps_steps: bool = True
    ) -> None:
        self._current = resource
        self.steps = StepSampler()
        self.steps.run_id = _run_id(resource)
        self._tracers_made = WeakSet[SdkTracer]()
        super().__init__(
            sampler=self.steps if keeps_steps else None,
            resource=resource,
            shutdown_on_exit=False,
            **without_metrics(TracerProvider),
        )
        self.add_span_processor(StepOnSpans())
        self.add_span_processor(spans)

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


_launcher: SpanContext | None = None
"""Span of the launcher. Forked children have the same."""


def continue_launcher_trace(environ: Mapping[str, str]) -> None:
    """Make the launcher's span the current one, unless the program already has one.

    Args:
        environ: An invalid or absent ``TRACEPARENT`` changes nothing.
    """
    global _launcher  # one launcher per process
    if "TRACEPARENT" not in environ:
        return
    carrier = {
        name.lower(): environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in environ
    }
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    found = get_current_span(context).get_span_context()
    if not found.is_valid:
        return
    _launcher = found
    if not get_current_span().get_span_context().is_valid:
        attach(context)


def root_link(around: SpanContext) -> SpanContext | None:
    """Return the launcher's span if a phase is a root that links to it.

    Args:
        around: The current span. Invalid, it is that of a thread or task that did not start the
            worker: each has a context of its own.
    """
    if _launcher is None or (around.is_valid and around.span_id != _launcher.span_id):
        return None
    return _launcher
