"""Threads of children: a child ends with the last of them, and until then they may record."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["after_threads_of_child", "after_threads_of_fork"]

_OF_A_PROCESS: Final = "_MainThread"


def after_threads_of_child(end: Callable[[], None]) -> None:
    """Call a function when no other thread of a ``multiprocessing`` child may record any more.

    Called by a finalizer. Up to Python 3.12 a child runs its finalizers before it joins its
    threads; it then joins the one that is started here, too, which waits for the others. Without
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
    """Yield the threads that keep this process alive, besides its first."""
    for one in threading.enumerate():
        if not one.daemon and one is not threading.main_thread():
            yield one


def after_threads_of_fork(end: Callable[[], None]) -> None:
    """Call a function when a child that a thread has forked has no other thread any more.

    Such a child calls no exit handlers, and the threads of otel_rl would keep it alive for ever.
    Called in the child; in others nothing happens.
    """
    first = threading.main_thread()  # the one that has forked
    if type(first).__name__ == _OF_A_PROCESS:
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
