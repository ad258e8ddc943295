"""A reader keeps a journal open for as long as it is the same one."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.journal.reader import LookingOn
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import JournalError


def count(connection: object) -> int:
    assert isinstance(connection, sqlite3.Connection)
    return int(connection.execute("SELECT COUNT(*) FROM runs").fetchone()[0])


@pytest.fixture
def looking(tmp_path: Path) -> Iterator[LookingOn]:
    made = LookingOn(tmp_path)
    yield made
    made.close()


def add_run(journal: SqliteJournal, name: str) -> None:
    journal.write(
        lambda connection: connection.execute(
            "INSERT INTO runs (run_id, experiment, trial, changed_ns) VALUES (?, ?, ?, 1)",
            (name, name, name),
        )
    )


def test_each_look_sees_what_was_written_before(tmp_path: Path, looking: LookingOn) -> None:
    journal = SqliteJournal(tmp_path)
    for number in range(3):
        with looking() as connection:
            assert count(connection) == number
        add_run(journal, str(number))
    journal.close()


def test_a_kept_journal_holds_no_lock(tmp_path: Path, looking: LookingOn) -> None:
    journal = SqliteJournal(tmp_path)
    with looking() as connection:
        assert count(connection) == 0
    add_run(journal, "a")
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as other:
        busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
    journal.close()


def test_a_new_journal_is_opened_anew(tmp_path: Path, looking: LookingOn) -> None:
    journal = SqliteJournal(tmp_path)
    add_run(journal, "old")
    with looking() as connection:
        assert count(connection) == 1
    journal.close()
    for file in tmp_path.glob("journal.db*"):
        file.rename(tmp_path / f"away-{file.name}")
    journal = SqliteJournal(tmp_path)
    with looking() as connection:
        assert count(connection) == 0
    journal.close()


def test_one_that_is_gone_is_an_error_until_it_is_back(tmp_path: Path, looking: LookingOn) -> None:
    journal = SqliteJournal(tmp_path)
    with looking() as connection:
        assert count(connection) == 0
    (tmp_path / JOURNAL_FILE).rename(tmp_path / "away")
    with pytest.raises(JournalError, match="Cannot read"), looking():
        pass
    (tmp_path / "away").rename(tmp_path / JOURNAL_FILE)
    with looking() as connection:
        assert count(connection) == 0
    journal.close()
