"""Reads and parses what several workers send at about the same time in one pass of the event loop.

A request that comes alone costs several times as much as one among others: threads wake up for it,
one after the other, and it has a transaction of its own. Workers send once a second and do not wait
for the answer, so theirs may be somewhat later. A sender with a backlog, which sends the next
request as soon as it has the answer, is never kept waiting.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Final, Protocol

from otel_rl.bridge.ingest.http.unread_connections import UnreadConnections

__all__ = ["PACED_S", "GatheredReads", "GatheringConnection"]

PACED_S: Final = 0.25
"""Pause since its last answer by which a sender is told from one with a backlog."""

_WAIT_S: Final = 0.25
"""Added to the answer of a request, and to the age of its row, at most."""

_WAIT_OF_FEW_S: Final = 0.5
"""The same while fewer connections than ``_MANY`` are left unread: a pass is for several."""

_MANY: Final = 32

_MANY_GAP_S: Final = 0.1
"""Mean pause between two requests, of all connections, below which they wait for each other."""

_MAX_BYTES: Final = 4 << 20
"""Of all connections, before they are parsed and held to the bounds on requests."""

_READ_BYTES: Final = 64 << 10
"""Of one connection at a time. What is longer is read as it arrives."""

_AT_ONCE: Final = 64
"""Unread connections that are read before other work of the event loop has its turn."""

_WEIGHT: Final = 0.125  # of the last gap between requests in their mean

_QUIET_PASSES: Final = 5  # without any request, until connections are read as they arrive


class GatheringConnection(Protocol):
    """Connection that has received something, or may be read later."""

    def parse_gathered(self) -> None:
        """Parse what was received."""
        ...

    def data_received(self, data: bytes) -> None:
        """Receive bytes, as from the event loop."""
        ...

    def may_take(self) -> bool:
        """Return whether it is to be read while it is left unread."""
        ...

    def take(self, data: bytes) -> bool:
        """Begin to store an export that was read. Returns whether it is one that is known."""
        ...

    def give_up(self) -> None:
        """End the connection at once."""
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
    of senders that have paused are left unread, and looked at in each pass. The loop only wakes up
    if one sends sooner than ``PACED_S`` after its answer.
    """

    def __init__(self) -> None:
        self._waiting: dict[GatheringConnection, None] = {}
        self._bytes = 0
        self._gap_s = _WAIT_S
        self._last_s = 0.0
        self._has_timer = False
        # Time of the last answer of connections that have sent nothing since, by descriptor.
        self._answered: dict[int, tuple[GatheringConnection, float]] = {}
        self._unread: UnreadConnections[GatheringConnection] = UnreadConnections()
        self._is_listening = False
        self._quiet_passes = 0

    def is_worth_it(self, now_s: float) -> bool:
        """Return whether another request is likely to come soon, when one begins to arrive.

        Args:
            now_s: Clock of the event loop.
        """
        gap_s = min(now_s - self._last_s, _WAIT_OF_FEW_S)
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

    def is_unread(self, number: int) -> bool:
        """Return whether a connection is left unread, by its descriptor."""
        return number in self._unread

    def was_answered(self, connection: GatheringConnection, number: int, now_s: float) -> None:
        """Leave a connection unread from a later pass on, if it goes on to send nothing.

        Args:
            connection: Has nothing that waits.
            number: Its descriptor.
            now_s: Clock of the event loop.
        """
        if not self._unread.is_possible or not self._are_many:
            self.let_read(number)
            return
        if number in self._unread:
            if not self._is_listening:
                self._is_listening = True
                loop = asyncio.get_running_loop()
                loop.add_reader(self._unread.early_number(), self._read_early)
            self._unread.answered(number)
        self._answered[number] = connection, now_s
        self._set_timer()

    def was_heard(self, number: int) -> None:
        """Take note of a connection that is read, and has sent something."""
        if number not in self._unread:
            self._answered.pop(number, None)

    def let_read(self, number: int) -> None:
        """Read a connection as its bytes arrive, if it is left unread."""
        connection = self._unread.pop(number)
        if connection is not None:
            self._answered.pop(number, None)
            connection.read_again()

    def forget(self, number: int) -> None:
        """Forget a connection before its descriptor is closed."""
        self._answered.pop(number, None)
        self._unread.pop(number)

    def read_all(self) -> None:
        """Read from all connections again, now."""
        for number in self._unread.numbers():
            self.let_read(number)
        self._answered.clear()

    def close(self) -> None:
        """Free what the operating system holds."""
        self._unread.close()

    def _set_timer(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            wait_s = _WAIT_OF_FEW_S if 0 < len(self._unread) < _MANY else _WAIT_S
            asyncio.get_running_loop().call_later(wait_s, self._pass)

    def _pass(self) -> None:
        """Read unread connections that have something, and parse it with what waits."""
        self._has_timer = False
        now_s = asyncio.get_running_loop().time()
        ready = self._unread.ready()
        self._quiet_passes = 0 if ready or self._waiting else self._quiet_passes + 1
        if self._quiet_passes >= _QUIET_PASSES:
            self.read_all()  # the senders may have stopped: no passes without them
        else:
            self._take_turns(ready, now_s)
            self._leave_unread(now_s)
        self._parse()
        if self._unread or self._answered:
            self._set_timer()

    def _take_turns(self, numbers: Sequence[int], now_s: float) -> None:
        """Read some connections, and others after other work of the event loop."""
        for number in numbers[:_AT_ONCE]:
            self._take(number, now_s)
        if len(numbers) > _AT_ONCE:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._take_turns, numbers[_AT_ONCE:], now_s)

    def _take(self, number: int, now_s: float) -> None:
        """Read from one connection, if it is still left unread, and store what is known."""
        connection = self._unread.get(number)
        if connection is None or not connection.may_take():
            return
        try:
            data = os.read(number, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if data and connection.take(data):
                self.is_worth_it(now_s)
                return
            self.let_read(number)  # and find out about its end
            if data:
                connection.data_received(data)
        except Exception as exc:  # noqa: BLE001  # ends one connection, as the event loop does
            report = {"message": "A request could not be taken.", "exception": exc}
            asyncio.get_running_loop().call_exception_handler(report)
            connection.give_up()

    def _read_early(self) -> None:
        """Read from senders that go on at once as their bytes arrive."""
        for number in self._unread.early():
            self.let_read(number)

    def _leave_unread(self, now_s: float) -> None:
        for number, (connection, answered_s) in [*self._answered.items()]:
            if now_s - answered_s < PACED_S:
                return  # nor are those behind it
            del self._answered[number]
            if number in self._unread:
                self._unread.paused(number)
            else:
                self._unread.add(number, connection)
                connection.leave_unread()

    def _parse(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        loop = asyncio.get_running_loop()
        for connection in waiting:
            loop.call_soon(connection.parse_gathered)  # each by itself, if it fails
