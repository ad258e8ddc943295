"""What is wrong with one process, and doing it: the hooks that its work passes through.

Nothing is wrong until the orchestrator says so. No hook records anything: what a fault does shows
only in what the process measures anyway.
"""

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from otel_rl.demo import wall_clock
from otel_rl.demo.faults import Kind

__all__ = ["Troubles"]

HEAP_OBJECTS = 1_000_000  # tracked by the collector; one pass over them takes some 30 ms


class Troubles:
    """Any thread."""

    def __init__(self) -> None:
        # Written by one thread; looking a key up is atomic.
        self._sizes: dict[Kind, float] = {}
        self._begun: set[Kind] = set()

    def begin(self, troubles: Mapping[Kind, float]) -> None:
        """From now on these happen, with these sizes, as far as they do not happen already."""
        for kind, size in troubles.items():
            if kind in self._begun:
                continue
            self._begun.add(kind)
            self._sizes[kind] = size
            if kind is Kind.CLOCK_SKEW:
                wall_clock.set_ahead(size)
            if kind is Kind.GC_PAUSES:
                threading.Thread(
                    target=_pause_for_ever, args=(size,), name="heap", daemon=True
                ).start()

    def size(self, kind: Kind) -> float | None:
        """How much of it there is now; None if it does not happen."""
        return self._sizes.get(kind)

    def once(self, kind: Kind) -> bool:
        """Whether it is to happen now; afterwards not any more."""
        return self._sizes.pop(kind, None) is not None

    @contextmanager
    def slowed(self, *kinds: Kind) -> Iterator[None]:
        """Make the ``with`` block last as many times longer as the sizes say.

        The process waits, as on a machine whose clock is throttled, and takes nothing away from
        the others.
        """
        begun_s = time.perf_counter()
        yield
        for kind in kinds:
            size = self.size(kind)
            if size is not None:
                time.sleep((size - 1) * (time.perf_counter() - begun_s))

    def delay(self, kind: Kind) -> None:
        """Wait as many seconds as the size says."""
        size = self.size(kind)
        if size is not None:
            time.sleep(size)

    def message_travels(self) -> None:
        """A message is on its way to another process, or back."""
        self.delay(Kind.NETWORK_DELAY)


def _pause_for_ever(pause_s: float) -> None:
    """Collect garbage over a large heap, as long as each pause is to be, and pause as long."""
    heap: list[list[object]] = [[] for _ in range(HEAP_OBJECTS)]
    while heap:
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < pause_s:
            gc.collect()  # holds the interpreter lock from beginning to end
        time.sleep(pause_s)
