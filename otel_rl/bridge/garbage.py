"""Python's collector of cyclic garbage and the C library's heap, in processes that handle rows."""

import ctypes
import gc
from typing import Final

_THRESHOLDS: Final = (10_000, 20, 50)
"""New objects, then rounds, between two collections of each generation; Python's are 700, 10, 10.

Open steps and rows are many small containers without cycles, which live for seconds. By default
each is looked at three times, which is a quarter of the CPU time of a measurement.
"""

# Of glibc's mallopt.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_LARGE_BLOCK_BYTES: Final = 1 << 20


def collect_rarely() -> None:
    """Make the garbage collector run a tenth as often in this process. Idempotent."""
    gc.set_threshold(*_THRESHOLDS)


def skip_last_collections() -> None:
    """Let the interpreter end without a last collection, which takes 0.1 to 0.2 s of CPU.

    This is for the end of a process that has closed everything; exit hooks still run.
    """
    gc.freeze()


def return_memory() -> None:
    """Return the memory of requests to the system as soon as they are answered. Idempotent.

    By default glibc learns from the first large request to take blocks of that size from a heap of
    each thread, which keeps them: requests of 16 MiB left 350 MiB behind, requests of 250 kB left
    an eighth of a small bridge's memory. One heap is enough for threads that take turns.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        mallopt(_M_ARENA_MAX, 1)
