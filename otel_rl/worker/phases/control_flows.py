"""Control flows of the process, each with its timeline.

A flow is a thread, or within a running event loop an asyncio task. Under other loops it is the
thread.
"""

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from otel_rl.worker.phases.timeline import Frame, Timeline, TimelineView

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "abandon_elsewhere",
    "current",
    "flows",
    "forget_all",
    "forget_dead",
    "views",
]

_open: dict[int, Timeline] = {}
"""Timelines with open frames, by id. Each is added and removed by its own flow."""


class _Here(threading.local):
    """Timelines of one thread: its own, and those of its asyncio tasks."""

    def __init__(self) -> None:
        self.thread = Timeline(_open)
        self.tasks: WeakKeyDictionary[asyncio.Task[object], Timeline] = WeakKeyDictionary()


_here = _Here()


def current() -> Timeline:
    """Return the timeline of the calling flow."""
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
    for timeline in flows():
        frame = timeline.abandon(opener)
        if frame is not None:
            return timeline, frame
    return None


def views() -> list[TimelineView]:
    """Return a view of every flow's present state. Thread-safe."""
    now_ns = monotonic_ns()
    found = (timeline.look(now_ns) for timeline in flows())
    return [view for view in found if view is not None]


def flows() -> list[Timeline]:
    """Return the timelines with open frames. Thread-safe."""
    return [*_open.values()]


def forget_dead() -> int:
    """Clear the open frames of ended threads and tasks. Returns their number."""
    return _forget(timeline for timeline in flows() if timeline.is_dead)


def forget_all() -> int:
    """Clear the open frames of all flows. Returns their number."""
    return _forget(flows())


def _forget(timelines: Iterable[Timeline]) -> int:
    # At the end of a process two threads may run this; the one that removes a timeline counts it.
    taken = (_open.pop(id(timeline), None) for timeline in timelines)
    return sum(timeline.clear() for timeline in taken if timeline is not None)


def _after_fork_in_child() -> None:
    """Reset: the parent closes and reports its open frames."""
    global _here  # for the one thread that survives
    _here = _Here()
    _open.clear()


with suppress(AttributeError):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
