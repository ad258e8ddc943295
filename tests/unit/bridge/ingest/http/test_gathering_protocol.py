"""Exports of many workers are parsed together; no other waits, and nothing that waits is lost."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from otel_rl.bridge.ingest.http import gathered_reads
from otel_rl.bridge.ingest.http.gathered_reads import GatheredReads
from otel_rl.bridge.ingest.http.gathering_protocol import GatheringProtocol
from otel_rl.bridge.ingest.http.timed_protocol import SenderTimeouts

WORKERS = 10
Message = MutableMapping[str, Any]


def export(body: bytes = b"x", path: str = "/v1/metrics") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        len(body),
        body,
    )


class Transport(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: object) -> None:
        self.written += bytes(data)  # type: ignore[call-overload]

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Site:
    """Connections of one server, and a clock that stands still."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.now_s = loop, 1000.0
        loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self.reads, self.bodies = GatheredReads(), list[bytes]()
        self.config = uvicorn.Config(self._app, log_config=None, interface="asgi3")
        self.config.load()
        self.connections = [self.connection() for _ in range(WORKERS)]

    def connection(self) -> tuple[GatheringProtocol, Transport]:
        patience = SenderTimeouts(60, 60, lambda _: None, lambda _, **__: None, str)
        protocol = GatheringProtocol(
            self.config, ServerState(), {}, self.loop, patience=patience, reads=self.reads
        )
        transport = Transport()
        protocol.connection_made(transport)
        return protocol, transport

    async def _app(
        self,
        _scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def passes(self, n: int = 10) -> None:
        for _ in range(n):
            await asyncio.sleep(0)

    async def take(self) -> list[bytes]:
        """Return the bodies that were handled since the last call."""
        await self.passes()
        taken, self.bodies = self.bodies, []
        return taken

    async def second(self, *, but: int = 0) -> None:
        """Let a second go by, and all workers but some export."""
        self.now_s += 1
        for protocol, _ in self.connections[but:]:
            protocol.data_received(export())
        await self.passes()

    async def is_steady(self) -> None:
        """All have exported for some seconds, and every request was answered."""
        for _ in range(3):
            await self.second()
            self.now_s += 0.2
            await self.passes()
        await self.take()
        self.now_s += 1


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    async def whole() -> None:
        await body(Site(asyncio.get_running_loop()))

    asyncio.run(whole())


def test_exports_of_many_workers_are_parsed_in_one_pass() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        for protocol, _ in site.connections:
            protocol.data_received(export())
            assert await site.take() == []
        site.now_s += 0.2
        assert len(await site.take()) == WORKERS

    run(body)


def test_a_request_that_comes_in_pieces_is_whole() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol, _ = site.connections[0]
        whole = export(b"abc")
        for start in range(0, len(whole), 20):
            protocol.data_received(whole[start : start + 20])
        for protocol, _ in site.connections[1:]:
            protocol.data_received(export())
        site.now_s += 0.2
        assert b"abc" in await site.take()

    run(body)


def test_a_sender_with_a_backlog_is_answered_at_once() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol, _ = site.connections[0]
        protocol.data_received(export(b"first"))
        site.now_s += 0.2
        assert b"first" in await site.take()
        for _ in range(5):
            site.now_s += 0.01
            protocol.data_received(export(b"next"))
            assert await site.take() == [b"next"]

    run(body)


def test_the_first_request_of_a_connection_is_answered_at_once() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.connection()[0].data_received(export(b"new"))
        assert await site.take() == [b"new"]

    run(body)


def test_few_workers_do_not_wait_for_each_other() -> None:
    async def body(site: Site) -> None:
        protocol, _ = site.connections[0]
        for _ in range(30):
            site.now_s += 0.3
            protocol.data_received(export(b"few"))
            assert await site.take() == [b"few"]

    run(body)


def test_what_is_no_export_of_metrics_is_answered_at_once() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.connections[0][0].data_received(export(b"page", "/v1/traces"))
        assert await site.take() == [b"page"]

    run(body)


def test_a_long_request_does_not_wait() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.connections[0][0].data_received(export(b"y" * (65 << 10)))
        assert len(await site.take()) == 1

    run(body)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.connections[0][0].data_received(export(b"y" * 500))
        assert await site.take() == []
        site.connections[1][0].data_received(export(b"y" * 500))
        assert len(await site.take()) == 2

    monkeypatch.setattr(gathered_reads, "_MAX_BYTES", 1000)
    run(body)


def test_what_was_sent_before_the_end_of_a_connection_is_handled() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol, transport = site.connections[0]
        protocol.data_received(export(b"last"))
        protocol.eof_received()
        transport.close()
        site.loop.call_soon(protocol.connection_lost, None)
        assert await site.take() == [b"last"]

    run(body)


def test_a_stopping_server_answers_what_waits() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol, transport = site.connections[0]
        before = transport.written
        protocol.data_received(export(b"last"))
        protocol.shutdown()
        assert await site.take() == [b"last"]
        assert transport.written.count(b"HTTP/1.1 200") == before.count(b"HTTP/1.1 200") + 1
        assert transport.is_closed

    run(body)
