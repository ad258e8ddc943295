"""uvicorn's HTTP/1.1 protocol, with bounds on how long a sender may take.

By itself uvicorn waits without limit for headers, and for the sender to read its answer: a few
thousand half-open requests would take every file descriptor of the bridge. The timeout of the body
is in ``body.py``. A gRPC client at the HTTP port gets an answer that names the right port.
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

__all__ = ["BoundedProtocol", "SenderTimeouts"]

# uvicorn logs a warning for every request that is not HTTP. Here they are counted.
_log = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)


# Preface of an HTTP/2 client without prior negotiation: RFC 9113, section 3.4.
_PREFACE = b"PRI * HTTP/2.0\r\n"

# Of a stopping server: for a sender to answer the end of its TLS connection. One that sends nothing
# at the moment does not read it either.
_GOODBYE_S = 0.5


@dataclass(frozen=True, slots=True)
class SenderTimeouts:
    """Timeouts of a connection.

    Attributes:
        header_timeout_s: From the first byte of a request, or from the connection if it is the
            first one, to the end of the headers.
        answer_timeout_s: For the sender to make room for an answer.
        count: Counts a request that ended before it reached the application.
        set_busy: Called with a file descriptor and whether that connection has a complete request.
        on_http2: Counts an HTTP/2 connection, and returns the advice for its sender.
    """

    header_timeout_s: float
    answer_timeout_s: float
    count: Callable[[Outcome], None]
    set_busy: Callable[..., None]
    on_http2: Callable[[], str]


class BoundedProtocol(H11Protocol):
    """Closes connections that are too slow to send headers or to read answers.

    Between requests uvicorn's own keep-alive timeout holds.

    Args:
        config: Passed on.
        server_state: Passed on.
        app_state: Passed on.
        _loop: Passed on.
        patience: The timeouts.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: SenderTimeouts,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _log
        self._patience = patience
        self._header_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._goodbye_timer: asyncio.TimerHandle | None = None
        self._head = b""
        self._number = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        # One transport for both directions, as in uvicorn.
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        self._number = -1 if own is None else own.fileno()
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and check whether they complete the headers."""
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
        """End a request; the next one may have arrived already."""
        super().on_response_complete()
        self._say_whether_busy()

    def _say_whether_busy(self) -> None:
        if not self.transport.is_closing():  # otherwise its descriptor may be reused
            waits = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
            self._patience.set_busy(self._number, is_busy=not waits)

    def pause_writing(self) -> None:
        """Start the timeout of the answer."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(
            self._patience.answer_timeout_s, self._give_up_answer
        )

    def resume_writing(self) -> None:
        """Stop the timeout: the sender has read its answers."""
        self._stop_answer_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        self._stop_header_timer()
        self._stop_answer_timer()
        if self._goodbye_timer is not None:
            self._goodbye_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, after the request that it has, if any."""
        super().shutdown()
        if self.transport.is_closing():
            self._goodbye_timer = self.loop.call_later(_GOODBYE_S, self._give_up_goodbye)

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP."""
        if self.conn.our_state is h11.IDLE:  # otherwise the application counts the request
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
            if self.conn.trailing_data[0]:  # otherwise nothing was sent, as by a port scan
                self._patience.count(Outcome.SLOW)
            self.transport.close()

    def _give_up_goodbye(self) -> None:
        if not self.transport.get_write_buffer_size():  # otherwise an answer is on its way
            self.transport.abort()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _give_up_answer(self) -> None:
        self._answer_timer = None
        self._patience.count(Outcome.SLOW)
        self.transport.abort()
