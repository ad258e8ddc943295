"""The journal, its spool and its ledger."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.journal import JOURNAL_FILE, Journal
from otel_rl.bridge.ledger import Commit, Ledger
from otel_rl.bridge.spool import Spool
from otel_rl.errors import ConfigError, JournalClosed, JournalError, JournalFull, JournalLocked
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal

KEY = ExperimentKey("exp", "trial")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path)
    yield opened
    opened.close()


def batch(content: bytes = b"x") -> Batch:
    return Batch(Signal.METRICS, content, received_ns=5)


def row(number: int, **values: float) -> Row:
    return Row(number, number + 100, 1_000 + number, values or {"loss": float(number)}, 7)


def test_batches_come_back_in_the_order_of_acceptance(journal: Journal) -> None:
    spool = Spool(journal)
    offsets = [spool.append(batch(b"%d" % n)) for n in range(5)]
    assert offsets == sorted(set(offsets))
    found = spool.read(after=Offset(0), max_bytes=1 << 20)
    assert [b.payload for _, b in found] == [b"0", b"1", b"2", b"3", b"4"]


def test_reading_goes_on_after_an_offset(journal: Journal) -> None:
    spool = Spool(journal)
    first = spool.append(batch(b"a"))
    spool.append(batch(b"b"))
    assert [b.payload for _, b in spool.read(after=first, max_bytes=1)] == [b"b"]


def test_a_read_returns_at_least_one_batch_however_large(journal: Journal) -> None:
    spool = Spool(journal)
    spool.append(batch(b"x" * 1000))
    assert len(spool.read(after=Offset(0), max_bytes=1)) == 1


def test_batches_survive_a_restart(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    Spool(first).append(batch(b"kept"))
    first.close()
    second = Journal(tmp_path)
    try:
        (kept,) = Spool(second).read(after=Offset(0), max_bytes=1)
        assert kept[1] == batch(b"kept")
    finally:
        second.close()


def test_concurrent_appends_all_arrive_and_share_commits(journal: Journal) -> None:
    spool = Spool(journal)
    threads = [
        threading.Thread(target=lambda n=n: [spool.append(batch(b"%d" % n)) for _ in range(20)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spool.pending() == 160


def test_a_failing_write_takes_nothing_of_the_others_with_it(journal: Journal) -> None:
    spool = Spool(journal)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO batches (signal, received_ns, payload) VALUES ('metrics', 0, 'half')"
        )
        raise ValueError("no")

    results: list[str] = []

    def append() -> None:
        spool.append(batch(b"whole"))

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
    found = spool.read(after=Offset(0), max_bytes=1 << 20)
    assert [b.payload for _, b in found] == [b"whole", b"whole"]


def test_a_full_journal_refuses_and_recovers(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=1 << 20)
    try:
        spool, ledger = Spool(journal), Ledger(journal)
        last = Offset(0)

        def fill() -> None:
            nonlocal last
            for _ in range(100):
                last = spool.append(batch(b"x" * 65536))

        with pytest.raises(JournalFull):
            fill()
        ledger.commit([], read_through=last)
        assert spool.append(batch(b"room again")) > last
    finally:
        journal.close()


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    with pytest.raises(JournalClosed):
        Spool(journal).append(batch())


def test_a_second_bridge_on_the_directory_is_refused(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(JournalLocked, match="in use by process"):
        Journal(tmp_path)


def test_a_directory_that_cannot_hold_the_lock_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(ConfigError, match="data: cannot use"):
        Journal(tmp_path)


def test_what_is_no_journal_is_an_error_that_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="Cannot open the journal") as caught:
        Journal(tmp_path)
    (tmp_path / JOURNAL_FILE).unlink()
    Journal(tmp_path).close()  # while the first one's exception is still held
    assert "Move the file away" in caught.value.hint


def test_rows_state_and_removal_are_one_commit(journal: Journal) -> None:
    spool, ledger = Spool(journal), Ledger(journal)
    offset = spool.append(batch())
    ledger.commit([Commit(KEY, [row(0), row(1)], 2, {"some": "state"})], read_through=offset)
    assert ledger.rows(KEY, start=0, limit=10) == [row(0), row(1)]
    assert ledger.next_row(KEY) == 2
    assert ledger.state(KEY) == {"some": "state"}
    assert spool.pending() == 0
    assert ledger.runs() == [KEY]


def test_a_row_number_is_given_once(journal: Journal) -> None:
    ledger = Ledger(journal)
    ledger.commit([Commit(KEY, [row(0)], 1, None)], read_through=Offset(0))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit([Commit(KEY, [row(0)], 1, None)], read_through=Offset(0))


def test_nan_and_infinity_are_kept(journal: Journal) -> None:
    ledger = Ledger(journal)
    values = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 2**62}
    ledger.commit([Commit(KEY, [row(0, **values)], 1, None)], read_through=Offset(0))
    (kept,) = ledger.rows(KEY, start=0, limit=1)
    assert repr(dict(kept.values)) == repr(values)


def test_a_damaged_row_is_told_apart_from_a_good_one(journal: Journal) -> None:
    ledger = Ledger(journal)
    ledger.commit([Commit(KEY, [row(0), row(1)], 2, None)], read_through=Offset(0))
    journal.write(lambda c: c.execute("UPDATE rows SET body = x'5b' WHERE number = 1"))
    assert ledger.rows(KEY, start=0, limit=1) == [row(0)]
    with pytest.raises(JournalError, match="Row 1 of exp/trial is damaged"):
        ledger.rows(KEY, start=1, limit=1)


def test_each_trackers_position_is_remembered(journal: Journal) -> None:
    ledger = Ledger(journal)
    ledger.confirmed(KEY, "wandb", 5)
    ledger.confirmed(KEY, "jsonl", 9)
    ledger.confirmed(KEY, "wandb", 7)
    assert (ledger.delivered(KEY, "wandb"), ledger.delivered(KEY, "jsonl")) == (7, 9)
    assert ledger.delivered(ExperimentKey("other"), "wandb") == 0


def test_a_batch_that_cannot_be_read_is_set_aside_and_kept(journal: Journal) -> None:
    spool, ledger = Spool(journal), Ledger(journal)
    bad, good = spool.append(batch(b"bad")), spool.append(batch(b"good"))
    ledger.set_aside(bad)
    assert [offset for offset, _ in spool.read(after=Offset(0), max_bytes=9)] == [good]
    with journal.read() as connection:
        assert connection.execute("SELECT payload FROM set_aside").fetchall() == [(b"bad",)]


def test_threads_that_have_ended_leave_no_file_open(journal: Journal) -> None:
    ledger = Ledger(journal)

    def open_files_after(threads: int) -> int:
        for _ in range(threads):
            reader = threading.Thread(target=ledger.next_row, args=(KEY,))
            reader.start()
            reader.join()
        return sum(1 for _ in Path("/dev/fd").iterdir())

    assert open_files_after(50) == open_files_after(1)
