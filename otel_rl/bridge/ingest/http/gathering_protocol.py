"""uvicorn's HTTP/1.1 protocol, in which the exports of many workers wait for each other."""

import asyncio
from functools import lru_cache, partial
from typing import Any, Final

from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from otel_rl.bridge.ingest.http.exports import PATHS
from otel_rl.bridge.ingest.http.gathered_reads import PACED_S, GatheredReads
from otel_rl.bridge.ingest.http.repeated_exports import KNOWN_EXPORT, KnownHead, RepeatedExports
from otel_rl.bridge.ingest.http.timed_protocol import SenderTimeouts, TimedProtocol
from otel_rl.bridge.ingest.security.tokens import Grant
from otel_rl.signals import Signal

__all__ = ["GatheringProtocol"]

_EXPORT: Final = f"POST {PATHS[Signal.METRICS]} ".encode()

_BLANK_LINE: Final = b"\r\n\r\n"

_MAX_BYTES: Final = 64 << 10
"""Of a connection that waits: longer requests are parsed as they arrive."""


class GatheringProtocol(TimedProtocol):
    """Parses an export of metrics a little later than it arrives, if others are expected.

    Only one of a sender that has paused since its last answer. It is parsed before the connection
    ends, for whatever reason. An export that only repeats the last one's head is not parsed.

    Args:
        config: Passed on.
        server_state: Passed on.
        app_state: Passed on.
        _loop: Passed on.
        patience: Passed on.
        reads: What waits, of all connections.
        exports: Takes those that are recognised.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: SenderTimeouts,
        reads: GatheredReads,
        exports: RepeatedExports,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, patience=patience)
        self._reads = reads
        self._gathered = bytearray()
        self._answered_s: float | None = None
        self._exports = exports
        self._known: KnownHead | None = None
        self._is_storing = False  # a repeated export, which is answered later
        self._is_ending = False
        self._is_encrypted = False  # so that more may have been read than was received

    @property
    def _is_answering(self) -> bool:
        return self._is_storing or super()._is_answering

    @property
    def _is_stored(self) -> bool:
        return self._is_storing or super()._is_stored

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out whether the connection is encrypted."""
        super().connection_made(transport)
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None

    def data_received(self, data: bytes) -> None:
        """Gather, recognise or parse bytes."""
        self._reads.was_heard(self._number)
        if self._is_storing:
            self._gathered += data
            self.flow.pause_reading()
            return
        if not self._gathered and not self._may_wait(data):
            if not self._store_known(data):
                self._parse_all(data)
            return
        if not self._gathered:
            self._patience.set_busy(self._number, is_busy=True)
        self._gathered += data
        if len(self._gathered) > _MAX_BYTES:
            self.parse_gathered()
        else:
            self._reads.wait(self, len(data))

    def parse_gathered(self) -> None:
        """Parse what was gathered, if that was not done yet, or recognise it."""
        if not self._gathered or self._is_storing:
            return
        data, self._gathered = bytes(self._gathered), bytearray()
        if not self._store_known(data):
            self._parse_all(data)

    def may_take(self) -> bool:
        """Return whether it may be read while it is left unread."""
        return not (self._is_answering or self._gathered or self.transport.is_closing())

    def take(self, data: bytes) -> bool:
        """Begin to store an export. Returns whether it is one that is recognised."""
        if not self._store_known(data):
            return False
        self._patience.set_busy(self._number, is_busy=True)
        return True

    def _store_known(self, data: bytes) -> bool:
        """Begin to store a repeated export. Returns whether it is one."""
        known = self._known
        payload = None if known is None else known.body(data)
        if known is None or payload is None or self._is_answering:
            return False
        parse = partial(self._parse_all, data)
        self._is_storing = self._exports.take(known, payload, self._send_answer, parse)
        return self._is_storing

    def on_response_complete(self) -> None:
        """End an answer."""
        self._answered_s = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that was idle; not one whose exports were recognised meanwhile."""
        left_s = (self._answered_s or 0.0) + self.timeout_keep_alive - self.loop.time()
        if self._is_answering or self._gathered:
            left_s = self.timeout_keep_alive
        if left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                left_s, self.timeout_keep_alive_handler
            )

    def eof_received(self) -> None:
        """Parse what the sender has sent before it ended the connection."""
        self.parse_gathered()
        super().eof_received()

    def _parse_all(self, data: bytes) -> None:
        """Parse one request or more, and learn the head if it is one that is accepted."""
        self._is_storing = False
        self._reads.let_read(self._number)
        super().data_received(data)
        head = self._head_of(data)
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
        if self._reads.is_unread(self._number):
            self.server_state.total_requests += 1
            self._answered_s = self.loop.time()
            self._update_busy()
        else:
            self.on_response_complete()
            self.parse_gathered()
        if not (self._is_answering or self._unparsed or self.transport.is_closing()):
            self._may_rest()

    def _may_rest(self) -> None:
        """Have the next request read with those of others, if it does not follow at once."""
        if self._number >= 0 and not self._is_encrypted:
            self._reads.was_answered(self, self._number, self.loop.time())

    def leave_unread(self) -> None:
        """Pause reading."""
        self.transport.pause_reading()

    def read_again(self) -> None:
        """Resume reading, unless that has to wait for something else."""
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Parse nothing more: the sender does not hear the answer, and sends it again."""
        self._reads.forget(self._number)
        self._gathered.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, after the request that it has, if any."""
        self.parse_gathered()
        self._is_ending = True
        if not self._is_storing:
            super().shutdown()

    def _may_wait(self, data: bytes) -> bool:
        answered_s = self._answered_s
        if answered_s is None or self._is_answering or not data.startswith(_EXPORT):
            return False
        now_s = self.loop.time()
        return now_s - answered_s >= PACED_S and self._reads.is_worth_it(now_s)


@lru_cache(maxsize=64)
def _head(status_code: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[status_code], *lines, b"\r\n"])
