"""Places for calls whose message is in transfer or being stored, shared fairly between senders.

gRPC reads a message only for a call with a place, so the number of places bounds the messages in
transfer. A call without a message keeps its place for a moment, and longer only while no other call
waits:

* Waiting calls get places in turns of token, address and connection.
* Connections that have delivered a message get three of four places and a longer wait: a flood of
  calls without messages harms its own senders, not working ones.
* A call that loses its place is asked to retry.
"""

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from otel_rl.bridge.ingest.admission.fair_queue import FairQueue
from otel_rl.errors import Overloaded

__all__ = ["Place", "Places", "SenderPath"]

SenderPath = tuple[str, str, str]
"""Token or "", address, connection."""

# An exporter sends its message with its call. While others wait, a connection that never delivered
# one gets this long.
_MOMENT_S = 0.5

# One of this many places goes to a connection that never delivered; otherwise enough delivering
# ones would shut new ones out for good.
_EVERY = 4

# A slow event loop learns of a message long after it has arrived: a call is given up only after
# this many more rounds of the loop.
_ROUNDS = 16

# Connections known to deliver: a multiple of the default number of connections.
_MAX_TRUSTED = 8192


class _Timer(Protocol):
    def cancel(self) -> None: ...


class _Loop(Protocol):
    """The parts of an event loop in use: its clock, futures and timers."""

    def time(self) -> float: ...

    def create_future(self) -> "asyncio.Future[Any]": ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> _Timer: ...


class Place:
    """One place.

    Args:
        path: Sender of the call that holds it.
        since_s: Time of the grant, on the loop's clock.
        lost: Done once the place was revoked.

    Attributes:
        has_message: Whether the message has arrived. From then on the place is not revoked.
    """

    def __init__(self, path: SenderPath, since_s: float, lost: "asyncio.Future[None]") -> None:
        self.path = path
        self.since_s = since_s
        self.lost = lost
        self.has_message = False


_Queue = FairQueue["asyncio.Future[Place]"]


class Places:
    """Pool of places and the calls that wait for one. Used by the thread of its event loop.

    Args:
        loop: The event loop.
        n: Number of places.
        max_waiting: Calls that may wait. A further one shortens the longest line.
        wait_s: Longest wait for a place.
        patience_s: How long a connection that has delivered before keeps a place without a message
            while others wait.
    """

    def __init__(
        self, loop: _Loop, n: int, *, max_waiting: int, wait_s: float, patience_s: float
    ) -> None:
        self._loop = loop
        self._n = n
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._taken: dict[Place, None] = {}
        self._asked: dict[asyncio.Future[Place], tuple[_Queue, SenderPath]] = {}
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._trusted_queue: _Queue = FairQueue()
        self._queue: _Queue = FairQueue()
        self._turn = 0
        self._timer: _Timer | None = None

    @property
    def waiting(self) -> int:
        """Return the number of calls that wait for a place."""
        return len(self._asked)

    @property
    def taken(self) -> int:
        """Return the number of places in use."""
        return len(self._taken)

    async def take(self, path: SenderPath) -> Place:
        """Wait for a place.

        Raises:
            Overloaded: None became free in time, or too many wait. The sender retries.
        """
        if not self._asked and len(self._taken) < self._n:
            return self._give(path)
        asked = self.ask(path)
        try:
            async with asyncio.timeout(self._wait_s):
                return await asked
        except TimeoutError:
            self._withdraw(asked)
            raise _overloaded() from None
        except asyncio.CancelledError:
            self._withdraw(asked)
            raise

    def ask(self, path: SenderPath) -> "asyncio.Future[Place]":
        """Return a future of the next free place."""
        asked = self._loop.create_future()
        queue = self._trusted_queue if path[2] in self._trusted else self._queue
        queue.push(path, asked)
        self._asked[asked] = (queue, path)
        self._look()
        if len(self._asked) > self._max_waiting:
            refused = (self._queue or self._trusted_queue).pop_largest()
            del self._asked[refused]
            if not refused.done():
                refused.set_exception(_overloaded())
        return asked

    def arrived(self, place: Place) -> None:
        """Mark the message as arrived: the place stays until it is released."""
        place.has_message = True
        self._trusted[place.path[2]] = None
        self._trusted.move_to_end(place.path[2])
        if len(self._trusted) > _MAX_TRUSTED:
            self._trusted.popitem(last=False)

    def release(self, place: Place) -> None:
        """Release a place. Idempotent."""
        if place in self._taken:
            del self._taken[place]
            self._look()

    def distrust(self, place: Place) -> None:
        """Stop trusting a connection whose message did not arrive in time."""
        self._trusted.pop(place.path[2], None)

    def _withdraw(self, asked: "asyncio.Future[Place]") -> None:
        """Cancel a wait: pass on the turn, or the place if it was already granted."""
        if asked in self._asked:
            queue, path = self._asked.pop(asked)
            queue.remove(path, asked)
        elif not asked.cancelled() and asked.exception() is None:
            self.release(asked.result())

    def _look(self) -> None:
        """Grant the free places to waiting calls."""
        while self._asked and len(self._taken) < self._n:
            asked = self._next_queue().pop()
            _, path = self._asked.pop(asked)
            if asked.done():
                continue  # its call has ended and will be notified in a moment
            asked.set_result(self._give(path))
        if self._asked and self._timer is None:
            self._look_at_places_later()

    def _next_queue(self) -> _Queue:
        self._turn += 1
        if self._queue and self._turn % _EVERY == 0:
            return self._queue
        return self._trusted_queue or self._queue

    def _give(self, path: SenderPath) -> Place:
        place = Place(path, self._loop.time(), self._loop.create_future())
        self._taken[place] = None
        return place

    def _look_at_places_later(self) -> None:
        """Schedule a check for the next place that can be revoked."""
        self._timer = None
        next_s = min(map(self._until_s, self._taken), default=math.inf)
        if self._asked and next_s < math.inf:
            delay_s = max(0.0, next_s - self._loop.time())
            self._timer = self._loop.call_later(delay_s, self._warn)

    def _warn(self) -> None:
        """Revoke a place, unless its message turns out to have arrived by now."""
        now_s = self._loop.time()
        late = [place for place in self._taken if self._until_s(place) <= now_s]
        self._settle(late, _ROUNDS)

    def _settle(self, late: Sequence[Place], rounds: int) -> None:
        if rounds:
            settle = partial(self._settle, late, rounds - 1)
            self._timer = self._loop.call_later(0, settle)
            return
        held = Counter(part for place in self._taken for part in _senders(place.path))
        left = [place for place in late if place in self._taken and not place.has_message]
        while left and self._asked:
            place = max(left, key=lambda one: [held[part] for part in _senders(one.path)])
            left.remove(place)
            held.subtract(_senders(place.path))
            self._take_away(place)
        self._look_at_places_later()

    def _take_away(self, place: Place) -> None:
        del self._taken[place]
        self.distrust(place)
        place.lost.set_result(None)
        self._look()

    def _until_s(self, place: Place) -> float:
        """Return the time until which a place is not revoked, on the loop's clock."""
        if place.has_message:
            return math.inf
        is_trusted = place.path[2] in self._trusted
        return place.since_s + (self._patience_s if is_trusted else _MOMENT_S)


def _senders(path: SenderPath) -> Iterator[tuple[str, ...]]:
    """Yield the token, the address within it, and the connection within that."""
    return (path[:length] for length in range(1, len(path) + 1))


def _overloaded() -> Overloaded:
    return Overloaded(
        "All places for requests are taken.",
        hint="Send it again later. If this stays, raise receive.max_concurrent_requests.",
    )
