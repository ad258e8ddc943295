"""uvicorn's HTTP/1.1 protocol, which recognises exports that repeat the head of the last one."""

import asyncio
from functools import lru_cache, partial
from typing import Any, Final

from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from otel_rl.bridge.ingest.http.requests.repeated_exports import (
    KNOWN_EXPORT,
    KnownHead,
    RepeatedExports,
)
from otel_rl.bridge.ingest.http.timed_protocol import SenderTimeouts, TimedProtocol
from otel_rl.bridge.ingest.security.tokens import Grant

__all__ = ["RepeatingProtocol"]

_BLANK_LINE: Final = b"\r\n\r\n"


class RepeatingProtocol(TimedProtocol):
    """Stores an export that repeats the last one's head; it passes parser and application by.

    Args:
        config: Passed on.
        server_state: Passed on.
        app_state: Passed on.
        _loop: Passed on.
        patience: Passed on.
        exports: Takes the exports.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: SenderTimeouts,
        exports: RepeatedExports,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, patience=patience)
        self._exports = exports
        self._known: KnownHead | None = None
        self._is_storing = False  # a repeated export, which is answered later
        self._is_ending = False
        self._answered_s: float | None = None
        self._gathered = bytearray()  # received, and neither recognised nor parsed

    @property
    def _is_answering(self) -> bool:
        return self._is_storing or super()._is_answering

    @property
    def _is_stored(self) -> bool:
        return self._is_storing or super()._is_stored

    def data_received(self, data: bytes) -> None:
        """Recognise or parse bytes; those behind an export that is being stored wait for that."""
        if self._is_storing:
            self._gathered += data
            self.flow.pause_reading()
        elif not self._store_known(data):
            self._parse_all(data)

    def parse_gathered(self) -> None:
        """Recognise or parse what was gathered, if that was not done yet."""
        if not self._gathered or self._is_storing:
            return
        data, self._gathered = bytes(self._gathered), bytearray()
        if not self._store_known(data):
            self._parse_all(data)

    def _store_known(self, data: bytes) -> bool:
        """Begin to store a repeated export. Returns whether it is one."""
        known = self._known
        if known is None or self._is_answering or self._is_within_request or self._unparsed:
            return False  # it may be a part of another request
        payload = known.body(data)
        if payload is None:
            return False
        parse = partial(self._parse_all, data)
        self._is_storing = self._exports.take(known, payload, self._send_answer, parse)
        if self._is_storing:
            self._update_busy()
        return self._is_storing

    def _parse_all(self, data: bytes) -> None:
        """Parse one request or more, and learn the head if it is one that is accepted."""
        self._is_storing = False
        is_begun = self._is_within_request
        super().data_received(data)
        head = None if is_begun else self._head_of(data)
        if head is not None:
            learn = partial(self._learn, head)
            self.cycle.scope["state"][KNOWN_EXPORT] = learn

    def _head_of(self, data: bytes) -> bytes | None:
        """Return the head of a request that was parsed; None if it is not plain and the only one.

        It is called before the application has read the body.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.more_body or not cycle.keep_alive or self.pipeline:
            return None
        if self._unparsed or self._pending_bytes or not self._is_in_head:
            return None
        head = data[: data.find(_BLANK_LINE) + len(_BLANK_LINE)]
        is_plain = not cycle.waiting_for_100_continue and data[len(head) :] == cycle.body
        return head if is_plain else None

    def _learn(self, head: bytes, grant: Grant | None) -> None:
        self._known = KnownHead(head, grant)

    def _send_answer(self, response: Response) -> None:
        """Send the answer to a repeated export, as uvicorn does."""
        self._is_storing = False
        if self.transport.is_closing():
            return
        headers = [*self.server_state.default_headers, *response.raw_headers]
        if self._is_ending:
            headers.append((b"connection", b"close"))
        self.transport.write(_head(response.status_code, tuple(headers)) + bytes(response.body))
        if self._is_ending:
            super().shutdown()
        self._have_answered()

    def _have_answered(self) -> None:
        """Go on with what has arrived behind a repeated export."""
        self.on_response_complete()
        self.parse_gathered()

    def on_response_complete(self) -> None:
        """End an answer."""
        self._answered_s = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that was idle; not one whose exports were recognised meanwhile."""
        left_s = self._idle_left_s()
        if left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                left_s, self.timeout_keep_alive_handler
            )

    def _idle_left_s(self) -> float:
        """Return for how long the connection may still be idle."""
        if self._is_answering or self._gathered:
            return self.timeout_keep_alive
        return (self._answered_s or 0.0) + self.timeout_keep_alive - self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Parse nothing more: the sender does not hear the answer, and sends it again."""
        self._gathered.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, after the request that it has, if any."""
        self.parse_gathered()
        self._is_ending = True
        if not self._is_storing:
            super().shutdown()


@lru_cache(maxsize=64)
def _head(status_code: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[status_code], *lines, b"\r\n"])
