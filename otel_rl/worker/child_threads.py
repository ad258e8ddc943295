"""Threads of children: a child ends with the last of them, and until then they may record."""

import sys
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["after_threads_of_fork", "join_threads_of_child"]

# Lets executors end and joins all threads but daemons; its second call does nothing. There is no
# public name for it: joining them one by one would wait for idle executors for ever.
_JOIN: Final = "_shutdown"

_OF_A_PROCESS: Final = "_MainThread"


def join_threads_of_child() -> None:
    """Wait for the threads of a ``multiprocessing`` child, which may still record.

    The child does so itself, but after its finalizers. In other processes nothing happens: their
    exit handlers are called after it.
    """
    if _is_multiprocessing_child() and threading.current_thread() is threading.main_thread():
        getattr(threading, _JOIN)()


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
        while others := [one for one in threading.enumerate() if not one.daemon]:
            others[0].join()
        if not _is_multiprocessing_child():  # which ends by itself
            end()

    threading.Thread(target=wait, name="otel-rl-end-of-fork", daemon=True).start()


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
