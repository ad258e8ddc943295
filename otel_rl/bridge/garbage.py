"""Python's collector of cyclic garbage, in processes that handle rows."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["collect_rarely", "collections_paused", "skip_last_collections"]

_THRESHOLDS: Final = (10_000, 20, 50)
"""New objects, then rounds, between two collections of each generation; Python's are 700, 10, 10.

Open steps and rows are many small containers without cycles, which live for seconds. By default
each is looked at three times, which is a quarter of the CPU time of a measurement.
"""


def collect_rarely() -> None:
    """Let the collector run a tenth as often in this process. Idempotent."""
    gc.set_threshold(*_THRESHOLDS)


@contextmanager
def collections_paused() -> Iterator[None]:
    """Pause the collector, for imports: what they make stays, and a sixth of their CPU is its."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def skip_last_collections() -> None:
    """Let the interpreter end without looking at what is left: with W&B it takes 0.1 s of CPU.

    For the end of a process that has closed everything; exit hooks still run.
    """
    gc.freeze()
