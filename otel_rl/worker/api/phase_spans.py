"""Spans of steps and phases, with exactly the measured times, to the nanosecond.

Times on a device are known later; only otel_rl's own export gets them.

The timeline's times are converted to the wall clock once, when the outermost block begins, so that
a clock change neither stretches nor overlaps the spans.
"""

import traceback
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider

from otel_rl.semconv.names import (
    PHASES,
    RL_GPU_OWNER,
    RL_LOOP_ITERATION,
    RL_PHASE,
    RL_PHASE_CLASS,
    RL_POLICY_VERSION,
    RlPhaseValues,
)
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.version import __version__
from otel_rl.worker import served_policy, session
from otel_rl.worker.events.masking import masked_message
from otel_rl.worker.otlp.anyvalue import text_of
from otel_rl.worker.phases.device_clock import SpanTimes
from otel_rl.worker.phases.flows import span_name
from otel_rl.worker.phases.timeline import Frame, StepFrame, Timeline
from otel_rl.worker.step_context import in_step

SCOPE_NAME: Final = "otel_rl.phases"
"""Scope of the spans, and of the measurements beside them."""

_GENERATE: Final = RlPhaseValues.GENERATE.value

_CLASSES: Final = {str(name): str(spec.phase_class) for name, spec in PHASES.items()}
"""Plain text, so that a span processor of the program receives no type of otel_rl."""

_made: tuple[TracerProvider, Tracer] | None = None


def tracer() -> Tracer | None:
    """Return the tracer of the program's or the session's provider; None if spans are disabled."""
    global _made  # a cache: a provider makes a new tracer each time
    current = session.running() or session.start_from_environment()
    if current is None or not current.settings.traces.enabled:
        return None
    provider: TracerProvider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = current.providers.tracer
    made = _made
    if made is None or made[0] is not provider:
        made = _made = (provider, provider.get_tracer(SCOPE_NAME, __version__))
    return made[1]


def begin_step_span(tracer: Tracer | None, flow: Timeline, frame: StepFrame) -> None:
    """Make the step and, with a tracer, its span ``rl.loop`` the current ones.

    The span is a root, linked to the surrounding span: a training run in one trace would have
    millions of spans, which no viewer can show.
    """
    context = get_current()
    if tracer is not None:
        around = trace.get_current_span(context).get_span_context()
        frame.span = tracer.start_span(
            STEP_SPAN,
            Context(),
            attributes={RL_LOOP_ITERATION: frame.number},
            links=[Link(around)] if around.is_valid else None,
            start_time=frame.begun_ns + flow.wall_ns,
        )
        context = trace.set_span_in_context(frame.span, context)
    frame.token = attach(in_step(context, frame.scope))


def begin_phase_span(tracer: Tracer, flow: Timeline, frame: Frame, phase_class: str | None) -> None:
    """Begin the span of a phase within the current span, and make it the current one."""
    name = frame.name
    attributes: dict[str, str | int] = {RL_PHASE: name}
    if phase_class is None:
        phase_class = _CLASSES.get(name)
    if phase_class is not None:
        attributes[RL_PHASE_CLASS] = phase_class
    if frame.has_gpus:
        attributes[RL_GPU_OWNER] = name
    if frame.step is not None:
        attributes[RL_LOOP_ITERATION] = frame.step.number
    links = None
    if name == _GENERATE and (served := served_policy.served()) is not None:
        links = [Link(served.pull)] if served.pull.is_valid else None
        if served.version is not None:
            attributes[RL_POLICY_VERSION] = served.version
    frame.span = tracer.start_span(
        span_name(frame),
        attributes=attributes,
        links=links,
        start_time=frame.begun_ns + flow.wall_ns,
    )
    frame.token = attach(trace.set_span_in_context(frame.span))


def end_span(flow: Timeline, frame: Frame, error: BaseException | None) -> None:
    """End the span of a frame, if any, and restore the surrounding span and step."""
    if frame.token is not None and not frame.is_abandoned:
        detach(frame.token)
    span = frame.span
    if span is None:
        return
    ended_ns = frame.ended_ns + flow.wall_ns
    # As in OpenTelemetry, a BaseException that is no Exception, e.g. GeneratorExit, is no error.
    if isinstance(error, Exception) and span.is_recording():
        _record(span, error, ended_ns)
    begun, ended = frame.begun, frame.ended
    if begun is None or ended is None or frame.marks is None:
        span.end(ended_ns)
        return
    running = session.running()
    later = {} if running is None else running.providers.spans.device_times
    key = span.get_span_context().span_id
    later[key] = SpanTimes(frame.marks.clock, begun, ended, flow.wall_ns)
    span.end(ended_ns)
    later.pop(key, None)  # of a span that is not kept


def _record(span: Span, error: Exception, time_ns: int) -> None:
    """Record an exception as OpenTelemetry's SDK does, but without secrets."""
    message = masked_message(text_of(error))
    stacktrace = masked_message("".join(traceback.format_exception(error)))
    span.record_exception(
        error,
        {"exception.message": message, "exception.stacktrace": stacktrace},
        timestamp=time_ns,
    )
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {message}"))
