"""Listening socket that bounds its open connections and refuses further ones.

Connections count from ``accept`` on, so unfinished TLS handshakes count, too. At the bound, the
address with the most connections yields to an address that has fewer: its oldest connection that
waits for its sender is closed.
"""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable

from otel_rl.bridge.receive.senders import address_of

# Refused connections stay open this long, or until this many newer ones are refused: closing one
# with unread bytes of the sender would reset it, and the sender would not see the answer.
_LINGER_S = 2.0
_MAX_LINGERING = 64

# Connections asked to close that are still open: the bound may be exceeded by this many.
_MAX_LEAVING = 64


class BoundedListener(socket.socket):
    """Accepts at most ``max_connections`` at a time. One thread uses it.

    Args:
        max_connections: Number of connections that are open at once.
        farewell: Bytes sent to a refused connection before it is closed; may be empty.
        on_refused: Called for each connection that is refused, or closed for another.
    """

    def __init__(
        self,
        family: int,
        kind: int,
        protocol: int,
        *,
        max_connections: int,
        farewell: bytes,
        on_refused: Callable[[], None],
    ) -> None:
        super().__init__(family, kind, protocol)
        self._max_connections = max_connections
        self._farewell = farewell
        self._on_refused = on_refused
        self._of_address: dict[str, dict[int, _Counted]] = {}
        self._open = 0
        self._leaving: set[int] = set()
        self._busy: set[int] = set()
        self._lingering: deque[tuple[float, socket.socket]] = deque()

    def accept(self) -> tuple[socket.socket, object]:
        """Return the next connection.

        Raises:
            ConnectionAbortedError: A connection was refused. asyncio goes on with the next one.
        """
        connection, peer = super().accept()
        address = address_of(str(peer[0])) if isinstance(peer, tuple) and peer else ""
        if self._open - len(self._leaving) >= self._max_connections and not self._make_room(
            address
        ):
            self._refuse(connection)
            raise ConnectionAbortedError
        self._open += 1
        accepted = _Counted(connection, address, self._on_close)
        self._of_address.setdefault(address, {})[accepted.number] = accepted
        return accepted, peer

    def set_busy(self, number: int, *, is_busy: bool) -> None:
        """Mark whether a connection has a complete request that is being answered."""
        if is_busy:
            self._busy.add(number)
        else:
            self._busy.discard(number)

    def _make_room(self, address: str) -> bool:
        """Close a connection of the address with most connections, unless that is the new one's."""
        most = max(self._of_address.values(), key=len, default={})
        if len(self._of_address.get(address, ())) + 1 >= len(most):
            return False
        if len(self._leaving) >= _MAX_LEAVING:
            return False
        free = (n for n in most if n not in self._busy and n not in self._leaving)
        number = next(free, None)
        if number is None:
            return False
        self._leaving.add(number)
        self._on_refused()
        with contextlib.suppress(OSError):  # already closed
            most[number].shutdown(socket.SHUT_RDWR)
        return True

    def close(self) -> None:
        """Stop listening. Accepted connections stay open."""
        super().close()
        while self._lingering:
            self._lingering.popleft()[1].close()

    def _on_close(self, address: str, number: int) -> None:
        self._open -= 1
        self._leaving.discard(number)
        self._busy.discard(number)
        connections = self._of_address[address]
        del connections[number]
        if not connections:
            del self._of_address[address]

    def _refuse(self, connection: socket.socket) -> None:
        self._on_refused()
        try:
            connection.settimeout(0)
            connection.send(self._farewell)  # a few hundred bytes into an empty buffer
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # already closed
        now_s = time.monotonic()
        self._lingering.append((now_s + _LINGER_S, connection))
        while self._lingering and (
            self._lingering[0][0] < now_s or len(self._lingering) > _MAX_LINGERING
        ):
            self._lingering.popleft()[1].close()


class _Counted(socket.socket):
    """Accepted connection that reports its close."""

    def __init__(
        self, connection: socket.socket, address: str, on_closed: Callable[[str, int], None]
    ) -> None:
        super().__init__(
            connection.family, connection.type, connection.proto, fileno=connection.detach()
        )
        self.number = self.fileno()
        self._address = address
        self._on_closed: Callable[[str, int], None] | None = on_closed

    def close(self) -> None:
        super().close()
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self._address, self.number)
