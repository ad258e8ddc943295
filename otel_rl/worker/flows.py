"""The flows of control of the process, each with its timeline.

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

from otel_rl.worker.frames import Frame
from otel_rl.worker.timeline import Sight, Timeline

if TYPE_CHECKING:
    import asyncio

__all__ = ["abandon_elsewhere", "current", "forget_all", "forget_dead", "open_frames", "sights"]

_open: dict[int, Timeline] = {}
"""The timelines with open frames, by id. Each is put in and taken out by its own flow."""


class _Here(threading.local):
    """The timelines of one thread: its own, and those of its asyncio tasks."""

    def __init__(self) -> None:
        self.thread = Timeline(_open)
        self.tasks: WeakKeyDictionary[asyncio.Task[object], Timeline] = WeakKeyDictionary()


_here = _Here()


def current() -> Timeline:
    """The timeline of the flow that calls."""
    task = _task() if "asyncio" in sys.modules else None
    if task is None:
        return _here.thread
    tasks = _here.tasks
    timeline = tasks.get(task)
    if timeline is None:
        timeline = tasks[task] = Timeline(_open, task=task)
    return timeline


def _task() -> "asyncio.Task[object] | None":
    """The task that calls; None outside of a loop, and in its callbacks, which nothing interrupts.

    A program that has not imported asyncio runs no loop, and importing it takes a while. One that
    is importing it just now in another thread does not either.
    """
    asyncio_module = sys.modules["asyncio"]
    # The function without an underscore raises where no loop runs, which would cost as much as all
    # the rest of a phase.
    running_loop = getattr(asyncio_module, "_get_running_loop", None)
    loop = None if running_loop is None else running_loop()
    if loop is None:
        return None
    task: asyncio.Task[object] | None = asyncio_module.current_task(loop)
    return task


def abandon_elsewhere(opener: object) -> tuple[Timeline, Frame] | None:
    """Find the frame of ``opener`` in another flow, and note that it is closed."""
    for timeline in tuple(_open.values()):
        frame = timeline.abandon(opener)
        if frame is not None:
            return timeline, frame
    return None


def sights() -> list[Sight]:
    """What every flow is in now. Any thread may ask."""
    now_ns = monotonic_ns()
    seen = (timeline.look(now_ns) for timeline in tuple(_open.values()))
    return [sight for sight in seen if sight is not None]


def open_frames() -> list[tuple[Frame, int]]:
    """What is open in all flows, and what moves its times to the wall clock. Any thread may ask."""
    return [
        (frame, timeline.wall_ns)
        for timeline in tuple(_open.values())
        for frame in timeline.frames()
    ]


def forget_dead() -> int:
    """Forget what threads and tasks that have ended left open. Returns how many frames."""
    return _forget(timeline for timeline in tuple(_open.values()) if timeline.is_dead)


def forget_all() -> int:
    """Forget what is open in all flows. Returns how many frames that were."""
    return _forget(tuple(_open.values()))


def _forget(timelines: Iterable[Timeline]) -> int:
    # Two threads may be here at the end of a process. Who takes a timeline out counts it.
    taken = (_open.pop(id(timeline), None) for timeline in timelines)
    return sum(timeline.clear() for timeline in taken if timeline is not None)


def _after_fork_in_child() -> None:
    """What was open is the parent's to close and to report."""
    global _here  # of the one thread that lives on
    _here = _Here()
    _open.clear()


with suppress(AttributeError):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
