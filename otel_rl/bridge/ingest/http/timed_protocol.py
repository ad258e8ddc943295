"""uvicorn's HTTP/1.1 protocol, with bounds on how long a sender may take.

By itself uvicorn waits without limit for headers, and for the sender to read its answer: a few
thousand half-open requests would take every file descriptor of the bridge. The timeout of the body
is in ``body.py``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from otel_rl.bridge.counters import Outcome
from otel_rl.bridge.ingest.http.uvicorn_protocol import BoundedProtocol

__all__ = ["SenderTimeouts", "TimedProtocol"]

# Of a stopping server: for a sender to answer the end of its TLS connection. One that sends nothing
# at the moment does not read it either.
_CLOSING_S = 0.5


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


class TimedProtocol(BoundedProtocol):
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
        super().__init__(
            config,
            server_state,
            app_state,
            _loop,
            count=patience.count,
            on_http2=patience.on_http2,
        )
        self._patience = patience
        self._headers = _Deadline(self.loop, patience.header_timeout_s, self._give_up_headers)
        self._answer = _Deadline(self.loop, patience.answer_timeout_s, self._give_up_answer)
        self._closing = _Deadline(self.loop, _CLOSING_S, self._give_up_closing)
        self._number = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        self._number = -1 if own is None else own.fileno()
        self._headers.start()

    def on_response_complete(self) -> None:
        """End an answer, and record whether the next request has arrived already."""
        super().on_response_complete()
        self._update_busy()

    def pause_writing(self) -> None:
        """Start the timeout of the answer."""
        super().pause_writing()
        self._answer.start()

    def resume_writing(self) -> None:
        """Stop the timeout: the sender has read its answers."""
        self._answer.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        for deadline in (self._headers, self._answer, self._closing):
            deadline.stop()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, after the request that it has, if any."""
        super().shutdown()
        if self.transport.is_closing():
            self._closing.start()

    def _have_parsed(self) -> None:
        """Check whether the headers are complete."""
        if self._is_answering:
            self._headers.stop()
        elif not self._headers.is_running:
            self._headers.start()
        self._update_busy()

    def _update_busy(self) -> None:
        if not self.transport.is_closing():  # otherwise its descriptor may be reused
            self._patience.set_busy(self._number, is_busy=self._is_stored)

    def _give_up_headers(self) -> None:
        if not self._is_answering:
            if self._pending_bytes:  # otherwise nothing was sent, as by a port scan
                self._patience.count(Outcome.SLOW)
            self.transport.close()

    def _give_up_answer(self) -> None:
        self._patience.count(Outcome.SLOW)
        self.transport.abort()

    def _give_up_closing(self) -> None:
        if not self.transport.get_write_buffer_size():  # otherwise an answer is on its way
            self.transport.abort()


class _Deadline:
    """Calls back after a while, unless it is stopped before.

    Args:
        loop: Of the connection.
        after_s: How long that is.
        give_up: The callback.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, after_s: float, give_up: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._after_s = after_s
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def start(self) -> None:
        self._timer = self._loop.call_later(self._after_s, self._is_over)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        self._give_up()
