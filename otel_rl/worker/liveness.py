"""What a worker is in right now, looked at from the exporter's thread: a hang shows while it lasts.

The thread that hangs cannot say so. As long as it lets go of the interpreter lock, as a wait, a
collective or a kernel does, the exporter sees which step and phase it is in, and since when.
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
from otel_rl.worker.flows import forget_all, forget_dead, sights
from otel_rl.worker.guard import Guard
from otel_rl.worker.timeline import Sight

__all__ = ["count_open", "show_phases"]


def show_phases(meter: Meter, guard: Guard) -> None:
    """Let ``meter`` show the step and the phases that are open at each export.

    Args:
        meter: Of the worker.
        guard: Counts the phases that threads and tasks have left open.
    """

    def phase_ages(_options: CallbackOptions) -> Iterable[Observation]:
        _count(guard, forget_dead(), "A thread or task has ended")
        ages_ns: dict[str, int] = {}
        for sight in sights():
            ages_ns[sight.phase] = max(ages_ns.get(sight.phase, 0), sight.phase_age_ns)
        return [Observation(age_ns / 1e9, {RL_PHASE: name}) for name, age_ns in ages_ns.items()]

    def step_age(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sight.step_age_ns / 1e9) for sight in _oldest_step()]

    def step_number(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sight.step) for sight in _oldest_step() if sight.step is not None]

    callbacks: dict[str, Callable[[CallbackOptions], Iterable[Observation]]] = {
        RL_WORKER_PHASE_AGE: phase_ages,
        RL_WORKER_STEP_AGE: step_age,
        RL_WORKER_STEP_NUMBER: step_number,
    }
    for name, callback in callbacks.items():
        spec = METRICS[name]
        meter.create_observable_gauge(name, [callback], spec.unit, spec.brief)


def count_open(guard: Guard) -> None:
    """Count what is open as lost, because the process ends."""
    _count(guard, forget_all(), "The process has ended")


def _oldest_step() -> list[Sight]:
    """The step that has been open for longest, or nothing."""
    steps = [sight for sight in sights() if sight.step is not None]
    return [max(steps, key=lambda sight: sight.step_age_ns)] if steps else []


def _count(guard: Guard, left_open: int, what: str) -> None:
    if left_open:
        guard.drop(
            DropReason.UNCLOSED_PHASE,
            f"{what} within {left_open} steps and phases, which are not measured. Use them in "
            "with statements.",
            left_open,
        )
