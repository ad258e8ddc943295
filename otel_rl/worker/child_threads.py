"""Threads of a ``multiprocessing`` child that outlive its function."""

import sys
import threading
from typing import Final

__all__ = ["join_threads_of_child"]

# Lets executors end and joins all threads but daemons; its second call does nothing. There is no
# public name for it: joining them one by one would wait for idle executors for ever.
_JOIN: Final = "_shutdown"


def join_threads_of_child() -> None:
    """Wait for the threads of a ``multiprocessing`` child, which may still record.

    The child does so itself, but after its finalizers. In other processes nothing happens: their
    exit handlers are called after it.
    """
    process = sys.modules.get("multiprocessing.process")
    is_main = threading.current_thread() is threading.main_thread()
    if process is not None and process.parent_process() is not None and is_main:
        getattr(threading, _JOIN)()
