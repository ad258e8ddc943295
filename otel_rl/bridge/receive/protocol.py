"""uvicorn's HTTP/1.1 protocol, with bounds on how long a sender may take.

A client of gRPC that has come to the wrong port is told so.

uvicorn waits for headers, and for the sender to take its answer, for ever: a few thousand half-open
requests would take every file descriptor of the bridge. The body has a bound of its own, where it
is read.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from otel_rl.bridge.counters import Outcome

__all__ = ["BoundedProtocol", "Patience"]

# uvicorn warns of every request that is no HTTP, as often as somebody sends one. They are counted.
_log = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)


# What a client of HTTP/2 that knows no other says first: RFC 9113, section 3.4.
_PREFACE = b"PRI * HTTP/2.0\r\n"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection waits for its sender.

    Attributes:
        header_timeout_s: From the first byte of a request, or from the connection if it is the
            first one, to the end of the headers.
        answer_timeout_s: For the sender to make room for an answer.
        count: Counts a request that ended before it reached the application.
        set_busy: Told by file descriptor whether a connection has a whole request.
        on_http2: Counts a connection of HTTP/2, and says what its sender should do instead.
    """

    header_timeout_s: float
    answer_timeout_s: float
    count: Callable[[Outcome], None]
    set_busy: Callable[..., None]
    on_http2: Callable[[], str]


class BoundedProtocol(H11Protocol):
    """Closes a connection whose sender is too slow with its headers or in taking its answers.

    Between requests uvicorn's own keep-alive timeout holds.

    Args:
        config: Passed on.
        server_state: Passed on.
        app_state: Passed on.
        _loop: Passed on.
        patience: The bounds.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: Patience,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _log
        self._patience = patience
        self._header_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._head = b""
        self._number = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        # The transport is one for both directions, as uvicorn has it.
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        self._number = -1 if own is None else own.fileno()
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and see whether they complete the headers."""
        if len(self._head) < len(_PREFACE):
            self._head = (self._head + data)[: len(_PREFACE)]
            if self._head == _PREFACE:  # which h11 would take for a request of the method PRI
                super().send_400_response(self._patience.on_http2())
                return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_header_timer()
        elif self._header_timer is None:
            self._start_header_timer()
        self._say_whether_busy()

    def on_response_complete(self) -> None:
        """The request is answered; another one may have come already."""
        super().on_response_complete()
        self._say_whether_busy()

    def _say_whether_busy(self) -> None:
        if not self.transport.is_closing():  # its number may be another's by now
            waits = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
            self._patience.set_busy(self._number, is_busy=not waits)

    def pause_writing(self) -> None:
        """Begin to wait for the sender to take its answers."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(
            self._patience.answer_timeout_s, self._give_up_answer
        )

    def resume_writing(self) -> None:
        """The sender has taken them."""
        self._stop_answer_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_header_timer()
        self._stop_answer_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        if self.conn.our_state is h11.IDLE:  # else the application counts the request
            self._patience.count(Outcome.MALFORMED)
        super().send_400_response(msg)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(
            self._patience.header_timeout_s, self._give_up_headers
        )

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up_headers(self) -> None:
        self._header_timer = None
        if self.conn.their_state is h11.IDLE:
            if self.conn.trailing_data[0]:  # else nobody asked anything, as a port scan does
                self._patience.count(Outcome.SLOW)
            self.transport.close()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _give_up_answer(self) -> None:
        self._answer_timer = None
        self._patience.count(Outcome.SLOW)
        self.transport.abort()
