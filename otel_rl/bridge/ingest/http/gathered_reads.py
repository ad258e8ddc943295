"""Reads and parses what several workers send at about the same time in one pass of the event loop.

A request that comes alone costs several times as much as one among others: threads wake up for it,
one after the other, and it has a transaction of its own. Workers send once a second and do not wait
for the answer, so theirs may be somewhat later. A sender with a backlog, which sends the next
request as soon as it has the answer, is never kept waiting.
"""

import asyncio
import selectors
from collections.abc import Sequence
from typing import Final, Protocol

__all__ = ["PACED_S", "GatheredReads", "GatheringConnection"]

PACED_S: Final = 0.25
"""Pause since its last answer by which a sender is told from one with a backlog."""

_MAX_WAIT_S: Final = 0.25
"""Added to the answer of a request, and to the age of its row."""

_MANY_GAP_S: Final = 0.1
"""Mean pause between two requests, of all connections, below which they wait for each other."""

_MAX_BYTES: Final = 4 << 20
"""Of all connections, before they are parsed and held to the bounds on requests."""

_AT_ONCE: Final = 64
"""Unread connections that are read before what they have sent is parsed."""

_WEIGHT: Final = 0.125  # of the last gap between requests in their mean

_QUIET_PASSES: Final = 5  # without any request, until connections are read as they arrive


class GatheringConnection(Protocol):
    """Connection that has received something, or may be read later."""

    def parse_gathered(self) -> None:
        """Parse what was received."""
        ...

    def leave_unread(self) -> None:
        """Read nothing until ``read_again``."""
        ...

    def read_again(self) -> None:
        """Read what has arrived, and go on reading."""
        ...


class GatheredReads:
    """Connections whose bytes are read and parsed soon, together. Used on one event loop.

    The loop wakes up for each connection that it reads, which costs as much as a request. So those
    of senders that have paused are left unread, and looked at in each pass.
    """

    def __init__(self) -> None:
        self._waiting: dict[GatheringConnection, None] = {}
        self._bytes = 0
        self._gap_s = _MAX_WAIT_S
        self._last_s = 0.0
        self._has_timer = False
        # Descriptor and time of the last answer of connections that have sent nothing since.
        self._answered: dict[GatheringConnection, tuple[int, float]] = {}
        self._unread: dict[int, GatheringConnection] = {}  # by descriptor
        self._selector = selectors.DefaultSelector()  # of the unread ones
        self._quiet_passes = 0

    def is_worth_it(self, now_s: float) -> bool:
        """Return whether another request is likely to come soon, when one begins to arrive.

        Args:
            now_s: Clock of the event loop.
        """
        gap_s = min(now_s - self._last_s, 2 * _MAX_WAIT_S)
        self._gap_s += _WEIGHT * (gap_s - self._gap_s)
        self._last_s = now_s
        return self._are_many

    @property
    def _are_many(self) -> bool:
        return self._gap_s < _MANY_GAP_S

    def wait(self, connection: GatheringConnection, n_bytes: int) -> None:
        """Let a connection that has received ``n_bytes`` wait, unless there are too many."""
        self._set_timer()
        self._waiting[connection] = None
        self._bytes += n_bytes
        if self._bytes > _MAX_BYTES:
            self._parse()

    def was_answered(self, connection: GatheringConnection, number: int, now_s: float) -> None:
        """Leave a connection unread from a later pass on, if it goes on to send nothing.

        Args:
            connection: Has nothing that waits.
            number: Its descriptor.
            now_s: Clock of the event loop.
        """
        if self._are_many:
            self._answered[connection] = number, now_s
            self._set_timer()

    def was_heard(self, connection: GatheringConnection) -> None:
        """Take note of a connection that has sent something."""
        self._answered.pop(connection, None)

    def forget(self, connection: GatheringConnection, number: int) -> None:
        """Forget a connection before its descriptor is closed."""
        self._answered.pop(connection, None)
        if self._unread.pop(number, None) is not None:
            self._selector.unregister(number)

    def read_all(self) -> None:
        """Read from all connections again, now."""
        self._answered.clear()
        for number in [*self._unread]:
            self._read_again(number)

    def close(self) -> None:
        """Free what the operating system holds."""
        self._selector.close()

    def _set_timer(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            asyncio.get_running_loop().call_later(_MAX_WAIT_S, self._pass)

    def _pass(self) -> None:
        """Read unread connections that have something, and parse it with what waits."""
        self._has_timer = False
        ready = [key.fd for key, _ in self._selector.select(0)] if self._unread else []
        self._quiet_passes = 0 if ready or self._waiting else self._quiet_passes + 1
        if self._quiet_passes >= _QUIET_PASSES:
            ready = [*self._unread]  # the senders may have stopped: no passes without them
            self._answered.clear()
        else:
            self._leave_unread(asyncio.get_running_loop().time())
        self._read(ready)
        if self._unread or self._answered:
            self._set_timer()

    def _read(self, numbers: Sequence[int]) -> None:
        """Read connections that are still there, and parse what waits by then."""
        loop = asyncio.get_running_loop()
        for number in numbers[:_AT_ONCE]:
            self._read_again(number)
        # They are read in the next iteration of the loop, behind what is called first.
        loop.call_soon(loop.call_soon, self._parse)
        if len(numbers) > _AT_ONCE:
            loop.call_soon(loop.call_soon, self._read, numbers[_AT_ONCE:])

    def _read_again(self, number: int) -> None:
        connection = self._unread.pop(number, None)
        if connection is not None:
            self._selector.unregister(number)
            connection.read_again()

    def _leave_unread(self, now_s: float) -> None:
        for connection, (number, answered_s) in [*self._answered.items()]:
            if now_s - answered_s < PACED_S:
                return  # nor are those behind it
            del self._answered[connection]
            self._unread[number] = connection
            self._selector.register(number, selectors.EVENT_READ)
            connection.leave_unread()

    def _parse(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        loop = asyncio.get_running_loop()
        for connection in waiting:
            loop.call_soon(connection.parse_gathered)  # each by itself, if it fails
