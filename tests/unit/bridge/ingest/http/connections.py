"""Connections of an HTTP server without a network, and a clock that stands still."""

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable

import uvicorn
from uvicorn.server import ServerState

from otel_rl.bridge.ingest.http.gathered_reads import GatheredReads
from otel_rl.bridge.ingest.http.gathering_protocol import GatheringProtocol
from otel_rl.bridge.ingest.http.requests.repeated_exports import RepeatedExports
from otel_rl.bridge.ingest.http.timed_protocol import SenderTimeouts
from otel_rl.bridge.ingest.pipeline import IngestPipeline

__all__ = ["Connections", "Transport", "on_a_loop"]


class Transport(asyncio.Transport):
    """Remembers what is written.

    Args:
        own: What the server reads from, and a peer writes to; None if tests hand over the bytes.
    """

    def __init__(self, own: socket.socket | None = None) -> None:
        super().__init__({"socket": own})
        self.own = own
        self.written = b""
        self.is_closed = self.is_paused = False

    def write(self, data: object) -> None:
        self.written += bytes(data)  # type: ignore[call-overload]

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Connections:
    """Opens connections to an application.

    Args:
        loop: Its clock is taken over.
        app: ASGI application.
        intake: Takes repeated exports.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, app: object, intake: IngestPipeline
    ) -> None:
        self.loop, self.now_s = loop, 1000.0
        loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self._reads, self._exports = GatheredReads(), RepeatedExports(intake)
        self._config = uvicorn.Config(app, log_config=None, interface="asgi3")  # type: ignore[arg-type]
        self._config.load()
        self._state = ServerState()
        self._read = list[tuple[GatheringProtocol, Transport, socket.socket]]()

    def open(self, own: socket.socket | None = None) -> tuple[GatheringProtocol, Transport]:
        protocol = GatheringProtocol(
            self._config,
            self._state,
            {},
            self.loop,
            patience=SenderTimeouts(60, 60, lambda _: None, lambda _, **__: None, str),
            reads=self._reads,
            exports=self._exports,
        )
        transport = Transport(own)
        protocol.connection_made(transport)
        if own is not None:
            self._read.append((protocol, transport, own))
        return protocol, transport

    async def passes(self, n: int = 20) -> None:
        """Let the event loop go round, without time, and read what has arrived."""
        for _ in range(n):
            for protocol, transport, own in self._read:
                if transport.is_paused or transport.is_closed:
                    continue
                if select.select([own], [], [], 0)[0]:
                    data = own.recv(1 << 16)
                    protocol.data_received(data) if data else protocol.eof_received()
            await asyncio.sleep(0)

    async def later(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds
        await self.passes()


def on_a_loop(scenario: Callable[[asyncio.AbstractEventLoop], Awaitable[None]]) -> None:
    """Run a scenario on an event loop of its own."""

    async def whole() -> None:
        await scenario(asyncio.get_running_loop())

    asyncio.run(whole())
