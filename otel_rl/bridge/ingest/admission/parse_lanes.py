"""Order of parsing, within one bound on memory: small requests never wait for a large one.

A parsed request takes a multiple of its size in memory, and blocks the interpreter in proportion to
its size. So there are two lanes: one for large requests, one at a time, and one for all others,
where the smaller request goes first unless the larger one has waited long enough.
"""

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otel_rl.errors import Overloaded

__all__ = ["Lane", "ParseLanes"]

# Part of the memory for large requests; all others share the rest.
_LARGE_SHARE = 0.75

# A request above this part of the memory is a large one.
_LARGE = 1 / 16

# Parsing rate: a request yields to smaller ones that arrive within its own parse time.
_BYTES_PER_S = 32 << 20


class Lane:
    """Admits requests in turn, within bounds on their number and bytes. Any thread may use it.

    Args:
        width: Concurrent requests.
        max_bytes: Memory of all of them. A request above it has the lane to itself.
        max_waiting: Requests that may wait; further ones are refused.
        timeout_s: Longest wait; after that the sender has given up.
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
        self._served = 0  # bytes since the start
        self._open = 0
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Return the memory of the admitted requests, in bytes."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    @contextmanager
    def hold(self, n_bytes: int) -> Iterator[None]:
        """Wait for a turn and hold it for the block.

        Args:
            n_bytes: Upper bound of the memory needed.

        Raises:
            Overloaded: Too many requests wait, or the wait took too long. The sender retries.
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
        # Later requests go first until as many bytes were served as this one needs.
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


class ParseLanes:
    """Memory and time of all requests that are parsed.

    Args:
        max_bytes: Memory of all of them together, whatever the number of cores.
        cores: Number of cores: parsing more at once makes none of them faster.
        max_waiting: Large requests that may wait: each keeps a thread.
        timeout_s: Longest wait of a request.
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
        # Lane for measuring requests before they are parsed, which takes up to half a second, too.
        self._looked_at = Lane(
            width=1, max_bytes=_ANY, max_waiting=2 * max_waiting, timeout_s=timeout_s
        )

    @property
    def bytes(self) -> int:
        """Return the memory of the requests that are parsed now."""
        return self._small.bytes + self._large.bytes

    def is_small(self, n_bytes: int) -> bool:
        """Return whether a request of this size bypasses the large lane."""
        return n_bytes <= self._large_bytes

    @contextmanager
    def look(self, n_bytes: int) -> Iterator[None]:
        """Measure a request of ``n_bytes`` in the block. Raises as ``Lane.hold``."""
        with self._looked_at.hold(n_bytes):
            yield

    @contextmanager
    def hold(self, n_bytes: int) -> Iterator[None]:
        """Parse a request in the block, given the memory it needs. Raises as ``Lane.hold``."""
        with (self._small if self.is_small(n_bytes) else self._large).hold(n_bytes):
            yield


_ANY = 1 << 62


def _overloaded() -> Overloaded:
    return Overloaded(
        "Too many large requests wait to be parsed.",
        hint="Send it again later, and in smaller batches: max_export_batch_size of an SDK's "
        "exporter, send_batch_max_size of a Collector's batch processor.",
    )
