"""Holds up a fork while another thread of this package does what would hang the child.

A forked child has one thread. A lock that another thread of its parent held, of a module that it
was importing or of a library, is never released in the child: the first import of that module hangs
there. And gRPC prepares its channels for a fork only if no thread is inside a call: of 2,800 forks
of a process that exported all the time, one child hung.

The SDK's TracerProvider runs a thread pool in each child. A provider that is older than the module
of the pools does so before that module releases its lock there, and would wait for ever.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import RLock, local
from typing import Any, Final
from weakref import ref

__all__ = ["IMPORTS", "MAX_WAIT_S", "Uncut"]

MAX_WAIT_S: Final = 2.0
"""A fork waits no longer for all of it: a callback that hangs must not hold up the program."""


class Uncut:
    """Work that no fork of another thread cuts in two, of one thread at a time.

    Args:
        max_wait_s: A fork waits no longer for it; work with the network has no known end.
    """

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        self._max_wait_s = max_wait_s
        self.renew()
        _all.append(ref(self))

    def renew(self) -> None:
        """Forget the parent's threads, in a forked child."""
        # Re-entrant: the work itself may fork.
        self._lock = RLock()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Enter around the work. Forks of other threads wait for its end."""
        with self._lock:
            yield

    def hold(self, deadline_s: float) -> bool:
        """Wait until no work is under way, and let none begin.

        Args:
            deadline_s: On the monotonic clock; past it, work goes on and False is returned.
        """
        wait_s = min(self._max_wait_s, deadline_s - time.monotonic())
        return self._lock.acquire(timeout=max(0.0, wait_s))

    def release(self) -> None:
        """Let work begin again."""
        self._lock.release()


_all: Final[list[ref[Uncut]]] = []

IMPORTS: Final = Uncut()
"""Enter around an import in a thread that otel_rl has started."""


class _Fork(local):
    """Work that the forking thread holds up."""

    def __init__(self) -> None:
        self.held: list[Uncut] = []
        self.pools: Any = None

    def begin(self) -> None:
        deadline_s = time.monotonic() + MAX_WAIT_S
        for found in tuple(_all):
            uncut = found()
            if uncut is None:
                with suppress(ValueError):  # another thread that forks has removed it
                    _all.remove(found)
            elif uncut.hold(deadline_s):
                self.held.append(uncut)
        if _lock_of_pools is not None:
            _lock_of_pools.release()
            self.pools = _lock_of_pools

    def end_in_parent(self) -> None:
        while self.held:
            self.held.pop().release()
        # Last: another thread that is about to fork may have it, and wait for the work above.
        if self.pools is not None:
            self.pools.acquire()
            self.pools = None

    def end_in_child(self) -> None:
        self.held.clear()
        self.pools = None
        for found in _all:
            if (uncut := found()) is not None:
                uncut.renew()


_POOLS: Final = "concurrent.futures.thread"

_fork: Final = _Fork()

_lock_of_pools: Any = None
"""Held by the forking thread when a fork begins here, and released after it ends here."""

if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    _are_pools_older = _POOLS in sys.modules
    # Has handlers, too, of logging's lock. A thread that waits for that one must not have the lock
    # of the pools, which the one that forks takes again before it releases that of logging.
    import_module("concurrent.futures")
    os.register_at_fork(
        before=lambda: _fork.begin(),
        after_in_parent=lambda: _fork.end_in_parent(),
        after_in_child=lambda: _fork.end_in_child(),
    )
    if not _are_pools_older:
        # There is no public name for it. Handlers run in the order of registration after a fork,
        # and in the reverse order before it.
        _lock_of_pools = getattr(import_module(_POOLS), "_global_shutdown_lock", None)
