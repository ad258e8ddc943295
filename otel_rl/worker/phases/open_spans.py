"""Sends spans of steps and phases that are still open after a long time.

A span is sent when it ends, so a hang would be in no trace until it is over. A frame that is open
for half a minute is sent as a child span, ``collector_wait (open)``; again after one, two and four
minutes, so that an hour of hanging is seven spans. ``rl.open`` distinguishes them from work; the
bridge excludes them from the diagnosis.
"""

from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from otel_rl.semconv.names import PHASES, RL_LOOP_ITERATION, RL_OPEN
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.version import __version__
from otel_rl.worker.phases import control_flows
from otel_rl.worker.phases.frames import Frame, StepFrame

__all__ = ["FIRST_AGE_NS", "show_open_spans", "span_name"]

FIRST_AGE_NS: Final = 30_000_000_000
"""Longer than usual phases, and soon enough for a person who investigates a hang."""

_SCOPE: Final = "otel_rl.phases"


def span_name(frame: Frame) -> str:
    """Return the span name of a step or phase."""
    if isinstance(frame, StepFrame):
        return STEP_SPAN
    known = PHASES.get(frame.name)
    return known.span or frame.name if known is not None else frame.name


def show_open_spans(own: TracerProvider, now_ns: int) -> None:
    """Send frames that are open for long and were last sent at half their age.

    Args:
        own: Makes the spans if the program has set no provider.
        now_ns: Of the monotonic clock.
    """
    for frame, wall_ns in control_flows.open_frames():
        span, age_ns = frame.span, now_ns - frame.begun_ns
        if span is None or not span.is_recording() or age_ns < max(FIRST_AGE_NS, frame.show_at_ns):
            continue
        frame.show_at_ns = 2 * age_ns
        # Only once a span exists: the first request for the global provider creates it, which must
        # not happen in this thread.
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            provider = own
        attributes: dict[str, bool | int] = {RL_OPEN: True}
        step = frame if isinstance(frame, StepFrame) else frame.step
        if step is not None:
            attributes[RL_LOOP_ITERATION] = step.number
        shown = provider.get_tracer(_SCOPE, __version__).start_span(
            f"{span_name(frame)} (open)",
            trace.set_span_in_context(span, Context()),
            attributes=attributes,
            start_time=frame.begun_ns + wall_ns,
        )
        shown.end(now_ns + wall_ns)
