"""One control flow: a thread, or a task of asyncio."""

import threading
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    import asyncio

__all__ = ["ControlFlow"]


class ControlFlow:
    """The calling thread, or a task in it.

    Args:
        task: The flow, if it is a task and not the calling thread.
    """

    __slots__ = ("_task", "thread")

    def __init__(self, task: "asyncio.Task[object] | None" = None) -> None:
        self.thread = threading.current_thread()
        """The thread, or that in which the task began."""
        self._task = None if task is None else ref(task)

    @property
    def task(self) -> "asyncio.Task[object] | None":
        """The task; None for a thread, or if the task was deleted."""
        return None if self._task is None else self._task()

    @property
    def is_dead(self) -> bool:
        """Return whether the thread or task has ended."""
        if not self.thread.is_alive():
            return True
        if self._task is None:
            return False
        task = self._task()
        return task is None or task.done() or task.get_loop().is_closed()
