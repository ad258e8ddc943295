"""What only looks at a journal reads it beside its bridge."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.reader import looking, overview, read_runs
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey, Row


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


@pytest.mark.parametrize(
    ("tracker", "location", "error", "behind"),
    [
        ("wandb", "/data/wandb/offline-run-20261129_120000-abc", "", 0),
        ("wandb", "/data/wandb/offline-run-20261129_120000-abc", "the disk is full", 9),
        ("wandb", "https://wandb.ai/team/project/runs/abc", "", 9),
        ("wandb", "", "", 9),
        ("mlflow", "/data/mlflow.db", "", 9),
    ],
)
def test_an_offline_run_of_wandb_is_behind_only_with_an_error(
    tmp_path: Path, tracker: str, location: str, error: str, behind: int
) -> None:
    key = ExperimentKey("exp", "trial")
    with closing(SqliteJournal(tmp_path)) as journal:
        runs = RunStore(journal)
        runs.commit([Commit(key, [Row(n, n, n, {"loss": 1.0}) for n in range(9)], 9, b"")])
        deliveries = DeliveryStore(journal, tracker, has_room=runs.has_room)
        deliveries.opened(key, location)
        deliveries.reported(key, "waiting" if error else "live", error)
        (run,) = overview(journal)
        assert (run.unconfirmed, run.lag_rows) == (9, behind)
        assert replace(run, has_bridge=False).lag_rows == 9  # one is needed to hand them over again
