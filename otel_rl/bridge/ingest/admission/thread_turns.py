"""Bound on concurrent threads, with fair turns between the senders that they serve."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otel_rl.bridge.ingest.admission.fair_queue import FairQueue

__all__ = ["ThreadTurns"]


class ThreadTurns:
    """Admits at most ``n`` threads; waiting ones are admitted in turns of their senders.

    Args:
        n: Concurrent threads.
    """

    def __init__(self, n: int) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._free = n
        self._waiting: FairQueue[threading.Event] = FairQueue()

    def __len__(self) -> int:
        """Return the number of waiting threads."""
        with self._lock:
            return len(self._waiting)

    @contextmanager
    def turn(self, sender: str) -> Iterator[None]:
        """Wait for the turn of ``sender`` and hold it for the block."""
        turn: threading.Event | None = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                self._waiting.push((sender,), turn := threading.Event())
        if turn is not None:
            turn.wait()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.pop().set()
                else:
                    self._free += 1
