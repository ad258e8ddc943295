"""Holds up a fork for the moment that gRPC calls of this process take.

gRPC prepares its channels for a fork only if no thread is inside a call. Else the first call of the
child may hang: of 2,800 forks of a process that exported all the time, one did.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, local
from typing import Final
from weakref import ref

__all__ = ["MAX_WAIT_S", "Calls"]

MAX_WAIT_S: Final = 0.5
"""A fork waits no longer: an endpoint that hangs must not hold up the program."""


class Calls:
    """The calls of one transport, one at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        _transports.append(ref(self))

    @contextmanager
    def one(self) -> Iterator[None]:
        """Enter around a call. Forks of other threads wait for its end."""
        with self._lock:
            yield

    def hold(self, deadline_s: float) -> bool:
        """Wait until no call is under way, and let none begin.

        Args:
            deadline_s: On the monotonic clock; past it, calls go on and False is returned.
        """
        return self._lock.acquire(timeout=max(0.0, deadline_s - time.monotonic()))

    def release(self) -> None:
        """Let calls begin again."""
        self._lock.release()


_transports: Final[list[ref[Calls]]] = []


class _Fork(local):
    """Locks that the forking thread holds."""

    def __init__(self) -> None:
        self.parents: list[ref[Calls]] = []
        self.held: list[Calls] = []

    def begin(self) -> None:
        deadline_s = time.monotonic() + MAX_WAIT_S
        self.parents = list(_transports)
        for found in self.parents:
            calls = found()
            if calls is None:
                _remove(found)
            elif calls.hold(deadline_s):
                self.held.append(calls)

    def end_in_parent(self) -> None:
        while self.held:
            self.held.pop().release()

    def end_in_child(self) -> None:
        self.end_in_parent()
        for found in self.parents:  # the child opens its own, and may have begun to
            _remove(found)


def _remove(found: ref[Calls]) -> None:
    with suppress(ValueError):  # another thread that forks has removed it
        _transports.remove(found)


_fork: Final = _Fork()

with suppress(AttributeError):  # there is no fork on Windows
    os.register_at_fork(
        before=lambda: _fork.begin(),
        after_in_parent=lambda: _fork.end_in_parent(),
        after_in_child=lambda: _fork.end_in_child(),
    )
