"""The spans of steps and phases: as long as what is measured, to the nanosecond.

Their times are the timeline's own, moved to the wall clock once when the outermost of them begins,
so that a clock that is set in between neither stretches nor overlaps them.
"""

from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Status, StatusCode, Tracer, TracerProvider

from otel_rl import __version__
from otel_rl.semconv.names import (
    PHASES,
    RL_LOOP_ITERATION,
    RL_PHASE,
    RL_PHASE_CLASS,
    RL_POLICY_VERSION,
    RlPhaseValues,
)
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.worker import serving, session
from otel_rl.worker.frames import Frame, StepFrame
from otel_rl.worker.open_spans import span_name
from otel_rl.worker.timeline import Timeline

__all__ = ["SCOPE_NAME", "begin_phase_span", "begin_step_span", "end_span", "tracer"]

SCOPE_NAME: Final = "otel_rl.phases"
"""Scope of the spans, and of the measurements beside them."""

_GENERATE: Final = RlPhaseValues.GENERATE.value

_CLASSES: Final = {str(name): str(spec.phase_class) for name, spec in PHASES.items()}
"""As plain text: what a span processor of the program sees is no type of ours."""

_made: tuple[TracerProvider, Tracer] | None = None


def tracer() -> Tracer | None:
    """Of the program's tracer provider, else of the session's; None where no spans are wanted."""
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


def begin_step_span(tracer: Tracer, flow: Timeline, frame: StepFrame) -> None:
    """Begin ``rl.loop`` and make it the current span.

    It is a root, linked to the span around it: a training run in one trace is one of millions of
    spans, which nothing can show.
    """
    around = trace.get_current_span().get_span_context()
    frame.span = tracer.start_span(
        STEP_SPAN,
        Context(),
        attributes={RL_LOOP_ITERATION: frame.number},
        links=[Link(around)] if around.is_valid else None,
        start_time=frame.begun_ns + flow.wall_ns,
    )
    frame.token = attach(trace.set_span_in_context(frame.span))


def begin_phase_span(tracer: Tracer, flow: Timeline, frame: Frame, phase_class: str | None) -> None:
    """Begin the span of a phase, within the current one, and make it the current one."""
    name = frame.name
    attributes: dict[str, str | int] = {RL_PHASE: name}
    if phase_class is None:
        phase_class = _CLASSES.get(name)
    if phase_class is not None:
        attributes[RL_PHASE_CLASS] = phase_class
    if frame.step is not None:
        attributes[RL_LOOP_ITERATION] = frame.step.number
    links = None
    if name == _GENERATE and (served := serving.served()) is not None:
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
    """End the span of a frame, if it has one, and make the span around it the current one."""
    if frame.token is not None and not frame.is_abandoned:
        detach(frame.token)
    span = frame.span
    if span is None:
        return
    ended_ns = frame.ended_ns + flow.wall_ns
    # As OpenTelemetry has it: what is no Exception, such as GeneratorExit, is no error either.
    if isinstance(error, Exception) and span.is_recording():
        span.record_exception(error, timestamp=ended_ns)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.end(ended_ns)
