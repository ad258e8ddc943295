"""Ended runs leave the journal; what comes late for one is neither doubled nor lost unseen."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from otel_rl.bridge.counters import Counter, Counters, SampleDrop
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Connection, Journal
from otel_rl.bridge.journal.leases import FREE
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.reader import overview, removed_runs
from otel_rl.bridge.journal.retention import EVERY_RUN, Removed, Retention
from otel_rl.bridge.journal.runs import Commit, RunStore, SavedRun
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.scheduler import Pace, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, Description, ExperimentKey, ExperimentStatus, Row, Signal
from otel_rl.run_id import run_id
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer
from tests.support.slow import examples
from tests.support.stores import Store, runs_of
from tests.support.waiting import wait_until

S = 1_000_000_000
HOUR = 3_600 * S
DAY = 24 * HOUR
T0 = 1_700_000_000 * S
TRACKER = "jsonl"
A, B = ExperimentKey("a"), ExperimentKey("b")
ENDED = Description(status=ExperimentStatus.COMPLETE)

TABLES = (
    *("runs", "states", "descriptions", "log", "rows"),
    *("deliveries", "archive"),
)


class Bench:
    """A journal with runs that end, and a clock that tests move by hand."""

    def __init__(self, journal: Journal) -> None:
        self.now_ns = T0
        self.journal = journal
        self.spool = Spool(journal)
        self.run_store = RunStore(journal, clock_ns=lambda: self.now_ns)

    def end(
        self, *keys: ExperimentKey, history: int = 1_000, is_open: bool = False, values: int = 0
    ) -> None:
        """Runs of a row each, that the tracker has."""
        self.run_store.commit(
            [
                Commit(
                    key,
                    [Row(0, 0, self.now_ns, {"x": 1.0})],
                    1,
                    key.experiment.encode(),
                    is_open=is_open,
                    added={
                        Log.DEDUP: (self.now_ns, b"dedup"),
                        Log.SPANS: (self.now_ns, b"spans"),
                        Log.KEYS: (0, b"keys"),
                        Log.HISTORY: (self.now_ns, bytes(history)),
                    },
                    description=ENDED,
                    archive=[(values, b"values")],
                )
                for key in keys
            ]
        )
        self.journal.write(
            lambda connection: connection.executemany(
                "INSERT INTO deliveries (run_id, tracker, next_row, finished_row)"
                " VALUES (?, ?, 1, 1)",
                [(run_id(key.experiment, key.trial), TRACKER) for key in keys],
            )
        )

    def remove(
        self,
        *,
        share: int = 1 << 40,
        days: float = 30,
        tenant: Callable[[ExperimentKey], str] = lambda _: "",
        busy: Sequence[ExperimentKey] = (),
        free: str = EVERY_RUN,
    ) -> Removed:
        return Retention(
            self.journal,
            trackers=[TRACKER],
            keep_ns=int(days * DAY),
            share_of=lambda key: (tenant(key), share),
            late_ns=600 * S,
            busy=lambda: busy,
            free=free,
        ).turn(self.now_ns)

    def count(self, table: str) -> int:
        with self.journal.read() as connection:
            return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store.open())


def measured(key: ExperimentKey, step: int, time_ns: int) -> Batch:
    one = point(float(step), time_ns)
    one.attributes.extend(key_values({"rl.loop.iteration": step}))
    resource = {"rl.experiment.name": key.experiment, "rl.worker.role": "trainer"}
    request = metrics_request(gauge(one), resource=resource)
    return Batch(key, Signal.METRICS, request.SerializeToString(), time_ns)


def test_a_run_that_ended_long_ago_goes_with_all_that_it_has_left(bench: Bench) -> None:
    bench.end(A, values=7)
    bench.now_ns += 10 * DAY
    bench.end(B)
    bench.now_ns += 20 * DAY + S
    assert bench.remove() == Removed(too_old=[A], unarchived=7)
    assert runs_of(bench.journal) == [B]
    assert {table: bench.count(table) for table in TABLES} == dict.fromkeys(TABLES, 1) | {"log": 4}
    assert bench.remove() == Removed()


def test_what_has_not_ended_stays_however_old_it_is(bench: Bench) -> None:
    waits, opened, undelivered, busy = (ExperimentKey(f"{n}") for n in range(4))
    bench.end(waits, busy)
    bench.end(opened, is_open=True)
    bench.run_store.commit([Commit(undelivered, [Row(0, 0, T0, {"x": 1.0})], 1, b"state")])
    bench.spool.append([measured(waits, 1, T0)])
    bench.now_ns += 400 * DAY
    assert bench.remove(share=0, busy=[busy]) == Removed()
    assert len(runs_of(bench.journal)) == 4


def test_of_runs_that_are_more_than_their_share_the_oldest_go_first(bench: Bench) -> None:
    keys = [ExperimentKey(f"run-{n}") for n in range(6)]
    for key in keys:
        bench.now_ns += S
        bench.end(key, history=100_000)
    bench.now_ns += 2 * HOUR
    assert bench.remove(share=350_000) == Removed(over_share=keys[:3])
    assert runs_of(bench.journal) == keys[3:]


def test_a_run_that_has_just_ended_stays(bench: Bench) -> None:
    bench.end(A, history=100_000)
    bench.now_ns += HOUR // 2
    assert bench.remove(share=0) == Removed()


def test_ended_runs_of_one_tenant_push_out_none_of_another(bench: Bench) -> None:
    many = [ExperimentKey(f"many-{n}") for n in range(5)]
    bench.end(A, history=100_000)
    bench.now_ns += S
    bench.end(*many, history=100_000)
    bench.now_ns += 2 * HOUR
    removed = bench.remove(share=150_000, tenant=lambda key: key.experiment[0])
    assert sorted(removed.over_share) == many[:4]


def test_a_long_history_goes_as_well(bench: Bench) -> None:
    bench.end(A)
    for n in range(450):
        bench.run_store.commit([Commit(A, [], 1, b"state", added={Log.HISTORY: (T0 + n, b"h")})])
    bench.now_ns += 31 * DAY
    assert bench.remove() == Removed(too_old=[A])
    assert bench.count("log") == 0


def test_a_removed_run_is_gone_for_readers_and_has_nothing_of_its_life_before(
    store: Store,
) -> None:
    bench = Bench(store.open())
    bench.end(A, history=1 << 20)
    bench.now_ns += 31 * DAY
    assert bench.remove() == Removed(too_old=[A])
    assert {table: bench.count(table) for table in TABLES} == dict.fromkeys(TABLES, 0)
    assert not overview(bench.journal)
    assert A in removed_runs(bench.journal)
    assert bench.run_store.saved(A) == SavedRun(None, 0)
    bench.spool.append([measured(A, 1, bench.now_ns)])
    saved = bench.run_store.saved(A)
    assert (saved.next_row, saved.logs) == (1, {})
    bench.run_store.commit([Commit(A, [Row(1, 1, T0, {"x": 1.0})], 2, b"new", archive=[(1, b"v")])])
    assert bench.remove() == Removed()
    assert [row.number for row in bench.run_store.rows(A, start=0, limit=9)] == [1]
    used = bench.spool.in_use()[A]
    assert 0 < used.made < 1_000, "what was removed is not counted"


def test_what_is_appended_to_a_run_and_what_removes_it_never_wait_for_each_other(
    postgres: PostgresServer,
) -> None:
    journal = PostgresJournal(postgres.new_url())
    begun = list[str]()
    write = journal.write

    def counted(name: str, function: Callable[[Connection], Any]) -> Any:
        def run(connection: Connection) -> Any:
            begun.append(name)
            return function(connection)

        return write(run)

    def waiting(number: int) -> bool:
        found = postgres.execute(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        return found == [(number,)]

    try:
        bench = Bench(journal)
        with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(3) as threads:
            patched.setattr(type(journal), "shards", 1)
            bench.spool.append([measured(A, 1, T0)])
            (first,) = bench.spool.read(A, max_bytes=1)
            bench.end(A)
            bench.run_store.commit([Commit(A, [], 1, b"state", taken=[first.offset])])
            bench.now_ns += 31 * DAY
            held, release = threading.Event(), threading.Event()

            def hold(connection: Connection) -> None:
                connection.execute("SELECT bytes FROM waiting FOR UPDATE").fetchall()
                held.set()
                release.wait(60)

            holding = threads.submit(write, hold)
            assert held.wait(60)
            patched.setattr(journal, "write", partial(counted, "append"))
            appending = threads.submit(bench.spool.append, [measured(A, 2, bench.now_ns)])
            wait_until(lambda: waiting(1), "the append waits", timeout_s=60)
            patched.setattr(journal, "write", partial(counted, "remove"))
            removing = threads.submit(bench.remove)
            wait_until(lambda: waiting(2), "the removal waits", timeout_s=60)
            release.set()
            holding.result(60)
            appending.result(60)
            assert removing.result(60) == Removed(), "it has got a batch meanwhile"
        assert sorted(begun) == ["append", "remove"], "a transaction lost and was run again"
        assert len(bench.spool.read(A, max_bytes=1)) == 1
    finally:
        journal.close()


def test_what_comes_late_for_a_removed_run_is_counted_and_what_is_new_goes_on(
    bench: Bench,
) -> None:
    counters = Counters()

    def drained(now_ns: int) -> None:
        drain = Scheduler(
            bench.spool,
            bench.run_store,
            AlignSettings(start_wait_s=0),
            counters,
            pace=Pace(clock_s=lambda: 0.0),
        )
        for seconds in (0, 1_000):  # by then nobody is waited for
            while drain.round(now_ns + seconds * S):
                pass

    bench.spool.append([measured(A, step, T0 + step * S) for step in range(3)])
    drained(T0 + 3 * S)
    made = bench.run_store.next_row(A)
    DeliveryStore(bench.journal, TRACKER).confirmed(A, made)
    DeliveryStore(bench.journal, TRACKER).finish(A, made)
    bench.now_ns += 31 * DAY
    assert bench.remove() == Removed(too_old=[A])
    bench.spool.append([measured(A, 2, T0 + 2 * S), measured(A, 7, bench.now_ns)])
    assert bench.run_store.next_row(A) == made
    drained(bench.now_ns + S)
    rows = bench.run_store.rows(A, start=0, limit=100)
    assert rows[0].number == made, "rows go on where the tracker's run is"
    assert [row.step for row in rows if "trainer/loss" in row.values] == [7]
    assert counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.RUN_REMOVED) == 1
    # It is still known after what follows, and after the next removal.
    bench.spool.append([measured(A, 2, T0 + 2 * S)])
    drained(bench.now_ns + S)
    assert counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.RUN_REMOVED) == 2


def test_a_run_to_which_a_batch_is_added_is_not_removed(store: Store) -> None:
    bench = Bench(store.open())
    bench.end(A)
    bench.now_ns += 31 * DAY
    begun, removed = threading.Event(), list[Removed]()

    def remove() -> None:
        assert begun.wait(60)
        removed.append(bench.remove())

    thread = threading.Thread(target=remove)
    insert = Spool._insert

    def slow(spool: Spool, connection: Connection, batches: Sequence[Batch], shard: int) -> None:
        insert(spool, connection, batches, shard)
        begun.set()
        thread.join(0.5)  # it waits for this transaction, or comes after it

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Spool, "_insert", slow)
        thread.start()
        bench.spool.append([measured(A, 1, bench.now_ns)])
    thread.join(60)
    assert removed == [Removed()]
    assert len(bench.spool.read(A, max_bytes=1)) == 1
    assert bench.run_store.next_row(A) == 1


def _change(connection: Connection, *, expires_ns: int) -> None:
    connection.execute("UPDATE runs SET owner = 'other', expires_ns = ?", (expires_ns,))


def test_a_run_of_another_bridge_stays_until_its_lease_is_over(postgres: PostgresServer) -> None:
    journal = PostgresJournal(postgres.new_url())
    try:
        bench = Bench(journal)
        bench.end(A)
        bench.now_ns += 31 * DAY
        for expires_ns, removed in ((2**62, Removed()), (0, Removed(too_old=[A]))):
            journal.write(partial(_change, expires_ns=expires_ns))
            assert bench.remove(free=FREE) == removed
    finally:
        journal.close()


@pytest.mark.slow
def test_ten_thousand_small_runs_leave_a_journal_as_small_as_a_few_do(store: Store) -> None:
    bench = Bench(store.open())
    # A database is asked over a socket: fewer of them show the same.
    at_once = examples(500 if isinstance(bench.journal, SqliteJournal) else 50)
    sizes, runs = [], []
    for first in range(0, 20 * at_once, at_once):
        bench.end(*(ExperimentKey(f"run-{n}") for n in range(first, first + at_once)))
        bench.now_ns += 10 * DAY
        bench.remove()
        sizes.append(bench.journal.size())
        runs.append(bench.count("runs"))
    # A start and each look read what is in this table.
    assert runs[3:] == [2 * at_once] * 17
    # Beside those runs, what stays of the others is some hundred bytes each.
    assert (sizes[-1] - sizes[3]) / (16 * at_once) <= 400
