"""What was made of the batches: numbered rows, each run's state, and how far trackers have come.

``commit`` is the heart of exactly-once: rows, the state that made them, and the removal of the
batches they came from are one transaction. A crash before it repeats the work; after it, never.
"""

import json
import pickle
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from otel_rl.bridge.journal import Journal
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey, Offset, Row
from otel_rl.semconv.run_id import run_id

__all__ = ["Commit", "Ledger"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What one run gains in a transaction.

    Attributes:
        key: The run.
        rows: New rows, numbered on from the last.
        next_row: The number that the next row will get.
        state: What made them, to go on from after a restart; anything that pickles.
    """

    key: ExperimentKey
    rows: Sequence[Row]
    next_row: int
    state: object


class Ledger:
    """The runs of one journal. Any thread may read; one commits."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def commit(self, commits: Iterable[Commit], *, read_through: Offset) -> None:
        """Keep the rows and states, and remove the batches through ``read_through``.

        Raises:
            JournalFull: No room. Nothing was written.
        """
        prepared = [
            (
                run_id(commit.key.experiment, commit.key.trial),
                commit,
                # Only this bridge's own file is ever unpickled.
                pickle.dumps(commit.state, protocol=pickle.HIGHEST_PROTOCOL),
                [(row.number, *_encode(row)) for row in commit.rows],
            )
            for commit in commits
        ]

        def store(connection: sqlite3.Connection) -> None:
            for run, commit, state, rows in prepared:
                connection.execute(
                    "INSERT INTO runs (run_id, experiment, trial, next_row, state)"
                    " VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE"
                    " SET next_row = excluded.next_row, state = excluded.state",
                    (run, commit.key.experiment, commit.key.trial, commit.next_row, state),
                )
                connection.executemany(
                    "INSERT INTO rows (run_id, number, body, crc) VALUES (?, ?, ?, ?)",
                    [(run, *row) for row in rows],
                )
            connection.execute("DELETE FROM batches WHERE offset <= ?", (read_through,))

        self._journal.write(store)

    def set_aside(self, offset: Offset) -> None:
        """Move a batch that cannot be decoded out of the spool; it is kept for inspection."""

        def move(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO set_aside SELECT * FROM batches WHERE offset = ?", (offset,)
            )
            connection.execute("DELETE FROM batches WHERE offset = ?", (offset,))

        self._journal.write(move)

    def runs(self) -> Sequence[ExperimentKey]:
        """Every run of the journal."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs ORDER BY rowid"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def state(self, key: ExperimentKey) -> object | None:
        """What ``commit`` kept last for the run; None for a run that is new."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT state FROM runs WHERE run_id = ?", (run_id(key.experiment, key.trial),)
            ).fetchone()
        if found is None or found[0] is None:
            return None
        state: object = pickle.loads(found[0])  # noqa: S301  # written by this bridge alone
        return state

    def next_row(self, key: ExperimentKey) -> int:
        """The number that the run's next row will get; 0 for a run that is new."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT next_row FROM runs WHERE run_id = ?", (run_id(key.experiment, key.trial),)
            ).fetchone()
        return int(found[0]) if found else 0

    def rows(self, key: ExperimentKey, *, start: int, limit: int) -> Sequence[Row]:
        """Up to ``limit`` rows from number ``start`` on, ascending and without gaps.

        Raises:
            JournalError: A row does not have the checksum that it was written with.
        """
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT number, body, crc FROM rows WHERE run_id = ? AND number >= ?"
                " ORDER BY number LIMIT ?",
                (run_id(key.experiment, key.trial), start, limit),
            ).fetchall()
        return [_decode(key, number, body, crc) for number, body, crc in found]

    def confirmed(self, key: ExperimentKey, tracker: str, next_row: int) -> None:
        """Remember that ``tracker`` has every row before ``next_row``."""
        run = run_id(key.experiment, key.trial)
        self._journal.write(
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, next_row) VALUES (?, ?, ?)"
                " ON CONFLICT (run_id, tracker) DO UPDATE SET next_row = excluded.next_row",
                (run, tracker, next_row),
            )
        )

    def finish(self, key: ExperimentKey, tracker: str, next_row: int) -> None:
        """Remember that the tracker's run was closed with every row before ``next_row``."""
        run = run_id(key.experiment, key.trial)
        self._journal.write(
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, finished_row) VALUES (?, ?, ?)"
                " ON CONFLICT (run_id, tracker) DO UPDATE SET finished_row = excluded.finished_row",
                (run, tracker, next_row),
            )
        )

    def finished(self, key: ExperimentKey, tracker: str) -> int:
        """What ``finish`` remembered last; 0 if nothing."""
        return self._delivery(key, tracker, "finished_row")

    def delivered(self, key: ExperimentKey, tracker: str) -> int:
        """What ``confirmed`` remembered last; 0 if nothing."""
        return self._delivery(key, tracker, "next_row")

    def _delivery(self, key: ExperimentKey, tracker: str, column: str) -> int:
        with self._journal.read() as connection:
            found = connection.execute(
                f"SELECT {column} FROM deliveries WHERE run_id = ? AND tracker = ?",  # noqa: S608  # a column of ours
                (run_id(key.experiment, key.trial), tracker),
            ).fetchone()
        return int(found[0]) if found else 0


def _encode(row: Row) -> tuple[bytes, int]:
    # The standard library's JSON writes NaN and infinities as words and reads them back.
    body = json.dumps(
        [row.step, row.time_ns, row.policy_version, dict(row.values)], separators=(",", ":")
    ).encode()
    return body, zlib.crc32(body)


def _decode(key: ExperimentKey, number: int, body: bytes, crc: int) -> Row:
    if zlib.crc32(body) != crc:
        raise JournalError(
            f"Row {number} of {key} is damaged in the journal.",
            hint="Check the disk; the rows before it are intact.",
        )
    step, time_ns, policy_version, values = json.loads(body)
    return Row(number, step, time_ns, values, policy_version)
