"""Control flows of the process, and the exporter's reports of their open steps and phases.

A flow is a thread, or within a running event loop an asyncio task. Under other loops it is the
thread. Each flow has a timeline.

A hanging thread cannot report itself. While it releases the interpreter lock, as waits, collectives
and kernels do, the exporter reports its step and phase, and their ages.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_rl.semconv.names import (
    METRICS,
    PHASES,
    RL_PHASE,
    RL_WORKER_GC_TIME,
    RL_WORKER_PHASE_AGE,
    RL_WORKER_STEP_AGE,
    RL_WORKER_STEP_NUMBER,
)
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.phases.timeline import Frame, StepFrame, Timeline, TimelineView

if TYPE_CHECKING:
    import asyncio

_open: dict[int, Timeline] = {}
"""Timelines with open frames, by id. Each is added and removed by its own flow."""


class _Here(threading.local):
    """Timelines of one thread: its own, and those of its asyncio tasks."""

    def __init__(self) -> None:
        self.thread = Timeline(_open)
        self.tasks: WeakKeyDictionary[asyncio.Task[object], Timeline] = WeakKeyDictionary()


_here = _Here()


def current() -> Timeline:
    task = _task() if "asyncio" in sys.modules else None
    if task is None:
        return _here.thread
    tasks = _here.tasks
    timeline = tasks.get(task)
    if timeline is None:
        timeline = tasks[task] = Timeline(_open, task=task)
    return timeline


def _task() -> "asyncio.Task[object] | None":
    """Return the calling task; None outside of a loop and in its callbacks.

    A program that has not imported asyncio runs no loop, and importing it is slow. The same holds
    while another thread is importing it.
    """
    asyncio_module = sys.modules["asyncio"]
    # The public function raises without a running loop, which would cost as much as the rest of a
    # phase.
    running_loop = getattr(asyncio_module, "_get_running_loop", None)
    loop = None if running_loop is None else running_loop()
    if loop is None:
        return None
    task: asyncio.Task[object] | None = asyncio_module.current_task(loop)
    return task


def abandon_elsewhere(opener: object) -> tuple[Timeline, Frame] | None:
    """Find the frame of ``opener`` in another flow, and mark it as closed."""
    for timeline in open_flows():
        frame = timeline.abandon(opener)
        if frame is not None:
            return timeline, frame
    return None


def innermost() -> str:
    """Return the innermost open phase of the calling flow; empty without one."""
    frames = current().frames()
    if not frames or isinstance(frames[-1], StepFrame):
        return ""
    return frames[-1].name


def views() -> list[TimelineView]:
    """Return a view of every flow's present state. Thread-safe."""
    now_ns = monotonic_ns()
    found = (timeline.look(now_ns) for timeline in open_flows())
    return [view for view in found if view is not None]


def open_flows() -> list[Timeline]:
    """Return the timelines with open frames. Thread-safe."""
    return [*_open.values()]


def _drop_open(guard: Guard, timelines: Iterable[Timeline], what: str) -> None:
    # At the end of a process two threads may run this; the one that removes a timeline counts it.
    taken = (_open.pop(id(timeline), None) for timeline in timelines)
    left_open = sum(timeline.clear() for timeline in taken if timeline is not None)
    if left_open:
        guard.drop(
            DropReason.UNCLOSED_PHASE,
            f"{what} within {left_open} steps and phases, which are not measured. Use them in "
            "with statements.",
            left_open,
        )


def _after_fork_in_child() -> None:
    """Reset: the parent closes and reports its open frames."""
    global _here  # for the one thread that survives
    _here = _Here()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def show_phases(meter: Meter, guard: Guard) -> None:
    """Register the metrics of the step and the phases that are open at each export.

    The guard counts the phases that ended threads and tasks have left open.
    """

    def phase_ages(_options: CallbackOptions) -> Iterable[Observation]:
        dead = [flow for flow in open_flows() if flow.is_dead]
        _drop_open(guard, dead, "A thread or task has ended")
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
    _drop_open(guard, open_flows(), "The process has ended")


def _oldest_step() -> list[TimelineView]:
    steps = [view for view in views() if view.step is not None]
    return [max(steps, key=lambda view: view.step_age_ns)] if steps else []


def span_name(frame: Frame) -> str:
    if isinstance(frame, StepFrame):
        return STEP_SPAN
    known = PHASES.get(frame.name)
    return known.span or frame.name if known is not None else frame.name


class GcTime:
    """Reports the total duration of all garbage collections since ``start`` through ``meter``.

    A collection stops every thread, and adds to the phase that happens to be open. The time is
    reported in processes with steps or phases: a script with one or two metrics gets no row for it.
    The last total is reported after ``stop``, too.

    It costs about 0.3 us per collection, of which there is one per some thousand new objects.
    """

    def __init__(self, meter: Meter) -> None:
        self._total_ns = 0
        self._begun_ns = 0
        self._is_shown = False
        self._has_phases = False
        spec = METRICS[RL_WORKER_GC_TIME]
        meter.create_observable_counter(spec.name, [self._observe], spec.unit, spec.brief)

    def start(self) -> None:
        """Start measuring from zero. Idempotent."""
        if self._note not in gc.callbacks:
            self.forget()
            self._is_shown = True
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._note in gc.callbacks:  # the program may have removed it
            gc.callbacks.remove(self._note)

    def forget(self) -> None:
        """Reset for the next ``start``: a forked child has collected nothing yet."""
        self.stop()
        self._is_shown = False
        self._total_ns = self._begun_ns = 0

    def _note(self, phase: str, _info: Mapping[str, int]) -> None:
        """Handle a callback of the collector, in the thread that it stops first."""
        if phase == "start":
            self._begun_ns = perf_counter_ns()
        elif self._begun_ns:
            self._total_ns += perf_counter_ns() - self._begun_ns
            self._begun_ns = 0

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        # GC time alone does not make a process a worker.
        self._has_phases = self._has_phases or bool(views())
        return [Observation(self._total_ns / 1e9)] if self._is_shown and self._has_phases else []
