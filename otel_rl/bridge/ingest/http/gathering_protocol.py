"""uvicorn's HTTP/1.1 protocol, in which the exports of many workers wait for each other."""

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from otel_rl.bridge.ingest.http.app import PATHS
from otel_rl.bridge.ingest.http.gathered_reads import PACED_S, GatheredReads
from otel_rl.bridge.ingest.http.timed_protocol import SenderTimeouts, TimedProtocol
from otel_rl.signals import Signal

__all__ = ["GatheringProtocol"]

_EXPORT: Final = f"POST {PATHS[Signal.METRICS]} ".encode()

_MAX_BYTES: Final = 64 << 10
"""Of a connection that waits: longer requests are parsed as they arrive."""


class GatheringProtocol(TimedProtocol):
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
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, patience=patience)
        self._reads = reads
        self._gathered = bytearray()
        self._answered_s: float | None = None

    def data_received(self, data: bytes) -> None:
        """Gather or parse bytes."""
        if not self._gathered and not self._may_wait(data):
            super().data_received(data)
            return
        if not self._gathered:
            self._unset_keepalive_if_required()
            self._patience.set_busy(self._number, is_busy=True)
        self._gathered += data
        if len(self._gathered) > _MAX_BYTES:
            self.parse_gathered()
        else:
            self._reads.wait(self, len(data))

    def parse_gathered(self) -> None:
        """Parse what was gathered, if that was not done yet."""
        if self._gathered:
            data, self._gathered = bytes(self._gathered), bytearray()
            super().data_received(data)

    def on_response_complete(self) -> None:
        """End an answer."""
        self._answered_s = self.loop.time()
        super().on_response_complete()

    def eof_received(self) -> None:
        """Parse what the sender has sent before it ended the connection."""
        self.parse_gathered()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Parse nothing more: the sender does not hear the answer, and sends it again."""
        self._gathered.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection, after the request that it has, if any."""
        self.parse_gathered()
        super().shutdown()

    def _may_wait(self, data: bytes) -> bool:
        answered_s = self._answered_s
        if answered_s is None or self._is_answering or not data.startswith(_EXPORT):
            return False
        now_s = self.loop.time()
        return now_s - answered_s >= PACED_S and self._reads.is_worth_it(now_s)
