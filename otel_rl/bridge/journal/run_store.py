"""Run store: numbered rows, the state of each run, and the delivery position of each tracker.

``commit`` is the heart of exactly-once: rows, the state that made them, what was seen, and the
removal of the batches they came from are one transaction. A crash before it repeats the work; after
it, never.

Everything carries a checksum. What is damaged on the disk harms the run that it belongs to, and no
other: a row becomes ``DAMAGED_ROW`` at its number, a state is gone.
"""

import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from otel_rl.bridge.counters import StateFault
from otel_rl.bridge.journal.formats.description_format import encode_description, read_description
from otel_rl.bridge.journal.formats.key_log import readable_keys
from otel_rl.bridge.journal.interface import (
    MADE,
    RECORD_BYTES,
    ROOM_OF_ROWS,
    WAITING,
    Connection,
    Journal,
    checksum,
)
from otel_rl.bridge.journal.ownership import Ownership, SoleOwner, write_owned
from otel_rl.bridge.journal.space_quota import Room, Use, WholeJournal
from otel_rl.errors import LeaseLost
from otel_rl.records import (
    Description,
    ExperimentKey,
    KeySpec,
    Offset,
    RoleStanding,
    Row,
    Table,
)
from otel_rl.run_id import run_id

__all__ = ["DAMAGED_ROW", "Commit", "RunStore", "SavedRun"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

DAMAGED_ROW: Final = "otel_rl/bridge/rows/damaged"
"""The only key of a row that stands in for one that the disk has damaged. Its value is 1."""

_NEVER_NS: Final = -1

_OLD_LOG: Final = (
    f"COALESCE((SELECT SUM(LENGTH(body) + {RECORD_BYTES}) FROM {{}}"  # noqa: S608  # ours
    " WHERE run_id = ? AND newest_ns <= ?), 0)"
)
"""Bytes of a log of a run that is not needed up to a time."""

_CHANGE_RUN: Final = (
    "UPDATE runs SET next_row = ?, is_open = ?, roles = ?, row_bytes = row_bytes + ?,"  # noqa: S608
    " state_bytes = ?, description_bytes = COALESCE(?, description_bytes),"
    f" log_bytes = log_bytes + ? - {_OLD_LOG.format('seen')} - {_OLD_LOG.format('trails')},"
    f" history_bytes = history_bytes + ? - {_OLD_LOG.format('history')},"
    " archive_bytes = archive_bytes + ?,"
    " begun_ns = CASE WHEN begun_ns = 0 THEN ? ELSE begun_ns END, changed_ns = ?,"
    " step_ns = CASE WHEN COALESCE(CAST(? AS BIGINT), step, -1) = COALESCE(step, -1)"
    " THEN step_ns ELSE ? END,"
    " step = COALESCE(CAST(? AS BIGINT), step)"
    " WHERE run_id = ? AND epoch = ? RETURNING number"
)

_PRUNED_AT_ONCE: Final = 2_000
_REMOVED_AT_ONCE: Final = 500  # parameters of one statement


@dataclasses.dataclass(frozen=True, slots=True)
class SavedRun:
    """Stored state from which a run resumes.

    Attributes:
        state: ``Commit.state`` of the last commit; None for a run that is new.
        seen: Every ``Commit.seen`` of the run that was not forgotten, oldest first.
        next_row: The number of the next row; not 0 without a state if the state is damaged.
        spans: Every ``Commit.spans`` of the run that was not forgotten, oldest first.
        fault: Why there is no state though one was kept; it was logged.
        lost_ns: It is unknown which points up to this time were taken; 0 if it is known.
            The run was removed, see ``Retention``.
        keys: Every ``Commit.keys`` of the run, oldest first.
    """

    state: bytes | None
    seen: Sequence[bytes]
    next_row: int
    spans: Sequence[bytes]
    fault: StateFault | None = dataclasses.field(default=None, compare=False)
    lost_ns: int = 0
    keys: Sequence[bytes] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """Changes of one run in a transaction.

    Attributes:
        key: The run.
        rows: New rows, numbered on from the last.
        next_row: The number that the next row will get.
        state: What made them, encoded, to go on from after a restart. Opaque here.
        taken: The batches that are in the rows and the state. They need not be all before the last:
            where several bridges accept, one may become visible after another with a higher number.
        is_open: Whether time alone may bring a row.
        seen: What was taken that the state does not hold, and the newest time in it; or None.
        forgotten_ns: What was seen up to this time is not needed any more.
        description: What the run is; None if that is as it was.
        spans: Those that came and are still needed, with the latest of their ends; or None.
        spans_forgotten_ns: Spans that ended up to this time are not needed any more.
        history: What a diagnosis goes by that became known, and when; or None.
        history_forgotten_ns: What became known up to this time is not needed any more.
        roles: How each role stands, for people who look.
        epoch: The turn in which all this was made, see ``Ownership``.
        keys: What the keys mean that are in a row for the first time, encoded; or None.
        archive: Parts of the archive: number of values and ``ArchivedPart``.
        step: The newest step, for people who look; None before the first.
    """

    key: ExperimentKey
    rows: Sequence[Row]
    next_row: int
    state: bytes
    taken: Sequence[Offset] = ()
    is_open: bool = False
    seen: tuple[int, bytes] | None = None
    forgotten_ns: int = 0
    description: Description | None = None
    spans: tuple[int, bytes] | None = None
    spans_forgotten_ns: int = 0
    history: tuple[int, bytes] | None = None
    history_forgotten_ns: int = 0
    roles: Mapping[str, RoleStanding] = dataclasses.field(default_factory=dict)
    epoch: int = 0
    keys: bytes | None = None
    archive: Sequence[tuple[int, bytes]] = ()
    step: int | None = None


class RunStore:
    """The runs of one journal. Any thread may read; one commits.

    Args:
        journal: Where they are.
        max_share: Part of the journal's bound that the rows of one run may take, see ``has_room``.
        owners: Says which runs this bridge may write.
        clock_ns: Nanoseconds since the epoch, for what a person is told.
        room: Holds tenants to their shares.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        max_share: float = 1.0,
        owners: Ownership | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        room: Room | None = None,
    ) -> None:
        self._journal = journal
        self._room = room or WholeJournal()
        self._owners = owners or SoleOwner()
        self._clock_ns = clock_ns
        self._max_row_bytes = int(max_share * journal.max_bytes)
        # Read often and by many threads, each of which puts in what the journal has.
        self._descriptions: dict[ExperimentKey, Description] = {}

    def forget(self, key: ExperimentKey) -> None:
        """Another bridge changes the run from now on."""
        self._descriptions.pop(key, None)

    def commit(self, commits: Sequence[Commit]) -> None:
        """Keep the rows and states, and remove the batches that they were made of.

        Raises:
            JournalFull: No room. Nothing was written.
            ShareUsedUp: No room in a tenant's share. Nothing was written.
            LeaseLost: One of the runs belongs to another bridge now. Nothing was written.
        """
        now_ns = self._clock_ns()
        # In this order everywhere, so that no two wait for each other.
        prepared = [
            _Prepared(commit, now_ns) for commit in sorted(commits, key=lambda one: one.key)
        ]

        uses: dict[ExperimentKey, Use] = {}

        def store(connection: Connection) -> None:
            for one in prepared:
                one.store(connection)
            if self._room.is_shared:
                uses.update((one.key, one.use(connection)) for one in prepared)
                self._room.check(uses)

        self._journal.write(store)
        self._room.made(uses)
        for one in commits:
            if one.description is not None:
                self._descriptions[one.key] = one.description

    def description(self, key: ExperimentKey) -> Description:
        """Return the run's description; the same object until it changes."""
        known = self._descriptions.get(key)
        if known is None:
            run = run_id(key.experiment, key.trial)
            with self._journal.read() as connection:
                found = connection.execute(
                    "SELECT body, crc FROM descriptions WHERE run_id = ?", (run,)
                ).fetchone()
            read = read_description(key, *found) if found else Description()
            known = self._descriptions.setdefault(key, read)
        return known

    def set_aside(self, key: ExperimentKey, offset: Offset) -> None:
        """Move a batch that cannot be decoded out of the spool; it is kept for inspection."""
        run = run_id(key.experiment, key.trial)

        def move(connection: Connection) -> None:
            connection.execute(
                "INSERT INTO set_aside (position, run_id, signal, received_ns, payload, crc)"
                " SELECT position, run_id, signal, received_ns, payload, crc FROM batches"
                " WHERE position = ?",
                (offset,),
            )
            connection.execute("DELETE FROM batches WHERE position = ?", (offset,))
            # Counted anew: a damaged batch may not be as long as it was.
            connection.execute("DELETE FROM waiting WHERE run_id = ?", (run,))
            connection.execute(
                "INSERT INTO waiting (run_id, shard, bytes)"
                " SELECT run_id, shard, SUM(LENGTH(payload)) FROM batches WHERE run_id = ?"
                " GROUP BY run_id, shard"
                " ON CONFLICT (run_id, shard) DO UPDATE SET bytes = excluded.bytes",
                (run,),
            )

        self._write(key, move)

    def spooled_bytes(self) -> Mapping[ExperimentKey, int]:
        """Return the bytes that wait to be made into rows, of experiments with any."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial, SUM(bytes) FROM runs"
                " JOIN waiting ON waiting.run_id = runs.run_id"
                " GROUP BY experiment, trial HAVING SUM(bytes) > 0"
            ).fetchall()
        return {ExperimentKey(experiment, trial): int(size) for experiment, trial, size in found}

    def has_room(self, key: ExperimentKey) -> bool:
        """Return whether the rows of the run and its tenant's data leave room for more.

        Rows that a tracker does not take may not use up the room of other runs: then the batches of
        the run wait, and in the end its senders.
        """
        return self._room.is_left(key) and self._number(key, ROOM_OF_ROWS) < self._max_row_bytes

    def runs(self) -> Sequence[ExperimentKey]:
        """Every run of the journal."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs ORDER BY number"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def unfinished(self, tracker: str) -> Sequence[ExperimentKey]:
        """The runs with rows that the tracker's run was not closed with."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs LEFT JOIN deliveries AS d"
                " ON d.run_id = runs.run_id AND d.tracker = ?"
                " WHERE runs.next_row > COALESCE(finished_row, 0) ORDER BY runs.number",
                (tracker,),
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def open_runs(self) -> Sequence[ExperimentKey]:
        """The runs whose state holds samples that stand in no row yet."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs WHERE is_open = 1 ORDER BY number"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def saved(self, key: ExperimentKey) -> SavedRun:
        """Return the state from which the run resumes."""
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            state = connection.execute(
                "SELECT body, crc FROM states WHERE run_id = ?", (run,)
            ).fetchone()
            seen = _log_of(connection, "seen", run)
            spans = _log_of(connection, "trails", run)
            keys = _log_of(connection, "keys", run)
        found, fault = _sound(key, *state) if state else (None, None)
        lost_ns = self._number(key, "lost_ns")
        return SavedRun(found, seen, self.next_row(key), spans, fault, lost_ns, keys)

    def keys(self, key: ExperimentKey) -> Sequence[KeySpec]:
        """Return the meaning of the tracker keys of the run, in order of appearance.

        A key that is in a row is here, unless the disk has damaged it.
        """
        with self._journal.read() as connection:
            parts = _log_of(connection, "keys", run_id(key.experiment, key.trial))
        return readable_keys(parts)

    def history(self, key: ExperimentKey) -> Sequence[bytes]:
        """Every ``Commit.history`` of the run that was not forgotten, oldest first."""
        with self._journal.read() as connection:
            return _log_of(connection, "history", run_id(key.experiment, key.trial))

    def is_ours(self, key: ExperimentKey) -> bool:
        """Return whether this bridge may write the run now."""
        return self._owners.epoch(key) is not None

    def next_row(self, key: ExperimentKey) -> int:
        """The number that the run's next row will get; 0 for a run that is new."""
        return self._number(key, "next_row")

    def rows(self, key: ExperimentKey, *, start: int, limit: int) -> Sequence[Row]:
        """Up to ``limit`` rows from number ``start`` on, or from the first that was not pruned.

        Ascending and without gaps: ``DAMAGED_ROW`` stands for one that is not as it was written.

        Raises:
            LeaseLost: They are another bridge's to write.
        """
        if not self.is_ours(key):
            raise LeaseLost(f"{key} belongs to another bridge.")
        with self._journal.read() as connection:
            found = connection.execute(
                # One statement, so that bounds and rows are of the same moment.
                "SELECT pruned_row, next_row, r.number, r.body, r.crc FROM runs"
                " LEFT JOIN rows AS r ON r.run_id = runs.run_id AND r.number >= ?"
                " AND r.number < ? + CASE WHEN pruned_row > ? THEN pruned_row ELSE ? END"
                " WHERE runs.run_id = ? ORDER BY r.number",
                (start, limit, start, start, run_id(key.experiment, key.trial)),
            ).fetchall()
        if not found:
            return []
        pruned_row, next_row, *_ = found[0]
        first = max(start, pruned_row)
        end = min(first + limit, next_row)
        run = run_id(key.experiment, key.trial)
        sound = {
            number: body for _, _, number, body, crc in found if checksum(body, run, number) == crc
        }
        rows: list[Row] = []
        for number in range(first, end):
            if number in sound:
                rows.append(_decode(number, sound[number]))
            else:
                _log.error("Row %d of %s is damaged in the journal. Check the disk.", number, key)
                # It stands where its neighbour does on the axes.
                step, time_ns = (rows[-1].step, rows[-1].time_ns) if rows else (0, 0)
                rows.append(Row(number, step, time_ns, {DAMAGED_ROW: 1}))
        return rows

    @property
    def identity(self) -> str:
        """The journal's own, so that a tracker can tell its rows from those of another."""
        return self._journal.identity

    def confirmed(self, key: ExperimentKey, tracker: str, next_row: int) -> None:
        """Remember that ``tracker`` has every row before ``next_row``.

        Raises:
            JournalFull: No room. Nothing was written.
        """
        run = run_id(key.experiment, key.trial)
        self._write(
            key,
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, next_row, confirmed_ns)"
                " VALUES (?, ?, ?, ?) ON CONFLICT (run_id, tracker) DO UPDATE"
                " SET next_row = excluded.next_row, confirmed_ns = excluded.confirmed_ns",
                (run, tracker, next_row, self._clock_ns()),
            ),
        )

    def prune(self, key: ExperimentKey, tracker: str, below: int) -> None:
        """Remove the rows before ``below``, but none that ``tracker`` has not confirmed.

        Raises:
            JournalFull: No room even for that. Some may be removed.
        """
        run = run_id(key.experiment, key.trial)
        while self._write(key, partial(_remove_rows, run=run, tracker=tracker, below=below)):
            pass

    def settled(self, tracker: str) -> Sequence[ExperimentKey]:
        """Runs with which there is nothing to do until something new comes.

        Nothing waits or is open, everything is archived, ``tracker`` has finished them, and their
        rows are gone, or will stay for ever because it confirms none.
        """
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs"
                " JOIN deliveries AS d ON d.run_id = runs.run_id AND d.tracker = ?"
                " WHERE is_open = 0 AND archive_bytes = 0 AND finished_row = runs.next_row"
                " AND (row_bytes = 0 OR d.next_row < runs.next_row) AND NOT EXISTS (SELECT 1"
                " FROM waiting WHERE waiting.run_id = runs.run_id AND bytes <> 0)",
                (tracker,),
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def prune_finished(self, tracker: str, *, confirmed_before_ns: int) -> None:
        """Remove the rows of our runs that ``tracker`` has finished, and had wholly by that time.

        Those of a run that has no room for more go at once.
        """
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial, runs.next_row, confirmed_ns FROM runs"
                " JOIN deliveries AS d ON d.run_id = runs.run_id AND d.tracker = ?"
                " WHERE row_bytes > 0 AND finished_row = runs.next_row"
                " AND d.next_row = runs.next_row",
                (tracker,),
            ).fetchall()
        for experiment, trial, next_row, confirmed_ns in found:
            key = ExperimentKey(experiment, trial)
            if not self.is_ours(key):
                continue
            if confirmed_ns <= confirmed_before_ns or not self.has_room(key):
                self.prune(key, tracker, next_row)

    def reported(self, key: ExperimentKey, tracker: str, state: str, error: str) -> None:
        """Remember what keeps ``tracker`` from taking rows, and since when; "" for nothing.

        Raises:
            JournalFull: No room. Nothing was written.
        """
        run = run_id(key.experiment, key.trial)
        self._write(
            key,
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, state, error, error_ns)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, tracker) DO UPDATE SET error_ns ="
                " CASE WHEN deliveries.error = '' THEN excluded.error_ns"
                " ELSE deliveries.error_ns END,"
                " state = excluded.state, error = excluded.error",
                (run, tracker, state, error.replace("\0", ""), self._clock_ns()),
            ),
        )

    def opened(self, key: ExperimentKey, tracker: str, location: str) -> None:
        """Remember where ``tracker`` has the run.

        Raises:
            JournalFull: No room. Nothing was written.
        """
        run = run_id(key.experiment, key.trial)
        self._write(
            key,
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, location) VALUES (?, ?, ?)"
                " ON CONFLICT (run_id, tracker) DO UPDATE SET location = excluded.location",
                (run, tracker, location.replace("\0", "")),
            ),
        )

    def finish(self, key: ExperimentKey, tracker: str, next_row: int) -> None:
        """Remember that the tracker's run was closed with every row before ``next_row``."""
        run = run_id(key.experiment, key.trial)
        self._write(
            key,
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, finished_row) VALUES (?, ?, ?)"
                " ON CONFLICT (run_id, tracker) DO UPDATE SET finished_row = excluded.finished_row",
                (run, tracker, next_row),
            ),
        )

    def finished(self, key: ExperimentKey, tracker: str) -> int:
        """Return the last value of ``finish``; 0 if there is none."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT finished_row FROM deliveries WHERE run_id = ? AND tracker = ?",
                (run_id(key.experiment, key.trial), tracker),
            ).fetchone()
        return int(found[0]) if found else 0

    def _write(self, key: ExperimentKey, function: Callable[[Connection], _T]) -> _T:
        return write_owned(self._journal, self._owners, key, function)

    def _number(self, key: ExperimentKey, expression: str) -> int:
        with self._journal.read() as connection:
            found = connection.execute(
                f"SELECT {expression} FROM runs WHERE run_id = ?",  # noqa: S608  # ours
                (run_id(key.experiment, key.trial),),
            ).fetchone()
        return int(found[0]) if found else 0


class _Prepared:
    """A commit as bytes, so that the transaction is short."""

    def __init__(self, commit: Commit, now_ns: int) -> None:
        self.key = commit.key
        self._commit = commit
        self._now_ns = now_ns
        self._run = run_id(commit.key.experiment, commit.key.trial)
        self._state = commit.state
        self._rows = [_encode(self._run, row) for row in commit.rows]
        self._description = (
            None if commit.description is None else encode_description(commit.description)
        )

    def store(self, connection: Connection) -> None:
        commit, run = self._commit, self._run
        is_known = self._change_run(connection)
        if not is_known:  # new, or not ours
            made = connection.execute(
                "INSERT INTO runs (run_id, experiment, trial, epoch) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING RETURNING number",
                (run, commit.key.experiment, commit.key.trial, commit.epoch),
            ).fetchone()
            is_known = made is not None and self._change_run(connection)
        if not is_known:
            raise LeaseLost(f"{commit.key} belongs to another bridge now.")
        connection.execute(
            "INSERT INTO states (run_id, body, crc) VALUES (?, ?, ?) ON CONFLICT (run_id)"
            " DO UPDATE SET body = excluded.body, crc = excluded.crc",
            (run, self._state, checksum(self._state, run)),
        )
        connection.executemany(
            "INSERT INTO rows (run_id, number, body, crc) VALUES (?, ?, ?, ?)", self._rows
        )
        if self._description is not None:
            connection.execute(
                "INSERT INTO descriptions (run_id, body, crc) VALUES (?, ?, ?) ON CONFLICT (run_id)"
                " DO UPDATE SET body = excluded.body, crc = excluded.crc",
                (run, self._description, checksum(self._description, run)),
            )
        if commit.keys is not None:
            _keep_log(connection, "keys", run, (self._now_ns, commit.keys), 0)
        _keep_log(connection, "seen", run, commit.seen, commit.forgotten_ns)
        _keep_log(connection, "trails", run, commit.spans, commit.spans_forgotten_ns)
        _keep_log(connection, "history", run, commit.history, commit.history_forgotten_ns)
        connection.executemany(
            "INSERT INTO archive (run_id, samples, made_ns, body, crc) VALUES (?, ?, ?, ?, ?)",
            [
                (run, samples, self._now_ns, body, checksum(body, run))
                for samples, body in commit.archive
            ],
        )
        _remove_batches(connection, run, commit.taken)

    def use(self, connection: Connection) -> Use:
        """Return the run's present use of the journal."""
        (waiting, made) = connection.execute(
            f"SELECT {WAITING}, {MADE} FROM runs WHERE run_id = ?",  # noqa: S608  # ours
            (self._run,),
        ).fetchone()
        return Use(int(waiting), int(made))

    def _change_run(self, connection: Connection) -> bool:
        """Change what is known of the run. Returns whether it is there and ours."""
        commit, description = self._commit, self._description
        changed = connection.execute(
            _CHANGE_RUN,
            (
                commit.next_row,
                int(commit.is_open),
                json.dumps(commit.roles),
                sum(len(body) for _, _, body, _ in self._rows),
                len(self._state) + RECORD_BYTES,
                None if description is None else len(description) + RECORD_BYTES,
                _room_of_log(commit.seen, commit.forgotten_ns)
                + _room_of_log(commit.spans, commit.spans_forgotten_ns)
                + (0 if commit.keys is None else len(commit.keys) + RECORD_BYTES),
                *(self._run, commit.forgotten_ns or _NEVER_NS),
                *(self._run, commit.spans_forgotten_ns or _NEVER_NS),
                _room_of_log(commit.history, commit.history_forgotten_ns),
                *(self._run, commit.history_forgotten_ns or _NEVER_NS),
                sum(len(body) + RECORD_BYTES for _, body in commit.archive),
                *(self._now_ns, self._now_ns),
                *(commit.step, self._now_ns, commit.step),
                *(self._run, commit.epoch),
            ),
        ).fetchone()
        return changed is not None


def _remove_batches(connection: Connection, run: str, taken: Sequence[Offset]) -> None:
    freed: Counter[int] = Counter()
    for place in range(0, len(taken), _REMOVED_AT_ONCE):
        some = taken[place : place + _REMOVED_AT_ONCE]
        marks = ", ".join("?" * len(some))
        for shard, size in connection.execute(
            f"DELETE FROM batches WHERE position IN ({marks})"  # noqa: S608  # ours
            " RETURNING shard, LENGTH(payload)",
            some,
        ):
            freed[shard] += size
    connection.executemany(
        "UPDATE waiting SET bytes = bytes - ? WHERE run_id = ? AND shard = ?",
        [(size, run, shard) for shard, size in sorted(freed.items())],
    )


def _log_of(connection: Connection, table: str, run: str) -> list[bytes]:
    """Return the log of a run, oldest first, without damaged records."""
    found = connection.execute(
        f"SELECT body, crc FROM {table} WHERE run_id = ? ORDER BY number",  # noqa: S608  # ours
        (run,),
    ).fetchall()
    return [body for body, crc in found if checksum(body, run) == crc]


def _room_of_log(new: tuple[int, bytes] | None, forgotten_ns: int) -> int:
    """Bytes of what is added to a log, unless it goes at once."""
    return 0 if new is None or new[0] <= forgotten_ns else len(new[1]) + RECORD_BYTES


def _keep_log(
    connection: Connection,
    table: str,
    run: str,
    new: tuple[int, bytes] | None,
    forgotten_ns: int,
) -> None:
    """Add to the log of a run, and remove what is not needed any more."""
    if new is not None:
        newest_ns, body = new
        connection.execute(
            f"INSERT INTO {table} (run_id, newest_ns, body, crc) VALUES (?, ?, ?, ?)",  # noqa: S608  # ours
            (run, newest_ns, body, checksum(body, run)),
        )
    if forgotten_ns:
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ? AND newest_ns <= ?",  # noqa: S608  # ours
            (run, forgotten_ns),
        )


def _remove_rows(connection: Connection, *, run: str, tracker: str, below: int) -> bool:
    """Remove some confirmed rows, so few that no writer waits for long. Returns whether it did."""
    bounds = connection.execute(
        "SELECT pruned_row, d.next_row FROM runs JOIN deliveries AS d ON d.run_id = runs.run_id"
        " AND d.tracker = ? WHERE runs.run_id = ?",
        (tracker, run),
    ).fetchone()
    if bounds is None:
        return False
    first, confirmed = bounds
    end = min(below, confirmed, first + _PRUNED_AT_ONCE)
    if end <= first:
        return False
    (size,) = connection.execute(
        "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM rows WHERE run_id = ? AND number < ?",
        (run, end),
    ).fetchone()
    connection.execute("DELETE FROM rows WHERE run_id = ? AND number < ?", (run, end))
    connection.execute(
        "UPDATE runs SET row_bytes = row_bytes - ?, pruned_row = ? WHERE run_id = ?",
        (size, end, run),
    )
    return True


def _sound(key: ExperimentKey, body: bytes, crc: int) -> tuple[bytes | None, StateFault | None]:
    if checksum(body, run_id(key.experiment, key.trial)) == crc:
        return body, None
    _log.error(
        "The state of %s is damaged in the journal: open steps are lost, and samples that come "
        "again are not recognised. Check the disk.",
        key,
    )
    return None, StateFault.DAMAGED


def _encode(run: str, row: Row) -> tuple[str, int, bytes, int]:
    # The standard library's JSON writes NaN and infinities as words and reads them back.
    fields: list[object] = [row.step, row.time_ns, row.policy_version, dict(row.values)]
    if row.tables or row.labels or row.attempt > 1:
        tables = {key: [table.columns, table.rows] for key, table in row.tables.items()}
        fields.extend([tables, dict(row.labels), row.attempt])
    body = json.dumps(fields, separators=(",", ":")).encode()
    return run, row.number, body, checksum(body, run, row.number)


def _decode(number: int, body: bytes) -> Row:
    step, time_ns, policy_version, values, *more = json.loads(body)
    tables, labels, attempt = more or ({}, {}, 1)
    tables = {key: Table(*table) for key, table in tables.items()}
    return Row(number, step, time_ns, values, policy_version, tables, labels, attempt=attempt)
