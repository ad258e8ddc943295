"""Exports of many workers are parsed together; no other waits, and nothing that waits is lost."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.ingest.http import gathered_reads
from otel_rl.bridge.ingest.http.gathering_protocol import GatheringProtocol
from tests.otlp_requests import Journal, intake
from tests.unit.bridge.ingest.http.connections import Connections, Transport, on_a_loop

WORKERS = 10
Message = MutableMapping[str, Any]


def export(body: bytes = b"x", path: str = "/v1/metrics") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        len(body),
        body,
    )


class Site:
    """Connections of one server, and a clock that stands still."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bodies = list[bytes]()
        self._all = Connections(loop, self._app, intake(Journal(), Counters()))
        self.connections = [self.connection() for _ in range(WORKERS)]

    def connection(self) -> tuple[GatheringProtocol, Transport]:
        return self._all.open()

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

    async def take(self) -> list[bytes]:
        """Return the bodies that were handled since the last call."""
        await self._all.passes()
        taken, self.bodies = self.bodies, []
        return taken

    async def later(self, seconds: float) -> list[bytes]:
        """Let time go by, and take what was handled."""
        await self._all.later(seconds)
        return await self.take()

    async def is_steady(self) -> None:
        """Let all export for some seconds, until every request was answered."""
        for _ in range(3):
            for protocol, _ in self.connections:
                protocol.data_received(export())
            await self.later(0.25)
            await self.later(0.75)


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        await body(Site(loop))

    on_a_loop(scenario)


def test_exports_of_many_workers_are_parsed_in_one_pass() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        for protocol, _ in site.connections:
            protocol.data_received(export())
            assert await site.take() == []
        assert len(await site.later(0.25)) == WORKERS

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
        assert b"abc" in await site.later(0.25)

    run(body)


def test_a_sender_with_a_backlog_is_answered_at_once() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol, _ = site.connections[0]
        protocol.data_received(export(b"first"))
        assert b"first" in await site.later(0.25)
        for _ in range(5):
            await site.later(0.01)
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
            await site.later(0.3)
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
        asyncio.get_running_loop().call_soon(protocol.connection_lost, None)
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
