"""A journal at its limits: no room, half a failure, another version, a backlog."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal import interface
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Connection, Journal
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.rows import scheduler as drains
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.errors import ConfigError, JournalFull, JournalLocked
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer
from tests.support.stores import Store, runs_of

KEY = ExperimentKey("exp", "trial")
S = 1_000_000_000
T0 = 1_700_000_000 * S


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.open()


def batch(content: bytes = b"x", received_ns: int = 5) -> Batch:
    return Batch(KEY, Signal.METRICS, content, received_ns)


def test_of_a_function_that_raises_nothing_is_kept(journal: Journal) -> None:
    def half(connection: Connection) -> None:
        connection.execute("INSERT INTO runs (run_id, experiment, trial) VALUES ('r', 'e', 't')")
        raise LookupError

    with pytest.raises(LookupError):
        journal.write(half)
    assert runs_of(journal) == []


def test_a_request_that_would_exceed_the_bound_is_refused(store: Store) -> None:
    spool = Spool(store.open(max_bytes=1 << 20))
    with pytest.raises(JournalFull):
        spool.append([batch(b"x" * ((1 << 20) + 1))])
    spool.append([batch()])


def test_a_journal_at_its_bound_has_room_to_make_rows_of_what_it_holds(store: Store) -> None:
    journal = store.open(max_bytes=1 << 20)
    spool, run_store = Spool(journal), RunStore(journal)
    with contextlib.suppress(JournalFull):
        while True:
            spool.append([batch(b"x" * 20_000)])
    spooled = spool.read(KEY, max_bytes=1 << 30)
    rows = [Row(n, n, n, {f"{n:019000}": 1.0}) for n in range(len(spooled))]
    run_store.commit([Commit(KEY, rows, len(rows), b"", [one.offset for one in spooled])])
    assert run_store.next_row(KEY) == len(spooled) > 10


def test_an_error_is_as_old_as_its_first_report(journal: Journal) -> None:
    now = iter((100, 200, 300, 400))
    deliveries = DeliveryStore(journal, "jsonl", clock_ns=lambda: next(now))
    Spool(journal).append([batch()])
    since = []
    for error in ("away", "refused", "", "away"):
        deliveries.reported(KEY, "retrying", error)
        with journal.read() as connection:
            ((error_ns,),) = connection.execute("SELECT error_ns FROM deliveries").fetchall()
        since.append(error_ns)
    assert (since[:2], since[3]) == ([100, 100], 400)


def measured(rank: int, step: int, value: float) -> Batch:
    sample = point(value, T0 + step)
    sample.attributes.extend(key_values({"rl.loop.iteration": step}))
    request = metrics_request(
        gauge(sample),
        resource={
            "rl.experiment.name": KEY.experiment,
            "rl.worker.role": "trainer",
            "rl.worker.index": rank,
            "rl.worker.count": 2,
            "service.instance.id": f"rank-{rank}",
        },
    )
    return batch(request.SerializeToString(), T0)


def test_in_a_backlog_nothing_is_overdue_that_is_still_to_be_read(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drains, "_READ_BYTES", 1)
    spool, run_store = Spool(journal), RunStore(journal)
    drain = Scheduler(spool, run_store, AlignSettings(), Counters())
    for rank in (0, 1):
        spool.append([measured(rank, 0, 1.0)])
    while drain.round(T0):
        pass
    spool.append([measured(0, 1, 2.0)])
    spool.append([measured(1, 1, 4.0)])
    now_ns = T0 + 86_400 * S
    while drain.round(now_ns):
        pass
    drain.finish(now_ns)
    rows = run_store.rows(KEY, start=0, limit=100)
    assert [row.values["trainer/loss"] for row in rows if "trainer/loss" in row.values] == [
        1.0,
        3.0,
    ]


# One file.


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    SqliteJournal(tmp_path).close()
    yield tmp_path
    SqliteJournal(tmp_path).close()


def test_the_directory_of_a_journal_is_its_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    SqliteJournal(directory).close()
    assert directory.stat().st_mode & 0o077 == 0


def test_a_journal_that_others_could_read_is_its_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    journal = SqliteJournal(tmp_path)
    ours = sorted(path.name for path in tmp_path.iterdir())
    for name in ours:
        (tmp_path / name).chmod(0o644)
    other = tmp_path / "notes.txt"
    other.touch(mode=0o644)
    journal.close()
    journal = SqliteJournal(tmp_path)
    try:
        modes = {name: (tmp_path / name).stat().st_mode & 0o077 for name in ours}
        assert modes == dict.fromkeys(ours, 0)
        assert {"journal.db", "journal.db-wal", "lock"} <= set(ours)
        assert other.stat().st_mode & 0o044
    finally:
        journal.close()


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    SqliteJournal(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as connection:
        connection.execute("UPDATE meta SET format = 99")
        connection.commit()
    with pytest.raises(ConfigError, match="has format 99"):
        SqliteJournal(tmp_path)


def test_a_journal_has_one_identity_however_often_it_is_opened(directory: Path) -> None:
    identities = set()
    for _ in range(3):
        journal = SqliteJournal(directory)
        identities.add(journal.identity)
        journal.close()
    with contextlib.closing(sqlite3.connect(directory / JOURNAL_FILE)) as connection:
        assert [*connection.execute("SELECT identity FROM meta")] == [(identities.pop(),)]
    assert not identities


def test_of_bridges_that_open_one_directory_at_once_one_has_it(directory: Path) -> None:
    barrier = threading.Barrier(8)
    opened: list[SqliteJournal] = []
    refused: list[JournalLocked] = []

    def open_() -> None:
        barrier.wait()
        try:
            opened.append(SqliteJournal(directory))
        except JournalLocked as exc:
            refused.append(exc)

    threads = [threading.Thread(target=open_) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for journal in opened:
        journal.close()
    assert (len(opened), len(refused)) == (1, 7)


# One database.


def test_what_comes_in_between_two_looks_at_the_size_counts(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "_MEASURED_FOR_S", 1e9)
    journal = PostgresJournal(postgres_url, max_bytes=100_000)
    try:
        spool = Spool(journal)
        several = [
            Batch(ExperimentKey(f"e{n}"), Signal.METRICS, b"x" * 30_000, 5) for n in range(4)
        ]
        for one in several[:3]:
            spool.append([one])
        with pytest.raises(JournalFull):
            spool.append(several[3:])
    finally:
        journal.close()


def test_a_commit_waits_for_the_servers_log_whatever_the_server_would_do(
    postgres_url: str, postgres: PostgresServer
) -> None:
    database = postgres.execute("SELECT current_database()")[0][0]
    postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = 'off'")
    try:
        journal = PostgresJournal(postgres_url)
        with journal.read() as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        journal.close()
    finally:
        postgres.execute(f"ALTER DATABASE {database} RESET synchronous_commit")


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.new_url()
