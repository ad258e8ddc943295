"""A bound on how many threads do something at once, by turns of those for whom they do it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otel_rl.bridge.receive.fair_queue import FairQueue

__all__ = ["Turns"]


class Turns:
    """Lets at most ``n`` threads in; of those that wait, one of each sender by turns.

    Args:
        n: Threads at once.
    """

    def __init__(self, n: int) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._free = n
        self._waiting: FairQueue[threading.Event] = FairQueue()

    def __len__(self) -> int:
        """How many wait."""
        with self._lock:
            return len(self._waiting)

    @contextmanager
    def turn(self, sender: str) -> Iterator[None]:
        """Wait until it is the turn of ``sender``, and have it for the length of the block."""
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
