"""What only looks at a journal reads it beside its bridge."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import JournalError


def test_a_look_leaves_no_lock_behind(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path)):
        with looking(tmp_path) as connection:
            assert read_runs(connection) == []
        with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as other:
            busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            assert not busy


def test_one_that_is_gone_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path)):
        (tmp_path / JOURNAL_FILE).rename(tmp_path / "away")
        with pytest.raises(JournalError, match="Cannot read"), looking(tmp_path):
            pass
        (tmp_path / "away").rename(tmp_path / JOURNAL_FILE)
        with looking(tmp_path) as connection:
            assert read_runs(connection) == []
