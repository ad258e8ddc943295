"""uvicorn's HTTP/1.1 protocol, with a bound on how long a request's headers may take.

uvicorn waits for headers for ever: a few thousand half-open requests would take every file
descriptor of the bridge. The body has a bound of its own, where it is read.
"""

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["BoundedHeadersProtocol"]


class BoundedHeadersProtocol(H11Protocol):
    """Closes a connection whose request headers are not complete in time.

    The time begins with the connection, and for each later request with its first byte; between
    requests uvicorn's own keep-alive timeout holds.

    Args:
        config: Passed on.
        server_state: Passed on.
        app_state: Passed on.
        _loop: Passed on.
        header_timeout_s: From the first byte to the end of the headers.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        header_timeout_s: float,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._header_timeout_s = header_timeout_s
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        # The transport is one for both directions, as uvicorn has it.
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and see whether they complete the headers."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._header_timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._header_timeout_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()
