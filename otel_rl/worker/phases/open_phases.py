"""Reports open steps and phases from the exporter thread, so that a hang is visible while it lasts.

A hanging thread cannot report itself. While it releases the interpreter lock, as waits, collectives
and kernels do, the exporter reports its step and phase, and their ages.

A span is sent when it ends, so a hang would be in no trace until it is over. A frame that is open
for half a minute is sent as a child span, ``collector_wait (open)``; again after one, two and four
minutes, so that an hour of hanging is seven spans. ``rl.open`` distinguishes them from work; the
bridge excludes them from the diagnosis.
"""

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import TracerProvider

from otel_rl.semconv.names import (
    METRICS,
    PHASES,
    RL_LOOP_ITERATION,
    RL_OPEN,
    RL_PHASE,
    RL_WORKER_PHASE_AGE,
    RL_WORKER_STEP_AGE,
    RL_WORKER_STEP_NUMBER,
)
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.phases.control_flows import flows, forget_all, forget_dead, views
from otel_rl.worker.phases.timeline import Frame, StepFrame, TimelineView

__all__ = ["FIRST_AGE_NS", "count_open", "show_open_spans", "show_phases", "span_name"]

FIRST_AGE_NS: Final = 30_000_000_000
"""Longer than usual phases, and soon enough for a person who investigates a hang."""

_SCOPE: Final = "otel_rl.phases"


def show_phases(meter: Meter, guard: Guard) -> None:
    """Register the metrics of the step and the phases that are open at each export.

    Args:
        meter: Meter of the worker.
        guard: Counts the phases that threads and tasks have left open.
    """

    def phase_ages(_options: CallbackOptions) -> Iterable[Observation]:
        _count(guard, forget_dead(), "A thread or task has ended")
        ages_ns: dict[str, int] = {}
        for view in views():
            ages_ns[view.phase] = max(ages_ns.get(view.phase, 0), view.phase_age_ns)
        return [Observation(age_ns / 1e9, {RL_PHASE: name}) for name, age_ns in ages_ns.items()]

    def step_age(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(view.step_age_ns / 1e9) for view in _oldest_step()]

    def step_number(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(view.step) for view in _oldest_step() if view.step is not None]

    callbacks: dict[str, Callable[[CallbackOptions], Iterable[Observation]]] = {
        RL_WORKER_PHASE_AGE: phase_ages,
        RL_WORKER_STEP_AGE: step_age,
        RL_WORKER_STEP_NUMBER: step_number,
    }
    for name, callback in callbacks.items():
        spec = METRICS[name]
        meter.create_observable_gauge(name, [callback], spec.unit, spec.brief)


def count_open(guard: Guard) -> None:
    """Count open steps and phases as lost at the end of the process."""
    _count(guard, forget_all(), "The process has ended")


def _oldest_step() -> list[TimelineView]:
    """Return the longest open step, or nothing."""
    steps = [view for view in views() if view.step is not None]
    return [max(steps, key=lambda view: view.step_age_ns)] if steps else []


def _count(guard: Guard, left_open: int, what: str) -> None:
    if left_open:
        guard.drop(
            DropReason.UNCLOSED_PHASE,
            f"{what} within {left_open} steps and phases, which are not measured. Use them in "
            "with statements.",
            left_open,
        )


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
        now_ns: Time on the monotonic clock.
    """
    for frame, wall_ns in [(one, flow.wall_ns) for flow in flows() for one in flow.frames()]:
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
