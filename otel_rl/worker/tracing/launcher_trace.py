"""The trace of the launcher, which torchrun, mpirun and srun pass on in ``TRACEPARENT``.

Spans that a program starts itself continue it. Steps and phases outside of a step are roots of
their own and link to it: a training run in one trace would have too many spans.
"""

from collections.abc import Mapping

from opentelemetry.context import Context, attach
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["continue_launcher_trace", "root_link"]

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
