"""A listening socket that knows how many of its connections are open, and refuses further ones.

It counts at ``accept``, so a connection that only pretends to begin a TLS handshake counts too.
"""

import socket
import time
from collections import deque
from collections.abc import Callable

__all__ = ["BoundedListener"]

# A refused connection is kept open for so long, or until so many newer ones are refused: closed at
# once, with bytes of the sender unread, it would be reset, and the sender would not see the answer.
_LINGER_S = 2.0
_MAX_LINGERING = 64


class BoundedListener(socket.socket):
    """Accepts at most ``max_connections`` at a time. Used by one thread.

    Args:
        family: As of ``socket.socket``.
        kind: As of ``socket.socket``.
        protocol: As of ``socket.socket``.
        max_connections: Open at once.
        farewell: What a refused connection is sent before it is closed; may be nothing.
        on_refused: Called for each refused connection.
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
        self._open = 0
        self._lingering: deque[tuple[float, socket.socket]] = deque()

    def accept(self) -> tuple[socket.socket, object]:
        """The next connection.

        Raises:
            ConnectionAbortedError: One was refused. asyncio goes on with the next.
        """
        connection, address = super().accept()
        if self._open >= self._max_connections:
            self._refuse(connection)
            raise ConnectionAbortedError
        self._open += 1
        return _Counted(connection, self._on_close), address

    def close(self) -> None:
        """Stop listening. Connections that were accepted stay open."""
        super().close()
        while self._lingering:
            self._lingering.popleft()[1].close()

    def _on_close(self) -> None:
        self._open -= 1

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

    def __init__(self, connection: socket.socket, on_closed: Callable[[], None]) -> None:
        super().__init__(
            connection.family, connection.type, connection.proto, fileno=connection.detach()
        )
        self._on_closed: Callable[[], None] | None = on_closed

    def close(self) -> None:
        super().close()
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed()
