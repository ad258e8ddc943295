"""Parses what several workers send at about the same time in one pass of the event loop.

A request that comes alone costs several times as much as one among others: threads wake up for it,
one after the other, and it has a transaction of its own. Workers send once a second and do not wait
for the answer, so theirs may be somewhat later. A sender with a backlog, which sends the next
request as soon as it has the answer, is never kept waiting.
"""

import asyncio
from typing import Final, Protocol

__all__ = ["PACED_S", "GatheredReads", "GatheringConnection"]

PACED_S: Final = 0.25
"""Pause since its last answer by which a sender is told from one with a backlog."""

_MAX_WAIT_S: Final = 0.2
"""Added to the answer of a request, and to the age of its row."""

_MAX_BYTES: Final = 4 << 20
"""Of all connections, before they are parsed and held to the bounds on requests."""

_WEIGHT: Final = 0.125  # of the last gap between requests in their mean


class GatheringConnection(Protocol):
    """Connection that has received something."""

    def parse_gathered(self) -> None:
        """Parse what was received."""
        ...


class GatheredReads:
    """Connections whose bytes are parsed soon, together. Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[GatheringConnection, None] = {}
        self._bytes = 0
        self._gap_s = _MAX_WAIT_S
        self._last_s = 0.0

    def is_worth_it(self, now_s: float) -> bool:
        """Return whether another request is likely to come soon, when one begins to arrive.

        Args:
            now_s: Clock of the event loop.
        """
        gap_s = min(now_s - self._last_s, 2 * _MAX_WAIT_S)
        self._gap_s += _WEIGHT * (gap_s - self._gap_s)
        self._last_s = now_s
        return self._gap_s < _MAX_WAIT_S / 2

    def wait(self, connection: GatheringConnection, n_bytes: int) -> None:
        """Let a connection that has received ``n_bytes`` wait, unless there are too many."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_MAX_WAIT_S, self._parse)
        self._waiting[connection] = None
        self._bytes += n_bytes
        if self._bytes > _MAX_BYTES:
            self._parse()

    def _parse(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        loop = asyncio.get_running_loop()
        for connection in waiting:
            loop.call_soon(connection.parse_gathered)  # each by itself, if it fails
