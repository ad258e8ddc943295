"""Discrete-event kernel: tasks are generators that yield seconds or what they wait for."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Task:
    """A running generator.

    Attributes:
        is_over: Ended, or killed: it is never resumed.
    """

    work: "Work[Any]"
    is_over: bool = False

    def kill(self) -> None:
        self.is_over = True


@dataclass(eq=False)
class Signal:
    """Something that happens once; tasks that wait for it go on then."""

    waiting: list[Task] = field(default_factory=list)
    is_set: bool = False
    value: Any = None


Work = Generator[float | Signal, Any, T]


class Kernel:
    """Simulated time.

    Attributes:
        now: Seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Task, Any]] = []
        self._order = itertools.count()

    def spawn(self, work: Work[Any], after_s: float = 0.0) -> Task:
        task = Task(work)
        self._wake(task, after_s)
        return task

    def fire(self, signal: Signal, value: Any = None) -> None:
        if not signal.is_set:
            signal.is_set, signal.value = True, value
            for task in signal.waiting:
                self._wake(task, 0.0, value)

    def run(self, until: Callable[[], float]) -> None:
        """Run to the time that ``until`` returns, or until nobody has anything to do."""
        while self._due and self._due[0][0] <= until():
            self.now, _, task, value = heapq.heappop(self._due)
            if not task.is_over:
                self._resume(task, value)

    def _resume(self, task: Task, value: Any) -> None:
        try:
            wanted = task.work.send(value)
        except StopIteration:
            task.is_over = True
            return
        if isinstance(wanted, Signal):
            if wanted.is_set:
                self._wake(task, 0.0, wanted.value)
            else:
                wanted.waiting.append(task)
        else:
            self._wake(task, wanted)

    def _wake(self, task: Task, after_s: float, value: Any = None) -> None:
        heapq.heappush(self._due, (self.now + after_s, next(self._order), task, value))


class Barrier:
    """A collective of ``size`` workers: nobody goes on before all have come."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        self._kernel, self.size = kernel, size
        self._come, self._signal = 0, Signal()

    def arrive(self) -> Signal:
        self._come += 1
        signal = self._signal
        if self._come >= self.size:
            self._come, self._signal = 0, Signal()
            self._kernel.fire(signal)
        return signal


class Store:
    """Queue of things between tasks, first in first out."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.things: deque[Any] = deque()
        self._takers: deque[Signal] = deque()

    def put(self, thing: Any) -> None:
        if self._takers:
            self._kernel.fire(self._takers.popleft(), thing)
        else:
            self.things.append(thing)

    def take(self) -> Signal:
        signal = Signal()
        if self.things:
            signal.is_set, signal.value = True, self.things.popleft()
        else:
            self._takers.append(signal)
        return signal
