"""The journal with its spool and run store: what holds for both kinds of it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Connection, Journal, Use
from otel_rl.bridge.journal.runs import DAMAGED_ROW, Commit, RunStore, SavedRun
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalClosed, JournalFull, LeaseLost
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal
from tests.support.stores import Store

KEY = ExperimentKey("exp", "trial")


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.open()


def batch(content: bytes = b"x", key: ExperimentKey = KEY) -> Batch:
    return Batch(key, Signal.METRICS, content, received_ns=5)


def payloads(spool: Spool, *, max_bytes: int = 1 << 20, key: ExperimentKey = KEY) -> list[bytes]:
    return [one.batch.payload for one in spool.read(key, max_bytes=max_bytes)]


def commit(
    *rows: Row, state: bytes = b"", taken: Sequence[Offset] = (), key: ExperimentKey = KEY
) -> Commit:
    next_row = rows[-1].number + 1 if rows else 0
    return Commit(key, rows, next_row, state, taken)


def offsets(spool: Spool, key: ExperimentKey = KEY) -> list[Offset]:
    return [one.offset for one in spool.read(key, max_bytes=1 << 40)]


def row(number: int, **values: float) -> Row:
    return Row(number, number + 100, 1_000 + number, values or {"loss": float(number)}, 7)


def test_batches_come_back_in_the_order_of_acceptance(journal: Journal) -> None:
    spool = Spool(journal)
    for n in range(5):
        spool.append([batch(b"%d" % n)])
    assert payloads(spool) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_read_returns_at_least_one_batch_however_large(journal: Journal) -> None:
    spool = Spool(journal)
    spool.append([batch(b"x" * 1000), batch(b"y")])
    assert payloads(spool, max_bytes=1) == [b"x" * 1000]


def test_batches_that_were_read_are_not_read_again(journal: Journal) -> None:
    spool = Spool(journal)
    spool.append([batch(b"%d" % n) for n in range(5)])
    # Of several that accept, one may become visible after another with a higher number.
    read = {offset: None for place, offset in enumerate(offsets(spool)) if place in {0, 1, 3}}
    found = spool.read(KEY, max_bytes=1 << 20, but=read)
    assert [one.batch.payload for one in found] == [b"2", b"4"]
    assert spool.read(KEY, max_bytes=1 << 20, but=[*read, *(one.offset for one in found)]) == []


def test_experiments_wait_apart(journal: Journal) -> None:
    spool, other = Spool(journal), ExperimentKey("other")
    spool.append([batch(b"a"), batch(b"b", other), batch(b"c")])
    assert (payloads(spool), payloads(spool, key=other)) == ([b"a", b"c"], [b"b"])
    assert spool.waiting() == [KEY, other]
    RunStore(journal).commit([commit(taken=offsets(spool))])
    assert (spool.waiting(), spool.pending()) == ([other], 1)


def test_bytes_in_use_are_those_of_batches_and_rows(journal: Journal) -> None:
    spool, other = Spool(journal), ExperimentKey("other")
    assert spool.in_use() == {}
    spool.append([batch(b"x" * 1000), batch(b"y" * 10, other)])
    assert spool.in_use() == {KEY: Use(1000, 0), other: Use(10, 0)}
    RunStore(journal).commit([commit(row(0), taken=offsets(spool))])
    assert spool.in_use()[KEY].waiting == 0
    assert 0 < spool.in_use()[KEY].made < 1000
    assert spool.in_use()[other] == Use(10, 0)


def test_an_experiment_with_its_share_waiting_is_refused_and_the_others_are_not(
    store: Store,
) -> None:
    other = ExperimentKey("other")
    small = store.open(max_bytes=1 << 20)
    spool = Spool(small, max_share=0.25)
    for _ in range(4):
        spool.append([batch(b"x" * 60_000)])
    with pytest.raises(JournalFull, match="is its share"):
        spool.append([batch(b"x" * 60_000), batch(b"kept", other)])
    assert payloads(spool, key=other) == [b"kept"]
    RunStore(small).commit([commit(taken=offsets(spool)[:3])])
    spool.append([batch(b"x" * 60_000)])
    assert len(payloads(spool)) == 2


def test_a_batch_over_the_share_is_taken_when_nothing_else_waits(store: Store) -> None:
    small = store.open(max_bytes=1 << 20)
    spool = Spool(small, max_share=0.01)
    spool.append([batch(b"x" * 50_000)])
    with pytest.raises(JournalFull):
        spool.append([batch(b"y")])


def test_batches_survive_a_restart(store: Store) -> None:
    first = store.open()
    Spool(first).append([batch(b"kept")])
    first.close()
    second = store.open()
    (kept,) = Spool(second).read(KEY, max_bytes=1)
    assert kept.batch == batch(b"kept")
    assert second.identity == first.identity


def test_concurrent_appends_all_arrive_and_share_commits(journal: Journal) -> None:
    spool = Spool(journal)

    def append_twenty(content: bytes) -> None:
        for _ in range(20):
            spool.append([batch(content)])

    threads = [threading.Thread(target=append_twenty, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spool.pending() == 160


def test_a_failing_write_takes_nothing_of_the_others_with_it(journal: Journal) -> None:
    spool = Spool(journal)

    def fail(connection: Connection) -> None:
        connection.execute(
            "INSERT INTO runs (run_id, experiment, trial) VALUES ('run', 'half', 't')"
        )
        raise ValueError("no")

    results: list[str] = []

    def append() -> None:
        spool.append([batch(b"whole")])

    def write() -> None:
        try:
            journal.write(fail)
        except ValueError:
            results.append("failed")

    threads = [threading.Thread(target=t) for t in (append, write, append, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["failed", "failed"]
    assert payloads(spool) == [b"whole", b"whole"]
    with journal.read() as connection:
        assert connection.execute("SELECT COUNT(*) FROM runs").fetchone() == (1,)


def test_a_full_journal_refuses_and_recovers(store: Store) -> None:
    journal = store.open(max_bytes=1 << 20)
    spool, run_store = Spool(journal), RunStore(journal)

    def fill() -> None:
        for _ in range(100):
            spool.append([batch(b"x" * 65536)])

    with pytest.raises(JournalFull):
        fill()
    run_store.commit([commit(taken=offsets(spool))])
    spool.append([batch(b"room again")])
    assert payloads(spool) == [b"room again"]


def test_a_closed_journal_takes_nothing(store: Store) -> None:
    journal = store.open()
    journal.close()
    with pytest.raises(JournalClosed):
        Spool(journal).append([batch()])


def test_nan_and_infinity_are_kept(journal: Journal) -> None:
    run_store = RunStore(journal)
    values = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 2**62}
    run_store.commit([commit(row(0, **values))])
    (kept,) = run_store.rows(KEY, start=0, limit=1)
    assert repr(dict(kept.values)) == repr(values)


def test_a_damaged_row_keeps_its_number_and_says_what_it_was(journal: Journal) -> None:
    run_store = RunStore(journal)
    run_store.commit([commit(row(0), row(1), row(2))])
    journal.write(lambda c: c.execute("UPDATE rows SET body = ? WHERE number = 1", (b"[",)))
    first, damaged, last = run_store.rows(KEY, start=0, limit=3)
    assert (first, last) == (row(0), row(2))
    assert (damaged.number, damaged.values) == (1, {DAMAGED_ROW: 1})
    assert (damaged.step, damaged.time_ns) == (first.step, first.time_ns)


def test_a_row_that_the_disk_has_lost_keeps_its_number_too(journal: Journal) -> None:
    run_store = RunStore(journal)
    run_store.commit([commit(row(0), row(1), row(2))])
    journal.write(lambda c: c.execute("DELETE FROM rows WHERE number = 1"))
    assert [r.number for r in run_store.rows(KEY, start=0, limit=9)] == [0, 1, 2]
    deliveries = DeliveryStore(journal, "jsonl")
    deliveries.confirmed(KEY, 2)
    deliveries.prune(KEY, 2)
    assert [r.number for r in run_store.rows(KEY, start=0, limit=9)] == [2]


@pytest.mark.parametrize(
    ("column", "damaged"), [("signal", "metribs"), ("received_ns", 49), ("payload", b"1")]
)
def test_every_part_of_a_batch_is_checked(
    journal: Journal, column: str, damaged: str | int | bytes
) -> None:
    spool = Spool(journal)
    spool.append([batch(b"one"), batch(b"two")])
    first, _ = offsets(spool)
    journal.write(
        lambda c: c.execute(f"UPDATE batches SET {column} = ? WHERE position = ?", (damaged, first))
    )
    assert [one.is_damaged for one in spool.read(KEY, max_bytes=99)] == [True, False]


def test_a_damaged_state_is_none_and_the_rows_go_on(journal: Journal) -> None:
    run_store = RunStore(journal)
    run_store.commit([commit(row(0), state=b"good")])
    journal.write(lambda c: c.execute("UPDATE states SET body = ?", (b"0",)))
    assert run_store.saved(KEY) == SavedRun(None, 1)


def test_a_run_whose_rows_nobody_takes_has_no_room_for_more(store: Store) -> None:
    small = store.open(max_bytes=1 << 20)
    run_store = RunStore(small, max_share=0.01)
    assert run_store.has_room(KEY)
    run_store.commit([commit(*(row(n, **{"k" * 100: 1.0}) for n in range(100)))])
    assert not run_store.has_room(KEY)
    assert run_store.has_room(ExperimentKey("other"))


class Turn:
    """An owner in one turn, whether that has ended or not."""

    def __init__(self, epoch: int | None) -> None:
        self._epoch = epoch

    def epoch(self, key: ExperimentKey, /) -> int | None:
        return self._epoch


@pytest.mark.parametrize("epoch", [1, 3, None])
def test_what_is_written_in_a_turn_that_is_over_never_happened(
    journal: Journal, epoch: int | None
) -> None:
    spool, run_store = Spool(journal), RunStore(journal)
    spool.append([batch()])
    run_store.commit([commit(row(0), state=b"theirs")])
    deliveries = DeliveryStore(journal, "wandb")
    deliveries.confirmed(KEY, 1)
    journal.write(lambda c: c.execute("UPDATE runs SET epoch = 2"))
    owners = Turn(epoch)
    stale = RunStore(journal, owners=owners)
    stale_deliveries = DeliveryStore(journal, "wandb", owners=owners)
    late = replace(commit(row(1), state=b"ours", taken=offsets(spool)), epoch=epoch or 1)
    changes: list[Callable[[], object]] = [
        lambda: stale.commit([late]),
        lambda: Spool(journal, owners=owners).set_aside(KEY, offsets(spool)[0]),
        lambda: stale_deliveries.confirmed(KEY, 0),
        lambda: stale_deliveries.prune(KEY, 1),
        lambda: stale_deliveries.reported(KEY, "retrying", "away"),
        lambda: stale_deliveries.finish(KEY, 1),
    ]
    for change in changes:
        with pytest.raises(LeaseLost):
            change()
    assert (spool.pending(), kept(run_store), run_store.saved(KEY).state) == (1, [0], b"theirs")
    assert deliveries.finished(KEY) == 0


def test_what_is_written_in_the_turn_happens(journal: Journal) -> None:
    Spool(journal).append([batch()])
    journal.write(lambda c: c.execute("UPDATE runs SET epoch = 2"))
    run_store = RunStore(journal, owners=Turn(2))
    run_store.commit([replace(commit(row(0)), epoch=2)])
    deliveries = DeliveryStore(journal, "wandb", owners=Turn(2))
    deliveries.finish(KEY, 1)
    assert (kept(run_store), deliveries.finished(KEY)) == ([0], 1)


def kept(run_store: RunStore, key: ExperimentKey = KEY) -> list[int]:
    return [row.number for row in run_store.rows(key, start=0, limit=10_000)]


def test_a_batch_that_cannot_be_read_is_set_aside_and_kept(journal: Journal) -> None:
    spool = Spool(journal)
    spool.append([batch(b"bad"), batch(b"good")])
    bad, good = offsets(spool)
    spool.set_aside(KEY, bad)
    assert payloads(spool) == [b"good"]
    with journal.read() as connection:
        assert connection.execute("SELECT payload FROM set_aside").fetchall() == [(b"bad",)]
    spool.set_aside(KEY, good)
    assert spool.waiting() == []


def test_a_run_whose_rows_nobody_takes_leaves_room_for_other_runs(store: Store) -> None:
    small = store.open(max_bytes=4 << 20)
    spool, run_store = Spool(small, max_share=0.5), RunStore(small, max_share=0.5)

    def fill() -> None:
        for number in range(0, 1_000_000, 100):
            spool.append([batch(b"x" * 10_000)])
            if run_store.has_room(KEY):
                (one,) = spool.read(KEY, max_bytes=1)
                rows = [row(number + n) for n in range(100)]
                run_store.commit([commit(*rows, taken=[one.offset])])

    with pytest.raises(JournalFull, match="is its share"):
        fill()
    spool.append([batch(b"y" * 500_000, ExperimentKey("other"))])
