"""The journal that is one SQLite file."""

import fcntl
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import cast

import pytest

from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import (
    JOURNAL_FILE,
    LOCK_FILE,
    LockFile,
    OpenFiles,
    SqliteJournal,
    is_in_use,
    open_database,
)
from otel_rl.errors import ConfigError, JournalError, JournalGone, JournalLocked
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.support.stores import runs_of

KEY = ExperimentKey("exp", "trial")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path)
    yield opened
    opened.close()


def batch(content: bytes = b"x", key: ExperimentKey = KEY) -> Batch:
    return Batch(key, Signal.METRICS, content, received_ns=5)


def test_two_journals_have_two_identities(journal: SqliteJournal, tmp_path: Path) -> None:
    other = SqliteJournal(tmp_path / "other")
    other.close()
    assert other.identity != journal.identity


def test_a_second_bridge_on_the_directory_is_refused(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    with pytest.raises(JournalLocked, match="in use by process"):
        SqliteJournal(tmp_path)


def test_a_directory_that_cannot_hold_the_lock_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(ConfigError, match="data: cannot use"):
        SqliteJournal(tmp_path)


def test_what_is_no_journal_is_an_error_that_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="Cannot open the journal") as caught:
        SqliteJournal(tmp_path)
    (tmp_path / JOURNAL_FILE).unlink()
    SqliteJournal(tmp_path).close()  # while the first one's exception is still held
    assert "Move the file away" in caught.value.hint


def test_a_damaged_schema_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    SqliteJournal(tmp_path).close()
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE meta", b"CREATE TABLE m\xffta"))
    with pytest.raises(JournalError, match="Cannot open the journal"):
        SqliteJournal(tmp_path)


def test_a_name_that_is_no_text_any_more_harms_no_other_run(journal: SqliteJournal) -> None:
    other = ExperimentKey("other")
    Spool(journal).append([batch(), batch(b"y", other)])
    journal.write(
        lambda c: c.execute(
            "UPDATE runs SET experiment = CAST(x'ff' AS TEXT) WHERE experiment = 'exp'"
        )
    )
    assert other in Spool(journal).waiting()
    assert other in runs_of(journal)


def test_threads_that_have_ended_leave_no_file_open(journal: SqliteJournal) -> None:
    run_store = RunStore(journal)

    def open_files_after(threads: int) -> int:
        for _ in range(threads):
            reader = threading.Thread(target=run_store.next_row, args=(KEY,))
            reader.start()
            reader.join()
        return sum(1 for _ in Path("/dev/fd").iterdir())

    assert open_files_after(50) == open_files_after(1)


def test_a_read_that_failed_half_way_does_not_show_the_past_to_the_next(
    journal: SqliteJournal,
) -> None:
    spool = Spool(journal)

    def fail() -> None:
        with journal.read() as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT COUNT(*) FROM batches").fetchone()
            raise sqlite3.DatabaseError("a damaged page")

    with pytest.raises(sqlite3.DatabaseError):
        fail()
    spool.append([batch()])
    assert spool.pending() == 1
    assert RunStore(journal).rows(KEY, start=0, limit=1) == []


def test_a_connection_that_fails_in_every_way_leaves_no_caller_waiting(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    try:
        for _ in range(2):
            # The first takes the log with it, which the second misses.
            with pytest.raises((sqlite3.Error, JournalGone)):
                journal.write(lambda connection: cast("sqlite3.Connection", connection).close())
    finally:
        journal.close()


def test_a_read_beside_unfinished_batches_does_not_look_at_the_whole_backlog(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(journal)
    spool.append([batch() for _ in range(2_000)])
    taken = {one.offset for one in spool.read(KEY, max_bytes=3)}
    with journal.read() as connection:
        opened, looked = connection, 0

        def look() -> None:
            nonlocal looked
            looked += 1

        opened.set_progress_handler(look, 1)
        monkeypatch.setattr(journal, "read", lambda: nullcontext(opened))
        found = spool.read(KEY, max_bytes=1, but=taken)
        opened.set_progress_handler(None, 0)
    assert [one.offset for one in found] == [max(taken) + 1]
    assert looked < 500, "steps of SQLite's machine"


def test_a_journal_that_is_gone_is_not_read_and_is_a_problem_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SqliteJournal(tmp_path)) as journal:
        journal.size()  # looked for the files
        assert journal.problem == ""
        (tmp_path / JOURNAL_FILE).rename(tmp_path / "elsewhere")
        with pytest.raises(JournalGone):
            journal.write(lambda connection: connection.execute("SELECT 1").fetchone())
        with pytest.raises(JournalGone):
            journal.size()
        assert "journal.db' was removed" in journal.problem
        (tmp_path / "elsewhere").rename(tmp_path / JOURNAL_FILE)
        journal.size()
        assert journal.problem == ""
    assert [one.levelname for one in caplog.records] == ["ERROR", "WARNING"], "each change once"


MAX_BYTES = 1 << 20


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_that_is_replaced_is_gone_until_it_is_put_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "journal.db", tmp_path / "aside"
    path.touch()
    files = OpenFiles([path])
    files.check()
    path.rename(aside)
    path.touch()
    with pytest.raises(JournalGone, match="removed or replaced"):
        files.check()
    aside.rename(path)
    files.check()


def test_a_bridge_starts_although_a_reader_is_looking_whether_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LockFile(tmp_path / LOCK_FILE).close()
    reader = (tmp_path / LOCK_FILE).open()
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: reader.close())
    LockFile(tmp_path / LOCK_FILE).close()
    assert reader.closed


def test_a_journal_is_in_use_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    held = LockFile(tmp_path / LOCK_FILE)
    assert is_in_use(tmp_path)
    held.close()
    assert not is_in_use(tmp_path)


def test_removed_batches_are_not_written_once_more(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "journal.db", MAX_BYTES)
    assert connection.execute("PRAGMA secure_delete").fetchone() == (0,)
    connection.close()
