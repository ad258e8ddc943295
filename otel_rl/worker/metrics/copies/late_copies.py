"""Gauge values for the program's readers, as soon as a device has computed them.

The training thread must neither wait for its device nor ask it: a question spoils the capture of a
CUDA graph in another thread. So the exporter thread records them.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from otel_rl.worker.guard import Guard
from otel_rl.worker.tensors import Deferred, NotANumber, number

__all__ = ["LateCopies"]

_MAX_WAITING: Final = 1 << 14
"""Values. A reader sees only the last of each series, so further ones replace the oldest."""


class LateCopies:
    """Values that devices have yet to compute, each with the function that records it.

    Args:
        guard: Catches and counts what the functions, and failed devices, raise.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._waiting: deque[tuple[Deferred, Callable[[float], None]]] = deque(maxlen=_MAX_WAITING)

    def add(self, value: Deferred, record: Callable[[float], None]) -> None:
        """Record ``value`` later, in another thread."""
        self._waiting.append((value, record))

    def record_ready(self) -> None:
        """Record all values that are computed by now. For the exporter thread; never waits."""
        for _ in range(len(self._waiting)):
            value, record = self._waiting.popleft()
            with self._guard:
                if not value.is_ready:
                    self._waiting.append((value, record))
                    continue
                plain = number(value)
                if not isinstance(plain, NotANumber):
                    record(plain)

    def forget(self) -> None:
        """Clear, in a forked child: the devices are its parent's."""
        self._waiting.clear()
