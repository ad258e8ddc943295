"""Connections of senders that have paused are read together, and no other waits for that."""

import asyncio
import select
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from bench.sparse_worker import Instruments, Worker
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.ingest.http import gathered_reads
from otel_rl.bridge.ingest.http.app import create_app
from otel_rl.bridge.ingest.http.gathered_reads import GatheredReads
from otel_rl.bridge.ingest.http.gathering_protocol import GatheringProtocol
from otel_rl.bridge.ingest.http.requests.exports import Exports
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from tests.otlp_requests import Journal, intake
from tests.unit.bridge.ingest.http.connections import Connections, Transport, on_a_loop

WORKERS = 12


class Site:
    """Workers whose exports arrive at sockets, and a clock that stands still."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, door: IngestPipeline, stack: ExitStack
    ) -> None:
        app = create_app(door)
        self.exports: Exports = vars(app)["_exports"]
        self._all = Connections(loop, app, door)
        self._second = 0
        self._workers = [
            Worker(number, WORKERS, Instruments(2), time.time_ns()) for number in range(WORKERS)
        ]
        self.peers = list[socket.socket]()
        self.transports = list[Transport]()
        for _ in range(WORKERS):
            own, peer = (stack.enter_context(one) for one in socket.socketpair())
            self.peers.append(peer)
            self.transports.append(self._all.open(own)[1])

    def request(self, worker: int) -> bytes:
        body = self._workers[worker].request(self._second)
        self._second += 1
        head = b"POST /v1/metrics HTTP/1.1\r\ncontent-type: application/x-protobuf\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)

    def send(self, worker: int) -> None:
        self.peers[worker].sendall(self.request(worker))

    def leave(self, worker: int) -> None:
        self.peers[worker].shutdown(socket.SHUT_WR)

    def answers(self) -> int:
        return sum(transport.written.count(b" 200 OK") for transport in self.transports)

    def unread(self) -> int:
        return sum(transport.is_paused for transport in self.transports)

    async def later(self, seconds: float) -> None:
        """Let time go by, until nothing is being answered."""
        await self._all.later(seconds)
        for _ in range(1000):  # threads have their own time
            if not any(protocol._is_answering for protocol, *_ in self._all._read):
                break
            time.sleep(0.0005)  # noqa: ASYNC251  # the loop's clock stands still
            await self._all.passes(2)

    async def is_steady(self) -> None:
        """Let all export for some seconds."""
        for _ in range(8):
            for worker in range(WORKERS):
                self.send(worker)
            for _ in range(5):
                await self.later(0.25)


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        with ExitStack() as stack:
            site = Site(loop, intake(Journal(), Counters()), stack)
            async with site.exports.lifespan(None):
                await body(site)

    on_a_loop(scenario)


def test_requests_of_senders_that_have_paused_are_read_together() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        assert (site.unread(), site.answers()) == (WORKERS, 8 * WORKERS)
        for worker in range(WORKERS):
            site.send(worker)
        await site.later(0.0)
        assert site.answers() == 8 * WORKERS
        await site.later(0.25)
        assert site.answers() == 9 * WORKERS

    run(body)


def test_few_are_read_before_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[int]()
    take = GatheredReads._take_turns

    def noted(reads: GatheredReads, numbers: Sequence[int], now_s: float) -> None:
        before = [*map(reads._unread.get, reads._unread.numbers())]
        take(reads, numbers, now_s)
        taken.append(sum(one is not None and not one.may_take() for one in before))

    async def body(site: Site) -> None:
        await site.is_steady()
        taken.clear()
        for worker in range(WORKERS):
            site.send(worker)
        await site.later(0.25)
        assert site.answers() == 9 * WORKERS

    monkeypatch.setattr(gathered_reads, "_AT_ONCE", 5)
    monkeypatch.setattr(GatheredReads, "_take_turns", noted)
    run(body)
    assert next(n for n in taken if n) == 5


def test_a_sender_that_goes_on_at_once_is_read_at_once() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.send(0)
        await site.later(0.25)
        before = site.answers()
        for sent in range(1, 6):
            site.send(0)
            await site.later(0.01)
            assert site.answers() == before + sent

    run(body)


def test_without_requests_all_are_read_as_they_arrive() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        for _ in range(10):
            await site.later(0.25)
        assert site.unread() == 0
        site.send(3)
        await site.later(0.0)
        await site.later(0.25)
        assert site.answers() == 8 * WORKERS + 1

    run(body)


def test_a_sender_that_has_left_is_noticed() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.send(1)
        site.leave(0)
        await site.later(0.25)
        assert not site.transports[0].is_paused

    run(body)


def test_a_closed_connection_is_not_read() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol, transport, own = site._all._read[0]
        transport.close()
        protocol.connection_lost(None)
        own.close()
        site.send(1)
        await site.later(0.25)
        assert site.answers() == 8 * WORKERS + 1

    run(body)


def test_only_a_connection_that_is_idle_ends() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        timeout_s = site._all._config.timeout_keep_alive
        for _ in range(3 * timeout_s):
            for worker in range(1, WORKERS):
                site.send(worker)
            for _ in range(4):
                await site.later(0.25)
        closed = [transport.is_closed for transport in site.transports]
        assert closed == [True] + [False] * (WORKERS - 1)
        assert site.answers() == 8 * WORKERS + 3 * timeout_s * (WORKERS - 1)

    run(body)


def test_a_request_in_two_pieces_is_read_as_it_arrives() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        whole = site.request(0)
        site.peers[0].sendall(whole[:50])
        site.send(1)
        await site.later(0.5)
        assert not site.transports[0].is_paused
        site.peers[0].sendall(whole[50:])
        await site.later(0.0)
        await site.later(0.25)
        assert site.answers() == 8 * WORKERS + 2

    run(body)


def test_what_is_sent_before_an_answer_waits_for_it() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.peers[0].sendall(site.request(0) + site.request(0))
        await site.later(0.5)
        await site.later(0.25)
        assert site.answers() == 8 * WORKERS + 2

    run(body)


def test_without_epoll_none_is_left_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        assert (site.unread(), site.answers()) == (0, 8 * WORKERS)

    monkeypatch.delattr(select, "epoll")
    run(body)


def test_an_export_within_the_head_of_another_request_is_none() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        site.peers[0].sendall(b"GET /nothing HTTP/1.1\r\nx-head: ")
        await site.later(0.5)
        await site.later(0.25)
        site.send(0)
        await site.later(0.5)
        assert site.answers() == 8 * WORKERS

    run(body)


def test_a_turn_that_was_put_off_takes_nothing_from_who_was_answered_since() -> None:
    async def body(site: Site) -> None:
        errors = list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        await site.is_steady()
        reads, numbers = site._all._reads, [one[0]._number for one in site._all._read]
        site.send(0)
        while site.answers() == 8 * WORKERS:
            await site.later(0.25)
        assert numbers[0] in reads._answered
        for worker in range(WORKERS):
            site.send(worker)
        reads._take_turns(numbers, site._all.now_s)  # as of an earlier pass, which found all ready
        for _ in range(3):
            await site.later(0.25)
        assert (site.answers(), errors) == (9 * WORKERS + 1, [])

    run(body)


def test_a_request_that_arrived_before_the_timeout_is_answered() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        (protocol, transport, _), timeout_s = (
            site._all._read[0],
            site._all._config.timeout_keep_alive,
        )
        assert protocol._answered_s is not None
        ends_s = protocol._answered_s + timeout_s
        while site._all.now_s < ends_s - 0.3:
            for worker in range(1, WORKERS):
                site.send(worker)
            await site.later(0.25)
        before = transport.written.count(b" 200 OK")
        await site.later(ends_s - 0.02 - site._all.now_s)
        assert (transport.is_paused, transport.is_closed) == (True, False)
        site.send(0)
        for seconds in (0.0, 0.03, 0.25, 0.25):
            await site.later(seconds)
        assert transport.written.count(b" 200 OK") == before + 1

    run(body)


def test_a_connection_whose_export_cannot_be_taken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(site: Site) -> None:
        errors = list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        await site.is_steady()

        def fail(*_: object) -> bool:
            raise error

        monkeypatch.setattr(GatheringProtocol, "take", fail)
        site.send(0)
        for _ in range(2):
            await site.later(0.25)
        assert errors == [error]
        assert [transport.is_closed for transport in site.transports] == [True] + [False] * (
            WORKERS - 1
        )

    error = ValueError("broken")
    run(body)


def test_a_connection_whose_export_is_being_stored_is_busy() -> None:
    async def body(site: Site) -> None:
        await site.is_steady()
        protocol = site._all._read[0][0]
        marks = list[bool]()
        protocol._patience = replace(
            protocol._patience, set_busy=lambda _, *, is_busy: marks.append(is_busy)
        )
        protocol.data_received(site.request(0))
        protocol.parse_gathered()
        assert (protocol._is_storing, marks[-1]) == (True, True)
        await site.later(0.0)
        assert marks[-1] is False

    run(body)
