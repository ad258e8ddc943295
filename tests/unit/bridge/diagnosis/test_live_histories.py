"""Histories of live runs: each record is read once, what is over is let go."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.diagnosis.histories import LiveHistories, Looked, MemoryBound
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.reader import looking
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.diagnose.history.run_history import GrowingHistory, RunHistory
from otel_rl.records import ExperimentKey
from tests.unit.diagnose.worlds import World

KEY, OTHER = ExperimentKey("grpo", "one"), ExperimentKey("grpo", "two")
FACTS = list(World(steps=30).facts())


class Stored:
    """A journal with runs that go on.

    Args:
        directory: Of the journal.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal = SqliteJournal(directory)
        self.run_store = RunStore(self.journal)

    def add(self, first: int, last: int, key: ExperimentKey = KEY, forgotten_ns: int = 0) -> None:
        for facts in FACTS[first:last]:
            history = facts.time_ns, facts.encode()
            commit = Commit(
                key, [], 0, b"", added={Log.HISTORY: history}, forgotten={Log.HISTORY: forgotten_ns}
            )
            self.run_store.commit([commit])

    def look(
        self, histories: LiveHistories, key: ExperimentKey = KEY, budget_s: float = math.inf
    ) -> Looked:
        return histories.look(partial(looking, self.directory), key, budget_s=budget_s)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    stored = Stored(tmp_path)
    yield stored
    stored.journal.close()


def test_a_look_reads_what_is_new_since_the_last_one(stored: Stored) -> None:
    stored.add(0, 20)
    histories = LiveHistories()
    first = stored.look(histories)
    assert (first.records, first.is_whole) == (20, True)
    stored.add(20, 23)
    second = stored.look(histories)
    assert (second.records, second.is_whole) == (3, False)
    assert vars(second.history)["rows"] == RunHistory(FACTS[:23]).rows
    assert stored.look(histories).records == 0


def test_a_run_is_read_again_when_a_quarter_of_what_is_known_is_forgotten(stored: Stored) -> None:
    stored.add(0, 20)
    histories = LiveHistories()
    stored.look(histories)
    stored.add(20, 21, forgotten_ns=FACTS[4].time_ns)
    looked = stored.look(histories)
    assert (looked.records, looked.is_whole) == (16, True)
    assert looked.history.rows == RunHistory(FACTS[5:21]).rows


def test_the_oldest_records_stay_known_when_the_journal_forgets_them(stored: Stored) -> None:
    stored.add(0, 20)
    histories = LiveHistories()
    stored.look(histories)
    stored.add(20, 21, forgotten_ns=FACTS[3].time_ns)
    looked = stored.look(histories)
    assert (looked.records, looked.is_whole) == (1, False)
    assert looked.history.rows == RunHistory(FACTS[:21]).rows


def test_a_run_without_history_any_more_is_read_from_the_beginning(stored: Stored) -> None:
    stored.add(0, 20)
    histories = LiveHistories()
    stored.look(histories)
    with closing(sqlite3.connect(stored.directory / "journal.db")) as connection:
        connection.execute("DELETE FROM log WHERE kind = 'history'")
        connection.commit()
    looked = stored.look(histories)
    assert (looked.records, looked.is_whole, looked.history.rows) == (0, True, {})


def test_a_run_that_is_over_is_let_go(stored: Stored) -> None:
    stored.add(0, 5)
    stored.add(0, 5, OTHER)
    histories = LiveHistories()
    stored.look(histories)
    stored.look(histories, OTHER)
    histories.keep_only([OTHER])
    assert list(histories.known) == [OTHER]
    assert stored.look(histories).is_whole


def test_memory_is_bounded_the_run_that_was_looked_at_longest_ago_goes_first(
    stored: Stored,
) -> None:
    stored.add(0, 5)
    stored.add(0, 5, OTHER)
    of_one = GrowingHistory()
    for facts in FACTS[:5]:
        of_one.add(facts)
    histories = LiveHistories(MemoryBound(int(1.5 * of_one.memory_bytes())))
    stored.look(histories)
    assert list(histories.known) == [KEY]
    assert stored.look(histories, OTHER).records == 5
    assert list(histories.known) == [OTHER]


def test_a_damaged_record_is_left_out(stored: Stored) -> None:
    stored.add(0, 5)
    with closing(sqlite3.connect(stored.directory / "journal.db")) as connection:
        connection.execute(
            "UPDATE log SET crc = crc + 1 WHERE number IN"
            " (SELECT number FROM log WHERE kind = 'history' ORDER BY number LIMIT 1)"
        )
        connection.commit()
    assert stored.look(LiveHistories()).records == 4


def test_a_long_run_is_read_in_parts_when_there_is_no_time(stored: Stored) -> None:
    for _ in range(10):
        stored.add(0, 30)
    histories = LiveHistories()
    parts = [stored.look(histories, budget_s=0)]
    while parts[-1].left:
        parts.append(stored.look(histories, budget_s=0))
    assert len(parts) == 2
    assert sum(part.records for part in parts) == 300
    assert parts[0].left == parts[1].records


def test_what_is_half_read_is_kept_beyond_the_bound(stored: Stored) -> None:
    for _ in range(10):
        stored.add(0, 30)
    histories = LiveHistories(MemoryBound(1))
    assert stored.look(histories, budget_s=0).left
    assert not stored.look(histories, budget_s=0).left
    assert list(histories.known) == []
