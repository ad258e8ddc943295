"""The TracerProvider of a worker, which is the SDK's, and the trace of its launcher.

Spans that a program starts itself continue the trace of its launcher, which torchrun, mpirun and
srun pass on in ``TRACEPARENT``. Steps and phases outside of a step are roots of their own and link
to it: a training run in one trace would have too many spans.
"""

from collections.abc import Mapping

from opentelemetry.context import Context, attach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rl.worker.step_context import StepOnSpans
from otel_rl.worker.tracing.spans import CountedSpans, without_metrics

__all__ = ["continue_launcher_trace", "made_tracer_provider", "root_link"]


def made_tracer_provider(
    resource: Resource, spans: CountedSpans, sampler: Sampler | None
) -> TracerProvider:
    """Return a provider of the SDK, whose spans know their step.

    Args:
        resource: What processors of the program see, for the life of the process.
        spans: Receives ended spans, and sends them with the worker's present resource.
        sampler: None for that of ``OTEL_TRACES_SAMPLER``.
    """
    made = TracerProvider(
        sampler=sampler,
        resource=resource,
        shutdown_on_exit=False,
        **without_metrics(TracerProvider),
    )
    made.add_span_processor(StepOnSpans())
    made.add_span_processor(spans)
    return made


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
