"""Who may parse next: within one bound on memory, and nobody behind a large request.

Parsed, a request takes a multiple of its bytes, and keeps the interpreter busy for as long as it is
large. So there are two lanes: one for large requests, one at a time, and one for all others, where
who has less to parse goes first, unless the other has waited for as long as it takes longer.
"""

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otel_rl.errors import Overloaded

__all__ = ["Lane", "Parsing"]

# Of the memory, large requests have so much, and all others the rest.
_LARGE_SHARE = 0.75

# A request that takes more than this part of all the memory is a large one.
_LARGE = 1 / 16

# About what is parsed in a second: a request goes behind those that come so much later.
_BYTES_PER_S = 32 << 20


class Lane:
    """Lets requests in by turns, within bounds on their number and bytes. Any thread may use it.

    Args:
        width: Requests at once.
        max_bytes: Of memory, of all of them. One that takes more has the lane for itself.
        max_waiting: More are sent away.
        timeout_s: Who waits longer is sent away: its sender has given up.
    """

    def __init__(self, *, width: int, max_bytes: int, max_waiting: int, timeout_s: float) -> None:
        self._width = width
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._numbers = itertools.count()
        # _changed guards everything below.
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int]] = []
        self._served = 0  # bytes, ever
        self._open = 0
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the requests that are let in take now."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @contextmanager
    def hold(self, n_bytes: int) -> Iterator[None]:
        """Wait for one's turn, and have it for the block.

        Args:
            n_bytes: Of memory, at most.

        Raises:
            Overloaded: Too many wait, or it took too long. To be sent again.
        """
        n_bytes = min(n_bytes, self._max_bytes)
        with self._changed:
            self._enter(n_bytes)
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1
                self._bytes -= n_bytes
                self._changed.notify_all()

    def _enter(self, n_bytes: int) -> None:
        if len(self._waiting) >= self._max_waiting:
            raise _overloaded()
        # Those that come later go first until as much was served as this one takes.
        ticket = self._served + n_bytes, next(self._numbers)
        heapq.heappush(self._waiting, ticket)

        def is_next() -> bool:
            return (
                self._waiting[0] == ticket
                and self._open < self._width
                and self._bytes + n_bytes <= self._max_bytes
            )

        try:
            if not self._changed.wait_for(is_next, self._timeout_s):
                raise _overloaded()
            self._open += 1
            self._bytes += n_bytes
            self._served += n_bytes
        finally:
            self._waiting.remove(ticket)
            heapq.heapify(self._waiting)
            self._changed.notify_all()


class Parsing:
    """The memory and the time of all requests that are parsed.

    Args:
        max_bytes: Memory of all of them together, whatever the number of cores.
        cores: Of the machine: parsing more at once makes none of them faster.
        max_waiting: Large requests that wait: each keeps a thread.
        timeout_s: Longest time for a request to wait.
    """

    def __init__(self, max_bytes: int, *, cores: int, max_waiting: int, timeout_s: float) -> None:
        self._large_bytes = int(max_bytes * _LARGE)
        of_large = int(max_bytes * _LARGE_SHARE)
        self._large = Lane(
            width=1, max_bytes=of_large, max_waiting=max_waiting, timeout_s=timeout_s
        )
        self._small = Lane(
            width=max(1, cores - 1),
            max_bytes=max_bytes - of_large,
            max_waiting=_ANY,
            timeout_s=timeout_s,
        )
        # To be looked at, to find out what it will take; that, too, takes up to half a second.
        self._looked_at = Lane(
            width=1, max_bytes=_ANY, max_waiting=2 * max_waiting, timeout_s=timeout_s
        )

    @property
    def bytes(self) -> int:
        """What is parsed now takes."""
        return self._small.bytes + self._large.bytes

    def is_small(self, n_bytes: int) -> bool:
        """Whether a request that takes so much memory need not wait for large ones."""
        return n_bytes <= self._large_bytes

    @contextmanager
    def look(self, n_bytes: int) -> Iterator[None]:
        """Look at a request of so many bytes in the block. Raises as ``Lane.hold``."""
        with self._looked_at.hold(n_bytes):
            yield

    @contextmanager
    def hold(self, n_bytes: int) -> Iterator[None]:
        """Parse a request that takes so much memory in the block. Raises as ``Lane.hold``."""
        with (self._small if self.is_small(n_bytes) else self._large).hold(n_bytes):
            yield


_ANY = 1 << 62


def _overloaded() -> Overloaded:
    return Overloaded(
        "Too many large requests wait to be parsed.",
        hint="Send it again later, and in smaller batches: max_export_batch_size of an SDK's "
        "exporter, send_batch_max_size of a Collector's batch processor.",
    )
