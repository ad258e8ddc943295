"""uvicorn's HTTP/1.1 protocol, in which the exports of many workers wait for each other."""

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from otel_rl.bridge.ingest.http.gathered_reads import PACED_S, GatheredReads
from otel_rl.bridge.ingest.http.repeating_protocol import RepeatingProtocol
from otel_rl.bridge.ingest.http.requests.exports import PATHS
from otel_rl.bridge.ingest.http.requests.repeated_exports import RepeatedExports
from otel_rl.bridge.ingest.http.timed_protocol import SenderTimeouts
from otel_rl.signals import Signal

__all__ = ["GatheringProtocol"]

_EXPORT: Final = f"POST {PATHS[Signal.METRICS]} ".encode()

_MAX_BYTES: Final = 64 << 10
"""Of a connection that waits: longer requests are parsed as they arrive."""

_LAST_LOOK_S: Final = 0.1
"""For what has arrived on a connection to be read, once that is tried."""


class GatheringProtocol(RepeatingProtocol):
    """Parses an export of metrics a little later than it arrives, if others are expected.

    Only one of a sender that has paused since its last answer. It is parsed before the connection
    ends, for whatever reason.

    Args:
        config: Passed on.
        server_state: Passed on.
        app_state: Passed on.
        _loop: Passed on.
        patience: Passed on.
        reads: What waits, of all connections.
        exports: Passed on.
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
        super().__init__(config, server_state, app_state, _loop, patience=patience, exports=exports)
        self._reads = reads
        self._is_encrypted = False  # so that more may have been read than was received

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out whether the connection is encrypted."""
        super().connection_made(transport)
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None

    def data_received(self, data: bytes) -> None:
        """Gather, recognise or parse bytes."""
        self._reads.was_heard(self._number)
        if self._is_storing or not (self._gathered or self._may_wait(data)):
            super().data_received(data)
            return
        if not self._gathered:
            self._patience.set_busy(self._number, is_busy=True)
        self._gathered += data
        if len(self._gathered) > _MAX_BYTES:
            self.parse_gathered()
        else:
            self._reads.wait(self, len(data))

    def may_take(self) -> bool:
        """Return whether it may be read while it is left unread."""
        return not (self._is_answering or self._gathered or self.transport.is_closing())

    def take(self, data: bytes) -> bool:
        """Begin to store an export. Returns whether it is one that is recognised."""
        return self._store_known(data)

    def give_up(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Look a last time whether something has arrived, before the connection is ended."""
        if self._reads.is_unread(self._number) and self._idle_left_s() <= 0:
            self._reads.let_read(self._number)
            self.timeout_keep_alive_task = self.loop.call_later(
                _LAST_LOOK_S, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def leave_unread(self) -> None:
        """Pause reading."""
        self.transport.pause_reading()

    def read_again(self) -> None:
        """Resume reading, unless that has to wait for something else."""
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def eof_received(self) -> None:
        """Parse what the sender has sent before it ended the connection."""
        self.parse_gathered()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection before its descriptor is closed."""
        self._reads.forget(self._number)
        super().connection_lost(exc)

    def _parse_all(self, data: bytes) -> None:
        self._reads.let_read(self._number)
        super()._parse_all(data)

    def _have_answered(self) -> None:
        """Have the next request read with those of others, if it does not follow at once."""
        if self._reads.is_unread(self._number):
            self.server_state.total_requests += 1
            self._answered_s = self.loop.time()
            self._update_busy()
        else:
            super()._have_answered()
        if self._is_answering or self._unparsed or self.transport.is_closing():
            return
        if self._number >= 0 and not self._is_encrypted:
            self._reads.was_answered(self, self._number, self.loop.time())

    def _may_wait(self, data: bytes) -> bool:
        answered_s = self._answered_s
        if answered_s is None or self._is_answering or not data.startswith(_EXPORT):
            return False
        now_s = self.loop.time()
        return now_s - answered_s >= PACED_S and self._reads.is_worth_it(now_s)
