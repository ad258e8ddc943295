"""Gauge values for the program's readers, as soon as a device has computed them.

The training thread must neither wait for its device nor ask it: a question spoils the capture of a
CUDA graph in another thread. So the exporter thread records them.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from otel_rl.worker.guard import Guard
from otel_rl.worker.tensors import Deferred, NotANumber, keep_for_ever, number

__all__ = ["LateCopies"]

_MAX_WAITING: Final = 1 << 14
"""Values. A reader sees only the last of each series, so further ones replace the oldest."""

_Waiting: TypeAlias = tuple[object, object, Callable[[float], None]]
"""(gauge, held value, function that records it)."""


class LateCopies:
    """Values that devices have yet to compute, each with the function that records it.

    Those of one gauge are recorded in their order: a reader keeps the last one.

    Args:
        guard: Catches and counts what the functions, and failed devices, raise.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._new: deque[_Waiting] = deque(maxlen=_MAX_WAITING)
        self._unready: list[_Waiting] = []

    def add(self, gauge: object, value: object, record: Callable[[float], None]) -> None:
        """Record a held ``value`` of ``gauge`` later, in another thread."""
        self._new.append((gauge, value, record))

    def record_ready(self) -> None:
        """Record all values that are computed by now. For the exporter thread; never waits."""
        waiting, self._unready = self._unready, []
        waiting += [self._new.popleft() for _ in range(len(self._new))]
        held_up: set[int] = set()
        for entry in waiting[-_MAX_WAITING:]:
            gauge, value, record = entry
            with self._guard:
                if id(gauge) in held_up or (isinstance(value, Deferred) and not value.is_ready):
                    held_up.add(id(gauge))
                    self._unready.append(entry)
                    continue
                plain = number(value)
                if not isinstance(plain, NotANumber):
                    record(plain)

    def forget(self) -> None:
        """Clear, in a forked child: the devices are its parent's. Copies are kept for ever."""
        keep_for_ever([*self._unready, *self._new])
        self._new.clear()
        self._unready = []
