"""Faults of one process: hooks on its work.

Without an instruction of the orchestrator there is none. No hook records anything: a fault shows
only in the process's regular metrics.
"""

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from otel_rl.demo.faults import clock
from otel_rl.demo.faults.plan import Kind

__all__ = ["FaultInjection"]

HEAP_OBJECTS = 1_000_000  # tracked by the collector; one pass over them takes some 30 ms


class FaultInjection:
    """Active faults of the process. Thread-safe."""

    def __init__(self) -> None:
        # Written by one thread; a dict lookup is atomic.
        self._sizes: dict[Kind, float] = {}
        self._begun: set[Kind] = set()

    def begin(self, faults: Mapping[Kind, float]) -> None:
        """Start these faults with these sizes, unless already active."""
        for kind, size in faults.items():
            if kind in self._begun:
                continue
            self._begun.add(kind)
            self._sizes[kind] = size
            if kind is Kind.CLOCK_SKEW:
                clock.set_ahead(size)
            if kind is Kind.GC_PAUSES:
                threading.Thread(
                    target=_pause_for_ever, args=(size,), name="heap", daemon=True
                ).start()

    def size(self, kind: Kind) -> float | None:
        """Return the present size of a fault; None if it is not active."""
        return self._sizes.get(kind)

    def once(self, kind: Kind) -> bool:
        """Report whether a one-time fault is due, and end it."""
        return self._sizes.pop(kind, None) is not None

    @contextmanager
    def slowed(self, *kinds: Kind) -> Iterator[None]:
        """Extend the ``with`` block by the factors of the faults.

        The process sleeps, as on a throttled machine, and takes no CPU from the others.
        """
        begun_s = time.perf_counter()
        yield
        for kind in kinds:
            size = self.size(kind)
            if size is not None:
                time.sleep((size - 1) * (time.perf_counter() - begun_s))

    def delay(self, kind: Kind) -> None:
        """Sleep for as many seconds as the fault's size."""
        size = self.size(kind)
        if size is not None:
            time.sleep(size)

    def message_travels(self) -> None:
        """Delay a message to another process, or its answer."""
        self.delay(Kind.NETWORK_DELAY)


def _pause_for_ever(pause_s: float) -> None:
    """Alternate garbage collections of a large heap for ``pause_s`` with equal pauses."""
    heap: list[list[object]] = [[] for _ in range(HEAP_OBJECTS)]
    while heap:
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < pause_s:
            gc.collect()  # holds the interpreter lock throughout
        time.sleep(pause_s)
