"""A listening socket that knows how many of its connections are open, and refuses further ones.

It counts at ``accept``, so a connection that only pretends to begin a TLS handshake counts too.
Where there is no room, an address with many connections makes room for one that has fewer: the
oldest of its connections is closed that waits for its sender.
"""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable

from otel_rl.bridge.receive.peers import address_of

__all__ = ["BoundedListener"]

# A refused connection is kept open for so long, or until so many newer ones are refused: closed at
# once, with bytes of the sender unread, it would be reset, and the sender would not see the answer.
_LINGER_S = 2.0
_MAX_LINGERING = 64

# Connections that were told to close and have not yet: so many more than the bound there can be.
_MAX_LEAVING = 64


class BoundedListener(socket.socket):
    """Accepts at most ``max_connections`` at a time. Used by one thread.

    Args:
        family: As of ``socket.socket``.
        kind: As of ``socket.socket``.
        protocol: As of ``socket.socket``.
        max_connections: Open at once.
        farewell: What a refused connection is sent before it is closed; may be nothing.
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
        """The next connection.

        Raises:
            ConnectionAbortedError: One was refused. asyncio goes on with the next.
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
        """Say whether a connection has a whole request that is being answered.

        Args:
            number: The connection's file descriptor.
            is_busy: It is not closed for another one as long as that is so.
        """
        if is_busy:
            self._busy.add(number)
        else:
            self._busy.discard(number)

    def _make_room(self, address: str) -> bool:
        """Close a connection of the address that has most, if that is not the newcomer's."""
        most = max(self._of_address.values(), key=len, default={})
        if len(self._of_address.get(address, ())) + 1 >= len(most):
            return False
        if len(self._leaving) >= _MAX_LEAVING:
            return False
        for number, connection in most.items():
            if number not in self._busy and number not in self._leaving:
                self._leaving.add(number)
                self._on_refused()
                with contextlib.suppress(OSError):  # it is gone already
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def close(self) -> None:
        """Stop listening. Connections that were accepted stay open."""
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
            pass  # it is gone already
        now_s = time.monotonic()
        self._lingering.append((now_s + _LINGER_S, connection))
        while self._lingering and (
            self._lingering[0][0] < now_s or len(self._lingering) > _MAX_LINGERING
        ):
            self._lingering.popleft()[1].close()


class _Counted(socket.socket):
    """An accepted connection that says when it is closed."""

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
