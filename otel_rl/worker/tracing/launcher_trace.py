"""The trace of the launcher, which torchrun, mpirun and srun pass on in ``TRACEPARENT``.

Spans that a program starts itself continue it. Steps and phases outside of a step are roots of
their own and link to it: a training run in one trace would have too many spans.
"""

from collections.abc import Mapping

from opentelemetry.context import Context, attach
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["continue_launcher_trace", "is_of_launcher"]

_launcher: SpanContext | None = None
"""Span of the launcher. Forked children have the same."""


def continue_launcher_trace(environ: Mapping[str, str]) -> None:
    """Make the launcher's span the current one, unless the program already has one.

    Args:
        environ: An invalid or absent ``TRACEPARENT`` changes nothing.
    """
    global _launcher  # one launcher per process
    if "TRACEPARENT" not in environ or get_current_span().get_span_context().is_valid:
        return
    carrier = {
        name.lower(): environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in environ
    }
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    found = get_current_span(context).get_span_context()
    if found.is_valid:
        _launcher = found
        attach(context)


def is_of_launcher(span: SpanContext) -> bool:
    """Report whether ``span`` is the launcher's."""
    return _launcher is not None and span.is_valid and span.span_id == _launcher.span_id
