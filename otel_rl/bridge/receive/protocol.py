"""uvicorn's HTTP/1.1 protocol on httptools, with bounds on a sender's data and time.

By itself the parser bounds neither headers nor trailers, nor the requests that a sender sends
ahead; and uvicorn waits without limit for headers, and for the sender to read its answer, so a few
thousand half-open requests would take every file descriptor of the bridge. Between requests
uvicorn's own keep-alive timeout holds; ``body.py`` has the timeout of a body. A gRPC client at the
HTTP port gets an answer that names the right port.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from otel_rl.bridge.counters import Outcome
from otel_rl.bridge.receive.limits import MAX_HEAD_BYTES

# uvicorn logs a warning for every request that is not HTTP. Here they are counted.
_log = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)

# Preface of an HTTP/2 client without prior negotiation: RFC 9113, section 3.4.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n"

# Parsed at a time: a request that waits for the answer of the one before takes more memory than its
# bytes, so what was sent behind it is parsed later.
_SLICE_BYTES: Final = 8 << 10

_INVALID: Final = "Invalid HTTP request received."

# Of a stopping server: for a sender to answer the end of its TLS connection. One that sends nothing
# at the moment does not read it either.
_CLOSING_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class SenderBounds:
    """Timeouts of every connection of a server, and functions that are called at events.

    Attributes:
        header_timeout_s: Seconds from the first byte of a request, or from the connection for the
            first request, to the end of the headers.
        answer_timeout_s: Seconds for the sender to make room for an answer.
        count: Counts a request that ended before it reached the application.
        set_busy: Called with a file descriptor and whether that connection has a complete request.
        on_http2: Counts an HTTP/2 connection, and returns the advice for its sender.
    """

    header_timeout_s: float
    answer_timeout_s: float
    count: Callable[[Outcome], None]
    set_busy: Callable[..., None]
    on_http2: Callable[[], str]


class BoundedProtocol(HttpToolsProtocol):
    """Parses a bounded part of a sender's data, and the rest when its answer is due.

    It closes connections that are too slow to send headers or to read answers.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: SenderBounds,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _log
        self._bounds = bounds
        self._headers = _Deadline(self.loop, bounds.header_timeout_s, self._give_up_headers)
        self._answer = _Deadline(self.loop, bounds.answer_timeout_s, self._give_up_answer)
        self._closing = _Deadline(self.loop, _CLOSING_S, self._give_up_closing)
        self._descriptor = -1
        # The first bytes, as long as they may be the preface; then None.
        self._head: bytes | None = b""
        # Received since the parser last came to the end of a head, or to a piece of a body.
        self._pending_bytes = 0
        self._is_in_head = True
        # Received behind a request that waits for its turn.
        self._unparsed: deque[bytes] = deque()
        self._is_broken = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request.

        Reading goes on only when nothing waits to be parsed.
        """
        # One transport for both directions, as in uvicorn.
        super().connection_made(transport)
        self.flow = _Flow(transport, lambda: not (self.pipeline or self._unparsed))
        own = transport.get_extra_info("socket")
        self._descriptor = -1 if own is None else own.fileno()
        self._headers.start()

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless they are the preface of HTTP/2."""
        if self.transport.is_closing() or self._is_broken:
            return
        if self._head is not None:
            self._head += data
            if self._head.startswith(_PREFACE):
                super().send_400_response(self._bounds.on_http2())
                return
            if _PREFACE.startswith(self._head):
                self._pending_bytes = len(self._head)
                return
            data, self._head = self._head, None
        self._unset_keepalive_if_required()
        self._unparsed.extend(_slices(data))
        self._parse()
        if self._is_answering:
            self._headers.stop()
        elif not self._headers.is_running:
            self._headers.start()
        self._update_busy()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer.start()

    def resume_writing(self) -> None:
        self._answer.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._headers, self._answer, self._closing):
            deadline.stop()
        super().connection_lost(exc)

    # What uvicorn calls

    def shutdown(self) -> None:
        """End the connection after the request in progress."""
        super().shutdown()
        if self.transport.is_closing():
            self._closing.start()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        self._parse()
        if self._is_broken and not self._is_answering:
            self.send_400_response(_INVALID)
        self.flow.resume_reading()
        self._update_busy()

    def send_400_response(self, msg: str) -> None:
        if not self._is_answering:  # otherwise the application counts the request
            self._bounds.count(Outcome.MALFORMED)
        super().send_400_response(msg)

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are ignored, because the request is being handled already."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is parsed again without the offer
        self._pending_bytes, self._is_in_head = 0, False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._pending_bytes, self._is_in_head = 0, True
        super().on_message_complete()

    def _parse(self) -> None:
        """Parse the data that has arrived, up to a request that must wait for its turn."""
        while self._unparsed and not self.pipeline and not self._is_broken:
            data = self._unparsed.popleft()
            self._pending_bytes += len(data)
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.parser.get_method() == b"CONNECT":
                    self._break_off()
                    continue
                head = _without_offer(self.parser, self.url, self.headers)
                self._unparsed.appendleft(head + data[offer.args[0] :])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._pending_bytes = 0
            except httptools.HttpParserError:
                self._break_off()
        if self._unparsed:
            self.flow.pause_reading()
        elif self._pending_bytes > MAX_HEAD_BYTES and not self._is_broken:
            self._break_off()

    def _break_off(self) -> None:
        """Refuse data that cannot be parsed; earlier requests are answered first."""
        self._is_broken = True
        self._unparsed.clear()
        if self._is_stored:
            self.flow.pause_reading()
        else:
            self.send_400_response(_INVALID)

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete)

    @property
    def _is_stored(self) -> bool:
        if self.pipeline:
            return True
        return self._is_answering and not self.cycle.more_body

    def _update_busy(self) -> None:
        if not self.transport.is_closing():  # otherwise its descriptor may be reused
            self._bounds.set_busy(self._descriptor, is_busy=self._is_stored)

    def _give_up_headers(self) -> None:
        if not self._is_answering:
            if self._pending_bytes:  # otherwise nothing was sent, as by a port scan
                self._bounds.count(Outcome.SLOW)
            self.transport.close()

    def _give_up_answer(self) -> None:
        self._bounds.count(Outcome.SLOW)
        self.transport.abort()

    def _give_up_closing(self) -> None:
        if not self.transport.get_write_buffer_size():  # otherwise an answer is on its way
            self.transport.abort()


class _Deadline:
    """Calls ``give_up`` after ``after_s`` on the loop of a connection, unless stopped before."""

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


class _Flow(FlowControl):
    """Flow control that resumes reading only while ``may_read`` allows it."""

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._may_read = may_read

    def resume_reading(self) -> None:
        if self._may_read():
            super().resume_reading()


def _slices(data: bytes) -> list[bytes]:
    if len(data) <= _SLICE_BYTES:
        return [data]
    return [data[at : at + _SLICE_BYTES] for at in range(0, len(data), _SLICE_BYTES)]


def _without_offer(
    parser: httptools.HttpRequestParser, url: bytes, headers: list[tuple[bytes, bytes]]
) -> bytes:
    """Return a request's head without its offer of another protocol, for parsing it again.

    A server may ignore the offer (RFC 9110, section 7.8). The parser takes whatever follows the
    head for the other protocol, even if it is a body.
    """
    version = parser.get_http_version().encode()
    head = [b"%b %b HTTP/%b" % (parser.get_method(), url, version)]
    head += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join(head) + b"\r\n\r\n"
