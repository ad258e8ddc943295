"""The gate bounds what requests hold and what is worked on at once, fairly between senders.

* ``InFlight`` bounds the bytes of the bodies that are held. A request beyond it is refused.
* ``Gate`` bounds the work in progress. A request beyond it waits for its turn.

In both, each token has a part of its own, which no other token can use up. Of bytes in flight, it
takes more from a part that is common to all.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Final, TypeVar

from otel_rl.bridge.receive.tokens import NO_TOKEN, TokenShares
from otel_rl.errors import Overloaded

_T = TypeVar("_T")

Sender = tuple[str, ...]
"""Token, address, and what else tells senders apart. Each waits in a line of its own."""

_ANY: Final = 1 << 62


class _Account:
    """Amounts of a bound that each token has taken. Not safe for threads.

    Args:
        own_of: Returns the part that a token has for itself.
        common: The part from which tokens take beyond their own.
    """

    def __init__(self, own_of: Callable[[str], int], common: int = 0) -> None:
        self.own_of = own_of
        self._common = common
        self._taken: dict[str, int] = {}
        self._beyond = 0

    def fits(self, token: str, n: int) -> bool:
        """Return whether a token may take ``n`` more."""
        beyond = self._beyond + self._growth(token, n)
        return beyond <= self._beyond or beyond <= self._common

    def add(self, token: str, n: int) -> None:
        """Take ``n`` more; a negative ``n`` gives back."""
        self._beyond += self._growth(token, n)
        taken = self._taken.get(token, 0) + n
        if taken:
            self._taken[token] = taken
        else:
            self._taken.pop(token, None)

    def _growth(self, token: str, n: int) -> int:
        own, before = self.own_of(token), self._taken.get(token, 0)
        return max(0, before + n - own) - max(0, before - own)


class Turn:
    """A request's turn at a gate, from the moment at which it asks for the turn.

    Attributes:
        granted: Future that is done once the turn has come; it fails if the turn does not come.
    """

    def __init__(self, gate: "Gate", sender: Sender, n: int) -> None:
        self.granted: Future[None] = Future()
        self.sender = sender
        self.n = n
        self.is_in = self.is_over = False
        self._gate = gate

    def leave(self) -> None:
        """End the turn, or the wait for the turn. Idempotent; any thread may call this."""
        self._gate._leave(self)  # noqa: SLF001  # the two classes are one idea


class Gate:
    """Lets in as much of each token as its part allows; the rest waits, in turns of the senders.

    A request that waits for room keeps later ones of its token from taking the room. Any thread may
    call any method.

    Args:
        own_of: Returns the part of a token.
        least: Least amount that a request counts as.
        max_waiting: Number of requests that may wait. A further one shortens the longest line.
    """

    def __init__(
        self,
        own_of: Callable[[str], int],
        *,
        least: int = 1,
        max_waiting: int = _ANY,
    ) -> None:
        self._least = least
        self._max_waiting = max_waiting
        # _lock guards everything below, and the turns.
        self._lock = threading.Lock()
        self._account = _Account(own_of)
        self._lines: dict[Sender, deque[Turn]] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    def ask(self, sender: Sender, n: int = 1) -> Turn:
        """Ask for a turn with ``n``, or with so much that the token can have a small one beside."""
        with self._lock:
            most = max(self._least, self._account.own_of(sender[0]) - self._least)
            turn = Turn(self, sender, min(max(n, self._least), most))
            self._lines.setdefault(sender, deque()).append(turn)
            self._waiting += 1
            self._let_in()
            if self._waiting > self._max_waiting:
                refused = max(self._lines.values(), key=len)[-1]
                self._take_out(refused)
                if refused.granted.set_running_or_notify_cancel():
                    refused.granted.set_exception(_overloaded())
        return turn

    async def wait(self, sender: Sender, n: int = 1) -> Turn:
        """Wait for a turn on an event loop.

        Raises:
            Overloaded: Too many requests wait. The sender retries.
        """
        turn = self.ask(sender, n)
        try:
            if turn.granted.done():
                turn.granted.result()
            else:
                await asyncio.wrap_future(turn.granted)
        except BaseException:
            turn.leave()
            raise
        return turn

    async def run(
        self, sender: Sender, n: int, threads: Executor, function: Callable[[], _T]
    ) -> _T:
        """Wait for a turn, and run a function in a thread; the function's end also ends the turn.

        Args:
            function: Runs to its end even if its caller is cancelled.
        """
        turn = await self.wait(sender, n)
        try:
            running = threads.submit(function)
        except BaseException:
            turn.leave()
            raise
        running.add_done_callback(lambda _: turn.leave())
        try:
            return await asyncio.wrap_future(running)
        finally:
            # Its error would keep this frame, and the request, until the next collection.
            del running

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            if turn.is_over:
                return
            turn.is_over = True
            if turn.is_in:
                self._account.add(turn.sender[0], -turn.n)
            else:
                self._take_out(turn)
            self._let_in()

    def _let_in(self) -> None:
        while self._let_one_in():
            pass

    def _let_one_in(self) -> bool:
        full: set[str] = set()
        for sender, line in self._lines.items():
            turn, token = line[0], sender[0]
            if token in full:
                continue
            if not self._account.fits(token, turn.n):
                full.add(token)
                continue
            self._take_out(turn)
            if turn.granted.set_running_or_notify_cancel():
                turn.is_in = True
                self._account.add(sender[0], turn.n)
                turn.granted.set_result(None)
            return True
        return False

    def _take_out(self, turn: Turn) -> None:
        """Take a turn out of its line; its sender's next turn comes last."""
        line = self._lines.pop(turn.sender, None)
        if line is None:
            return
        if turn in line:
            line.remove(turn)
            self._waiting -= 1
        if line:
            self._lines[turn.sender] = line


class InFlight:
    """Bounds the bytes of all request bodies held at once. Any thread may call any method.

    Args:
        max_bytes: Bound over all requests.
        shares: Parts of the bound for each token.
        for_all_bytes: Common part of ``max_bytes``, so that the largest request fits whatever the
            number of tokens.
    """

    def __init__(
        self, max_bytes: int, shares: TokenShares | None = None, *, for_all_bytes: int = 0
    ) -> None:
        self._max_bytes = max_bytes
        own_bytes = max_bytes - for_all_bytes
        parts = shares or TokenShares(())
        # _lock guards _account.
        self._lock = threading.Lock()
        self._account = _Account(lambda token: parts.of_sender(token, own_bytes), for_all_bytes)

    @contextmanager
    def hold(self, token: str = NO_TOKEN) -> Iterator["Held"]:
        """Lend an account of one request's bytes, which are released at the end of the block."""
        held = Held(self, token)
        try:
            yield held
        finally:
            held.release()

    def _add(self, token: str, n: int) -> None:
        with self._lock:
            if n > 0 and not self._account.fits(token, n):
                raise Overloaded(
                    f"More than {self._max_bytes} bytes of requests are in flight"
                    f"{f', or those of token {token} are over its share' * bool(token)}.",
                    hint="Send it again later. If this stays, raise receive.max_body_bytes"
                    " of the bridge: it holds 16 times as much.",
                )
            self._account.add(token, n)


class Held:
    """Bytes that one request holds of an ``InFlight``, until they are released."""

    def __init__(self, in_flight: InFlight, token: str) -> None:
        self.bytes = 0
        self._in_flight = in_flight
        self._token = token

    def add(self, n: int) -> None:
        """Hold ``n`` more bytes.

        Raises:
            Overloaded: All requests together, or those of the token, hold too many bytes.
        """
        self._in_flight._add(self._token, n)  # noqa: SLF001  # the two classes are one idea
        self.bytes += n

    def release(self) -> None:
        n, self.bytes = self.bytes, 0
        self._in_flight._add(self._token, -n)  # noqa: SLF001  # as above


def _overloaded() -> Overloaded:
    return Overloaded(
        "Too many requests wait for their turn.",
        hint="Send it again later. If this stays, spread the senders over several bridges.",
    )
