"""The journal that is one PostgreSQL database: what several bridges do to it and to each other."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from otel_rl.bridge.journal.interface import Connection, Journal, checksum
from otel_rl.bridge.journal.postgres import PostgresJournal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import ConfigError, JournalClosed, JournalUnavailable
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.run_id import run_id
from tests.support.postgres import PostgresServer
from tests.support.stores import Store

KEY = ExperimentKey("exp", "trial")
RUN = run_id(KEY.experiment, KEY.trial)
DEADLINE_S = 90.0


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[Store]:
    url = postgres.new_url()
    made = Store(lambda max_bytes: PostgresJournal(url, max_bytes=max_bytes))
    yield made
    made.close()


def batch(content: bytes = b"x", key: ExperimentKey = KEY) -> Batch:
    return Batch(key, Signal.METRICS, content, received_ns=5)


def payloads(journal: Journal) -> list[bytes]:
    return [one.batch.payload for one in Spool(journal).read(KEY, max_bytes=1 << 20)]


class InFlight:
    """A batch whose number is given and whose transaction goes on until the context ends."""

    def __init__(self, journal: Journal, content: bytes) -> None:
        self._journal = journal
        self._content = content
        self._begun, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: journal.write(self._append))

    def __enter__(self) -> None:
        self._thread.start()
        assert self._begun.wait(DEADLINE_S)

    def __exit__(self, *exc_info: object) -> None:
        self._may_end.set()
        self._thread.join(DEADLINE_S)

    def _append(self, connection: Connection) -> None:
        connection.execute(
            "INSERT INTO batches (run_id, shard, signal, received_ns, payload, crc)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (RUN, 99, "metrics", 5, self._content, checksum(self._content, RUN, "metrics", 5)),
        )
        connection.execute(
            "INSERT INTO waiting (run_id, shard, bytes) VALUES (?, ?, ?)",
            (RUN, 99, len(self._content)),
        )
        self._begun.set()
        assert self._may_end.wait(DEADLINE_S)


def test_a_batch_that_becomes_visible_after_a_later_one_is_not_removed_with_it(
    store: Store,
) -> None:
    ours, theirs = store.open(), store.open()
    spool, run_store = Spool(ours), RunStore(ours)
    spool.begin(KEY, 5)
    with InFlight(theirs, b"earlier"):
        spool.append([batch(b"later")])
        taken = [one.offset for one in spool.read(KEY, max_bytes=1 << 20)]
        assert payloads(ours) == [b"later"]
    run_store.commit([Commit(KEY, (), 0, b"", taken)])
    assert payloads(ours) == [b"earlier"]
    assert spool.waiting() == [KEY]


def test_bridges_that_append_to_one_run_do_not_wait_for_each_other(store: Store) -> None:
    ours, theirs = store.open(), store.open()
    Spool(ours).append([batch()])
    with InFlight(theirs, b"slow"):
        Spool(ours).append([batch(b"quick")])
        assert payloads(ours) == [b"x", b"quick"]


def test_all_bridges_see_one_journal(store: Store) -> None:
    first, second = store.open(), store.open()
    assert first.identity == second.identity
    Spool(first).append([batch()])
    assert Spool(second).waiting() == [KEY]


def test_bridges_that_start_together_make_the_tables_once(store: Store) -> None:
    identities: list[str] = []
    threads = [
        threading.Thread(target=lambda: identities.append(store.open().identity)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(identities) == 4
    assert len(set(identities)) == 1


def test_tables_of_another_version_are_refused(store: Store) -> None:
    store.open().write(lambda c: c.execute("UPDATE meta SET format = 2, version = '9.0.0'"))
    with pytest.raises(ConfigError, match=r"has format 2, written by otel_rl 9\.0\.0"):
        store.open()


def test_a_transaction_that_loses_a_deadlock_is_run_again(store: Store) -> None:
    journal = store.open()
    keys = [ExperimentKey("a"), ExperimentKey("b")]
    Spool(journal).append([batch(key=key) for key in keys])
    both = threading.Barrier(2, timeout=DEADLINE_S)
    attempts: list[str] = []

    def lock_both(connection: Connection, first: str, second: str) -> None:
        attempts.append(first)
        is_first_attempt = attempts.count(first) == 1
        statement = (
            "UPDATE runs SET row_bytes = row_bytes + 1 WHERE experiment = ? RETURNING number"
        )
        connection.execute(statement, (first,)).fetchone()
        if is_first_attempt:
            both.wait()
        connection.execute(statement, (second,))

    threads = [
        threading.Thread(target=journal.write, args=(partial(lock_both, first=a, second=b),))
        for a, b in (("a", "b"), ("b", "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(attempts) > 2
    with journal.read() as connection:
        found = connection.execute("SELECT row_bytes FROM runs").fetchall()
    assert found == [(2,), (2,)]


def test_connections_that_the_server_has_ended_are_replaced_unseen(
    store: Store, postgres: PostgresServer
) -> None:
    journal = store.open()
    Spool(journal).append([batch(b"before")])
    postgres.cut_connections()
    Spool(journal).append([batch(b"after")])
    assert payloads(journal) == [b"before", b"after"]


def test_a_connection_that_ends_in_the_middle_of_a_write_is_told_and_leaves_nothing(
    store: Store, postgres: PostgresServer
) -> None:
    journal = store.open()

    def cut(connection: Connection) -> None:
        connection.execute("INSERT INTO waiting (run_id, shard, bytes) VALUES (?, 0, 1)", (RUN,))
        postgres.cut_connections()
        connection.execute("SELECT 1")

    with pytest.raises(JournalUnavailable, match="does not answer"):
        journal.write(cut)
    with journal.read() as connection:
        assert connection.execute("SELECT COUNT(*) FROM waiting").fetchone() == (0,)


@pytest.mark.process
def test_a_server_that_is_down_is_told_and_used_again_when_it_is_back() -> None:
    with PostgresServer() as server:
        journal = PostgresJournal(server.new_url())
        Spool(journal).append([batch(b"before")])
        server.stop()
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match="refused"):
                Spool(journal).append([batch(b"meanwhile")])
        server.start()
        Spool(journal).append([batch(b"after")])
        assert payloads(journal) == [b"before", b"after"]
        journal.close()


def test_who_waits_for_a_connection_of_a_bridge_that_stops_is_told(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may need longer than senders wait to come from one line to the next.
    monkeypatch.setattr("otel_rl.bridge.journal.postgres._WAIT_S", DEADLINE_S)
    journal = PostgresJournal(postgres.new_url(), connections=1)
    told: list[BaseException] = []

    def append() -> None:
        try:
            Spool(journal).append([batch()])
        except JournalClosed as exc:
            told.append(exc)

    waiting = threading.Thread(target=append)
    with journal.read():
        waiting.start()
        journal.close()
        waiting.join(DEADLINE_S)
        assert [str(exc) for exc in told] == ["The bridge is stopping. Send the batch again later."]


def test_what_waits_for_a_database_that_does_not_answer_fails_with_the_first(
    postgres: PostgresServer,
) -> None:
    tried: list[object] = []
    all_wait = threading.Event()

    def unreachable(connection: Connection) -> None:
        tried.append(connection)
        assert all_wait.wait(DEADLINE_S)
        raise JournalUnavailable("The database does not answer.")

    journal = PostgresJournal(postgres.new_url(), connections=1)
    answers = [journal.submit(unreachable) for _ in range(20)]
    all_wait.set()
    told = {str(answer.exception(DEADLINE_S)) for answer in answers}
    assert told == {"The database does not answer."}
    assert len(tried) == 1
    assert journal.submit(lambda _: 7).result(DEADLINE_S) == 7
    journal.close()


def test_an_address_where_nobody_answers_is_told(postgres: PostgresServer) -> None:
    with pytest.raises(JournalUnavailable, match="does not answer"):
        PostgresJournal("postgresql://127.0.0.1:1/nowhere")


def test_what_is_no_address_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        PostgresJournal("mysql://somewhere?what=ever")


def test_names_are_the_same_in_a_database_that_knows_no_encoding(postgres: PostgresServer) -> None:
    store = Store(lambda _: PostgresJournal(postgres.new_database("SQL_ASCII")))
    journal = store.open()
    key = ExperimentKey("größe", "日本")
    Spool(journal).append([batch(key=key)])
    assert Spool(journal).waiting() == [key]
    store.close()


def test_a_database_that_cannot_hold_every_name_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="is in LATIN1"):
        PostgresJournal(postgres.new_database("LATIN1"))
