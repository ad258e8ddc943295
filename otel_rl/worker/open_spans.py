"""Steps and phases that are open for long, as spans that can be seen before they end.

A span is sent when it ends, so a hang would be in no trace until it is over. What has been open for
half a minute is sent as it stands, as a span of its own within it: ``collector_wait (open)``. Again
after a minute, two, four, so that an hour of hanging is seven spans. ``rl.open`` tells them from
work; the bridge leaves them out of what it explains.
"""

from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from otel_rl import __version__
from otel_rl.semconv.names import PHASES, RL_LOOP_ITERATION, RL_OPEN
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.worker import flows
from otel_rl.worker.frames import Frame, StepFrame

__all__ = ["FIRST_AGE_NS", "show_open_spans", "span_name"]

FIRST_AGE_NS: Final = 30_000_000_000
"""Longer than what is ordinary, and soon enough for somebody who looks for a hang."""

_SCOPE: Final = "otel_rl.phases"


def span_name(frame: Frame) -> str:
    """What the span of a step or phase is called."""
    if isinstance(frame, StepFrame):
        return STEP_SPAN
    known = PHASES.get(frame.name)
    return known.span or frame.name if known is not None else frame.name


def show_open_spans(own: TracerProvider, now_ns: int) -> None:
    """Send what has been open for long and was not sent since it was half as old.

    Args:
        own: Makes the spans if the program has set no provider.
        now_ns: Of the monotonic clock.
    """
    for frame, wall_ns in flows.open_frames():
        span, age_ns = frame.span, now_ns - frame.begun_ns
        if span is None or not span.is_recording() or age_ns < max(FIRST_AGE_NS, frame.show_at_ns):
            continue
        frame.show_at_ns = 2 * age_ns
        # Not before there is a span: the first one to ask for the global provider makes it, and
        # this thread must not be the one.
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
