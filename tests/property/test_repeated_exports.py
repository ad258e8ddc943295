"""An export that is known by the head of the last one has the outcome of one that is parsed."""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from bench.sparse_worker import Instruments, Worker
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.ingest.http.app import create_app
from otel_rl.bridge.ingest.http.requests.exports import Exports
from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.errors import JournalClosed, JournalFull, OtelRLError
from otel_rl.records import Batch, Signal
from tests.slow import examples
from tests.unit.bridge.ingest.http.connections import Connections, on_a_loop

WORKERS = 12
BEGUN_NS = 1_700_000_000_000_000_000
NOW_NS = BEGUN_NS + 10_000_000_000
YEAR_NS = 365 * 86_400_000_000_000

HEADS = (
    b"content-type: application/x-protobuf\r\n",
    b"Content-Type: application/x-protobuf\r\nx-forwarded-for: 10.0.0.1\r\n",
    b"content-type: application/x-protobug\r\n",
    b"content-type: application/json\r\n",
    b"content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n",
    b"content-type: application/x-protobuf\r\nconnection: close\r\n",
    b"content-type: application/x-protobuf\r\nexpect: 100-continue\r\n",
)

ODD = (b"", b"\x0a\x00", b"nonsense", b"\x0a\xff\xff\xff\xff\x0f")


def request(body: bytes, head: bytes, *, is_chunked: bool = False) -> bytes:
    if is_chunked:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        return b"POST /v1/metrics HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n%b" % (
            head,
            framed,
        )
    length = b"content-length: %d\r\n" % len(body)
    return b"POST /v1/metrics HTTP/1.1\r\n%b%b\r\n%b" % (head, length, body)


class Journal:
    """Keeps batches at once, or refuses them."""

    def __init__(self) -> None:
        self.kept: list[Batch] = []
        self.trouble = ""

    def keep(self, batches: Sequence[Batch]) -> None:
        if self.trouble == "full":
            raise JournalFull("no room", hint="later")
        if self.trouble == "closed":
            raise JournalClosed("closed", hint="later")
        self.kept += batches

    def together(
        self, requests: Sequence[Sequence[Batch]]
    ) -> Future[Sequence[JournalFull | None]] | None:
        if self.trouble == "closed":
            raise JournalClosed("closed", hint="later")
        if self.trouble == "threads":
            return None
        done: Future[Sequence[JournalFull | None]] = Future()
        if self.trouble == "ended":
            done.set_exception(SystemExit("the thread ends"))
            return done
        full: list[JournalFull | None] = []
        for batches in requests:
            try:
                self.keep(batches)
                full.append(None)
            except JournalFull as exc:
                full.append(exc)
        done.set_result(full)
        return done


class Site:
    """A bridge's receiver, with or without what waits for others."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_in_flight_bytes: int = 256 << 20
    ) -> None:
        self.journal, self.counters = Journal(), Counters()
        self.door = door = IngestPipeline(
            accept=self.journal.keep,
            accept_together=self.journal.together,
            limits=ReceiveLimits(
                max_concurrent_requests=1,
                max_body_bytes=max_in_flight_bytes // 2,
                max_in_flight_bytes=max_in_flight_bytes,
            ),
            counters=self.counters,
            clock_ns=lambda: NOW_NS,
        )
        self.app, self.asked = create_app(door), 0
        self.exports: Exports = vars(self.app)["_exports"]
        self.connections = Connections(loop, self._counted, door)
        self.all = [self.connections.open() for _ in range(WORKERS)]

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.app(scope, receive, send)

    async def second(self, sent: Sequence[bytes], *, pause_s: float) -> None:
        self.connections.now_s += pause_s
        for (protocol, transport), data in zip(self.all, sent, strict=True):
            if data and not transport.is_closed:
                protocol.data_received(data)
        await self.connections.later(0.25)
        for _ in range(1000):  # threads have their own time
            if not any(protocol._is_answering for protocol, _ in self.all):
                return
            time.sleep(0.0005)  # noqa: ASYNC251  # the loop's clock stands still
            await asyncio.sleep(0)

    def outcome(self) -> object:
        answers = [
            re.sub(rb"date: [^\r]*\r\n", b"", transport.written) for _, transport in self.all
        ]
        kept = Counter((batch.experiment, batch.payload) for batch in self.journal.kept)
        closed = [transport.is_closed for _, transport in self.all]
        return answers, kept, closed, self.counters.snapshot()


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[str, list[bytes]]]:
    """Seconds of all workers, with what the journal makes of them.

    Histograms differ in length.
    """
    kinds = st.sampled_from([Instruments(2), Instruments(2, 1, 1)])
    workers, old_ones = list[Worker](), list[Worker]()
    for number in range(WORKERS):
        kind = draw(kinds)
        workers.append(Worker(number, WORKERS, kind, BEGUN_NS))
        old_ones.append(Worker(number, WORKERS, kind, BEGUN_NS - YEAR_NS))
    plain = st.just((0, False))
    head = st.one_of(plain, plain, st.tuples(st.integers(0, len(HEADS) - 1), st.booleans()))
    seconds = []
    for second in range(draw(st.integers(2, 6))):
        sent = []
        for worker, old_one in zip(workers, old_ones, strict=True):
            bodies = worker.request(second), old_one.request(second)
            body = bodies[draw(st.integers(0, 9)) == 0]
            number, is_chunked = draw(head)
            if draw(st.integers(0, 9)) == 0:
                body = draw(st.sampled_from(ODD))
            whole = request(body, HEADS[number], is_chunked=is_chunked)
            if draw(st.integers(0, 14)) == 0:
                whole += request(body, HEADS[0])  # sent ahead
            sent.append(whole)
        trouble = draw(st.sampled_from(["", "", "", "full", "closed", "threads"]))
        seconds.append((trouble, sent))
    return seconds


@given(conversations())
@settings(max_examples=examples(60), deadline=None)
def test_a_repeated_export_has_the_outcome_of_one_that_is_parsed(
    seconds: list[tuple[str, list[bytes]]],
) -> None:
    parsed = _outcome(seconds, pause_s=0.0, takes=lambda *_: False)
    assert _outcome(seconds, pause_s=1.0) == parsed
    assert _outcome(seconds, pause_s=0.0) == parsed


def _outcome(
    seconds: list[tuple[str, list[bytes]]],
    *,
    pause_s: float,
    takes: Callable[..., bool] | None = None,
) -> object:
    """Return what becomes of requests after a pause, or one right after the other.

    Args:
        seconds: Of all workers.
        pause_s: Between them.
        takes: Instead of what takes repeated exports.
    """
    found: list[object] = []

    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        site = Site(loop)
        if takes is not None:
            site.connections._exports.take = takes  # type: ignore[method-assign]
        async with site.exports.lifespan(None):
            for trouble, sent in seconds:
                site.journal.trouble = trouble
                await site.second(sent, pause_s=pause_s)
        found.append(site.outcome())

    on_a_loop(scenario)
    return found[0]


def ten_seconds(
    max_in_flight_bytes: int = 256 << 20,
    *,
    ends_at: int = 10,
    instruments: Instruments = Instruments(2),  # noqa: B008  # constant
) -> Site:
    """Return a site whose workers have exported for ten seconds; from one on none is stored."""
    workers = [Worker(number, WORKERS, instruments, BEGUN_NS) for number in range(WORKERS)]
    found: list[Site] = []

    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        site = Site(loop, max_in_flight_bytes)
        async with site.exports.lifespan(None):
            for second in range(10):
                site.journal.trouble = "" if second < ends_at else "ended"
                sent = [request(worker.request(second), HEADS[0]) for worker in workers]
                await site.second(sent, pause_s=1.0)
        found.append(site)

    on_a_loop(scenario)
    return found[0]


@pytest.mark.parametrize("instruments", [Instruments(2), Instruments(2, 1, 1)])
def test_repeated_exports_pass_the_application_by(instruments: Instruments) -> None:
    site = ten_seconds(instruments=instruments)
    assert len(site.journal.kept) == 10 * WORKERS
    assert site.asked <= 4 * WORKERS  # until their shapes and heads are known


def test_the_bytes_of_repeated_exports_are_given_back() -> None:
    room = 16 << 10
    with ten_seconds(room).door.hold() as held:
        held.add(room)


def test_what_was_not_stored_is_not_accepted_whatever_ended_the_thread() -> None:
    site = ten_seconds(ends_at=8)
    accepted = sum(transport.written.count(b" 200 OK") for _, transport in site.all)
    refused = sum(transport.written.count(b" 503 ") for _, transport in site.all)
    assert (accepted, refused) == (len(site.journal.kept), 2 * WORKERS)


@pytest.mark.parametrize("behind", [b"", b"x"], ids=["alone", "with another resource"])
def test_what_differs_from_the_last_exports_is_parsed(behind: bytes) -> None:
    """An export of another year, and one with as much as another resource behind its end."""
    worker = Worker(0, 1, Instruments(2), BEGUN_NS)
    old_one = Worker(0, 1, Instruments(2), BEGUN_NS - YEAR_NS)
    found: list[tuple[bytes, int]] = []

    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        site = Site(loop)
        async with site.exports.lifespan(None):
            for second in range(10):
                bodies = worker.request(second), old_one.request(second)
                is_last = second == 9
                body = bodies[is_last and not behind]
                sent = request(body, HEADS[0]) + (body if is_last and behind else b"")
                await site.second([sent, *[b""] * (WORKERS - 1)], pause_s=1.0)
        _, transport = site.all[0]
        answers = transport.written.split(b"HTTP/1.1 ")[1:]
        found.append((answers[-1], len(site.journal.kept)))

    on_a_loop(scenario)
    ((answer, kept),) = found
    if behind:
        assert answer.startswith(b"400 ")
        assert kept == 10
    else:
        assert b"out_of_range" in answer or b"time" in answer
        assert kept == 9


def test_a_body_over_the_bound_is_refused_although_its_head_is_known() -> None:
    small, large = Worker(0, 2, Instruments(9), BEGUN_NS), Worker(1, 2, Instruments(20), BEGUN_NS)
    bound = 1200
    codes: list[bytes] = []

    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        site = Site(loop, 2 * bound)
        async with site.exports.lifespan(None):
            for second in range(6):
                payload = large.request(second)
                with contextlib.suppress(OtelRLError):
                    site.door.take(Signal.METRICS, lambda payload=payload: payload)  # type: ignore[misc]
                body = small.request(second) if second < 5 else payload
                assert (len(body) < bound) == (second < 5)
                sent = request(body, HEADS[0])
                await site.second([sent, *[b""] * (WORKERS - 1)], pause_s=1.0)
        answers = site.all[0][1].written.split(b"HTTP/1.1 ")[1:]
        codes.extend(answer[:3] for answer in answers)

    on_a_loop(scenario)
    assert codes == [b"200"] * 5 + [b"413"]


def test_a_head_in_two_pieces_each_time_is_parsed() -> None:
    worker = Worker(0, 1, Instruments(2), BEGUN_NS)
    codes: list[bytes] = []

    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        site = Site(loop)
        nobody = [b""] * (WORKERS - 1)
        async with site.exports.lifespan(None):
            for second in range(10):
                whole = request(worker.request(second), HEADS[1])
                site.all[0][0].data_received(whole[:60])
                await site.second([whole[60:], *nobody], pause_s=1.0)
        answers = site.all[0][1].written.split(b"HTTP/1.1 ")[1:]
        codes.extend(answer[:3] for answer in answers)

    on_a_loop(scenario)
    assert codes == [b"200"] * 10
