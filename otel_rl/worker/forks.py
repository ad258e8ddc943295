"""Forks: work that a fork waits for, and the beginnings and ends of children.

A forked child has one thread. A lock that another thread of its parent held, of a module that it
was importing or of a library, is never released in the child: the first import of that module hangs
there. And gRPC prepares its channels for a fork only if no thread is inside a call: of 2,800 forks
of a process that exported all the time, one child hung. So a fork waits for such work of otel_rl.

A child ends with the last of its threads, and until then they may record. A child of
``multiprocessing`` ends with ``os._exit``, which skips ``atexit``.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock, local
from typing import Final
from weakref import ref

MAX_WAIT_S: Final = 2.0
"""A fork waits no longer for all of it: a callback that hangs must not hold up the program."""


class Uncut:
    """Work of one thread at a time that forks of other threads do not interrupt.

    Args:
        max_wait_s: Longest time that a fork waits for the work, as work with the network has no
            known end.
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
        """Enter around the work. Forks of other threads wait for the end of the work."""
        with self._lock:
            yield

    def hold(self, deadline_s: float) -> bool:
        """Wait until no work is in progress, and let none begin.

        Args:
            deadline_s: Time of the monotonic clock; after it, work goes on and False is returned.
        """
        wait_s = min(self._max_wait_s, deadline_s - time.monotonic())
        return self._lock.acquire(timeout=max(0.0, wait_s))

    def release(self) -> None:
        """Let work begin again."""
        self._lock.release()


_all: Final[list[ref[Uncut]]] = []

_MAIN_THREAD: Final = threading.main_thread()
"""In a child that another thread has forked, Python calls that one the main thread."""

IMPORTS: Final = Uncut()
"""Enter around an import in a thread that otel_rl has started."""


class _Fork(local):
    def __init__(self) -> None:
        self.held: list[Uncut] = []

    def begin(self) -> None:
        deadline_s = time.monotonic() + MAX_WAIT_S
        # The newest first: work of the sender, which is older, waits for that of the spans.
        for found in reversed(tuple(_all)):
            uncut = found()
            if uncut is None:
                with suppress(ValueError):  # another thread that forks has removed it
                    _all.remove(found)
            elif uncut.hold(deadline_s):
                self.held.append(uncut)

    def end_in_parent(self) -> None:
        while self.held:
            self.held.pop().release()

    def end_in_child(self) -> None:
        self.held.clear()
        for found in _all:
            if (uncut := found()) is not None:
                uncut.renew()


_fork: Final = _Fork()

os.register_at_fork(
    before=lambda: _fork.begin(),
    after_in_parent=lambda: _fork.end_in_parent(),
    after_in_child=lambda: _fork.end_in_child(),
)


_watching: Final[list[Callable[[], None]]] = []


def watch_multiprocessing(begin: Callable[[], None]) -> None:
    """Call a function in each child that ``multiprocessing`` forks from this process. Idempotent.

    A process that has not loaded ``multiprocessing`` neither is nor has such a child. A later
    import precedes any fork, and then the fork is the time to watch: the child's first step is to
    forget the parent's finalizers and to call the functions that are registered here.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and begin not in _watching:
        _watching.append(begin)
        util.register_after_fork(begin, lambda begin: begin())


def at_end_of_multiprocessing_child(end: Callable[[], None]) -> None:
    """Call a function with the finalizers of ``multiprocessing``, with which its children end.

    The low priority runs it after the finalizers of user code, which may still record.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, exitpriority=-100)


def after_threads_of_child(end: Callable[[], None]) -> None:
    """Call a function once no other thread of a ``multiprocessing`` child may record any more.

    A finalizer calls this. Up to Python 3.12 a child runs its finalizers before it joins its
    threads; it then also joins the thread that is started here, which waits for the others. Without
    other threads, and in other processes, whose exit handlers are called after their threads, the
    function is called at once.
    """
    others = [*_threads()]
    if not others or not _is_multiprocessing_child():
        end()
        return

    def wait() -> None:
        this = threading.current_thread()
        while others := [one for one in _threads() if one is not this]:
            others[0].join()
        end()

    threading.Thread(target=wait, name="otel-rl-end-of-child", daemon=False).start()


def _threads() -> Iterator[threading.Thread]:
    """Yield the threads that keep this process alive, except its first."""
    for one in threading.enumerate():
        if not one.daemon and one is not threading.main_thread():
            yield one


def after_threads_of_fork(end: Callable[[], None]) -> None:
    """Call a function once a child that a thread has forked has no other thread any more.

    Such a child calls no exit handlers, and the threads of otel_rl would keep it alive for ever.
    Call this in the child; in other processes it does nothing.
    """
    first = threading.main_thread()  # the one that has forked
    if first is _MAIN_THREAD:
        return

    def wait() -> None:
        first.join()
        while others := [*_threads()]:
            others[0].join()
        if not _is_multiprocessing_child():  # which ends by itself
            end()

    threading.Thread(target=wait, name="otel-rl-end-of-fork", daemon=True).start()


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
