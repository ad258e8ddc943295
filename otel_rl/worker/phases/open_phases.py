"""Reports open steps and phases from the exporter thread, so that a hang is visible while it lasts.

A hanging thread cannot report itself. While it releases the interpreter lock, as waits, collectives
and kernels do, the exporter reports its step and phase, and their ages.
"""

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_rl.semconv.names import (
    METRICS,
    RL_PHASE,
    RL_WORKER_PHASE_AGE,
    RL_WORKER_STEP_AGE,
    RL_WORKER_STEP_NUMBER,
)
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.phases.control_flows import forget_all, forget_dead, views
from otel_rl.worker.phases.exclusive_time import TimelineView

__all__ = ["count_open", "show_phases"]


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
