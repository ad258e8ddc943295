"""What was made of the batches: numbered rows, each run's state, and how far trackers have come.

``commit`` is the heart of exactly-once: rows, the state that made them, what was seen, and the
removal of the batches they came from are one transaction. A crash before it repeats the work; after
it, never.

Everything carries a checksum. What is damaged on the disk harms the run that it belongs to, and no
other: a row becomes ``DAMAGED_ROW`` at its number, a state is gone.
"""

import dataclasses
import json
import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from otel_rl.bridge.counters import StateFault
from otel_rl.bridge.journal import ROOM_OF_ROWS, Connection, Journal, checksum
from otel_rl.bridge.journal.owners import Owners, SoleOwner
from otel_rl.bridge.unpickle import StateRefused, unpickle
from otel_rl.errors import LeaseLost
from otel_rl.records import (
    Description,
    Device,
    ExperimentKey,
    ExperimentStatus,
    Offset,
    RoleStanding,
    Row,
    Table,
)
from otel_rl.semconv.run_id import run_id

__all__ = ["DAMAGED_ROW", "Commit", "Ledger", "Saved"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

DAMAGED_ROW: Final = "otel_rl/bridge/rows/damaged"
"""The only key of a row that stands in for one that the disk has damaged. Its value is 1."""

_PRUNED_AT_ONCE: Final = 2_000
_REMOVED_AT_ONCE: Final = 500  # parameters of one statement


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """What a run goes on from.

    Attributes:
        state: What ``commit`` kept last; None for a run that is new.
        seen: Every ``Commit.seen`` of the run that was not forgotten, oldest first.
        next_row: The number of the next row; not 0 without a state if the state is damaged.
        spans: Every ``Commit.spans`` of the run that was not forgotten, oldest first.
        fault: Why there is no state though one was kept; it was logged.
    """

    state: object | None
    seen: Sequence[bytes]
    next_row: int
    spans: Sequence[bytes]
    fault: StateFault | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """What one run gains in a transaction.

    Attributes:
        key: The run.
        rows: New rows, numbered on from the last.
        next_row: The number that the next row will get.
        state: What made them, to go on from after a restart; anything that pickles.
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
        epoch: The turn in which all this was made, see ``Owners``.
    """

    key: ExperimentKey
    rows: Sequence[Row]
    next_row: int
    state: object
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


class Ledger:
    """The runs of one journal. Any thread may read; one commits.

    Args:
        journal: Where they are.
        max_share: Part of the journal's bound that the rows of one run may take, see ``has_room``.
        owners: Says which runs this bridge may write.
        clock_ns: Nanoseconds since the epoch, for what a person is told.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        max_share: float = 1.0,
        owners: Owners | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._journal = journal
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
            LeaseLost: One of the runs belongs to another bridge now. Nothing was written.
        """
        # In this order everywhere, so that no two wait for each other.
        prepared = [_Prepared(commit) for commit in sorted(commits, key=lambda one: one.key)]

        def store(connection: Connection) -> None:
            for one in prepared:
                one.store(connection)

        self._journal.write(store)
        for one in commits:
            if one.description is not None:
                self._descriptions[one.key] = one.description

    def description(self, key: ExperimentKey) -> Description:
        """What the run is; the same object until that changes."""
        known = self._descriptions.get(key)
        if known is None:
            run = run_id(key.experiment, key.trial)
            with self._journal.read() as connection:
                found = connection.execute(
                    "SELECT body, crc FROM descriptions WHERE run_id = ?", (run,)
                ).fetchone()
            read = _read_description(key, *found) if found else Description()
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
        """What waits to be made into rows, of the experiments of which anything does."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial, SUM(bytes) FROM runs"
                " JOIN waiting ON waiting.run_id = runs.run_id"
                " GROUP BY experiment, trial HAVING SUM(bytes) > 0"
            ).fetchall()
        return {ExperimentKey(experiment, trial): int(size) for experiment, trial, size in found}

    def has_room(self, key: ExperimentKey) -> bool:
        """Whether the rows of the run leave room for more.

        Rows that a tracker does not take may not use up the room of other runs: then the batches of
        the run wait, and in the end its senders.
        """
        return self._number(key, ROOM_OF_ROWS) < self._max_row_bytes

    def runs(self) -> Sequence[ExperimentKey]:
        """Every run of the journal."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs ORDER BY number"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def open_runs(self) -> Sequence[ExperimentKey]:
        """The runs whose state holds samples that stand in no row yet."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs WHERE is_open = 1 ORDER BY number"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def saved(self, key: ExperimentKey) -> Saved:
        """What the run goes on from."""
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            state = connection.execute(
                "SELECT body, crc FROM states WHERE run_id = ?", (run,)
            ).fetchone()
            seen = _log_of(connection, "seen", run)
            spans = _log_of(connection, "trails", run)
        found, fault = _unpickled(key, *state) if state else (None, None)
        return Saved(found, seen, self.next_row(key), spans, fault)

    def history(self, key: ExperimentKey) -> Sequence[bytes]:
        """Every ``Commit.history`` of the run that was not forgotten, oldest first."""
        with self._journal.read() as connection:
            return _log_of(connection, "history", run_id(key.experiment, key.trial))

    def is_ours(self, key: ExperimentKey) -> bool:
        """Whether this bridge may write the run now."""
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

        Nothing waits or is open, ``tracker`` has finished them, and their rows are gone, or will
        stay for ever because it confirms none.
        """
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs"
                " JOIN deliveries AS d ON d.run_id = runs.run_id AND d.tracker = ?"
                " WHERE is_open = 0 AND finished_row = runs.next_row"
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
        """What ``finish`` remembered last; 0 if nothing."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT finished_row FROM deliveries WHERE run_id = ? AND tracker = ?",
                (run_id(key.experiment, key.trial), tracker),
            ).fetchone()
        return int(found[0]) if found else 0

    def _write(self, key: ExperimentKey, function: Callable[[Connection], _T]) -> _T:
        """Change something of a run, if it is ours at that moment."""
        epoch = self._owners.epoch(key)
        if epoch is None:
            raise LeaseLost(f"{key} belongs to another bridge.")

        def fenced(connection: Connection) -> _T:
            if epoch:
                locked = connection.execute(
                    "UPDATE runs SET epoch = epoch WHERE run_id = ? AND epoch = ? RETURNING number",
                    (run_id(key.experiment, key.trial), epoch),
                ).fetchone()
                if locked is None:
                    raise LeaseLost(f"{key} belongs to another bridge now.")
            return function(connection)

        return self._journal.write(fenced)

    def _number(self, key: ExperimentKey, expression: str) -> int:
        with self._journal.read() as connection:
            found = connection.execute(
                f"SELECT {expression} FROM runs WHERE run_id = ?",  # noqa: S608  # ours
                (run_id(key.experiment, key.trial),),
            ).fetchone()
        return int(found[0]) if found else 0


class _Prepared:
    """A commit as bytes, so that the transaction is short."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._run = run_id(commit.key.experiment, commit.key.trial)
        self._state = pickle.dumps(commit.state, protocol=pickle.HIGHEST_PROTOCOL)
        self._rows = [_encode(self._run, row) for row in commit.rows]
        self._description = (
            None if commit.description is None else _encode_description(commit.description)
        )

    def store(self, connection: Connection) -> None:
        commit, run = self._commit, self._run
        size = sum(len(body) for _, _, body, _ in self._rows)
        values = (commit.next_row, int(commit.is_open), json.dumps(commit.roles), size)
        changed = connection.execute(
            "UPDATE runs SET next_row = ?, is_open = ?, roles = ?, row_bytes = row_bytes + ?"
            " WHERE run_id = ? AND epoch = ? RETURNING number",
            (*values, run, commit.epoch),
        ).fetchone()
        if changed is None:  # new, or not ours
            changed = connection.execute(
                "INSERT INTO runs (run_id, experiment, trial, next_row, is_open, roles, row_bytes)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING number",
                (run, commit.key.experiment, commit.key.trial, *values),
            ).fetchone()
        if changed is None:
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
        _keep_log(connection, "seen", run, commit.seen, commit.forgotten_ns)
        _keep_log(connection, "trails", run, commit.spans, commit.spans_forgotten_ns)
        _keep_log(connection, "history", run, commit.history, commit.history_forgotten_ns)
        _remove_batches(connection, run, commit.taken)


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
    """What the log of a run holds, oldest first; what is damaged is left out."""
    found = connection.execute(
        f"SELECT body, crc FROM {table} WHERE run_id = ? ORDER BY number",  # noqa: S608  # ours
        (run,),
    ).fetchall()
    return [body for body, crc in found if checksum(body, run) == crc]


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
    """Remove some confirmed rows, so few that nobody waits for long. Returns whether it did."""
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


def _unpickled(
    key: ExperimentKey, body: bytes, crc: int
) -> tuple[object | None, StateFault | None]:
    lost = "open steps are lost, and samples that come again are not recognised"
    if checksum(body, run_id(key.experiment, key.trial)) != crc:
        _log.error("The state of %s is damaged in the journal: %s. Check the disk.", key, lost)
        return None, StateFault.DAMAGED
    try:
        return unpickle(body), None
    except StateRefused as exc:
        _log.error(  # it is the sentence that says what to do
            "The state of %s in the journal is refused: %s. No bridge of this version has written "
            "it; %s. Find out who else can write to the journal.",
            key,
            exc,
            lost,
        )
        return None, StateFault.REFUSED


def _encode_description(description: Description) -> bytes:
    return json.dumps(dataclasses.asdict(description), separators=(",", ":")).encode()


def _read_description(key: ExperimentKey, body: bytes, crc: int) -> Description:
    if checksum(body, run_id(key.experiment, key.trial)) != crc:
        _log.error("What is known of %s is damaged in the journal. Check the disk.", key)
        return Description()
    fields = json.loads(body)
    fields["tags"] = tuple(fields["tags"])
    fields["status"] = ExperimentStatus(fields["status"])
    fields["devices"] = {
        prefix: Device(**device | {"workers": tuple(device["workers"])})
        for prefix, device in fields["devices"].items()
    }
    return Description(**fields)


def _encode(run: str, row: Row) -> tuple[str, int, bytes, int]:
    # The standard library's JSON writes NaN and infinities as words and reads them back.
    fields: list[object] = [row.step, row.time_ns, row.policy_version, dict(row.values)]
    if row.tables or row.labels:
        tables = {key: [table.columns, table.rows] for key, table in row.tables.items()}
        fields.extend([tables, dict(row.labels)])
    body = json.dumps(fields, separators=(",", ":")).encode()
    return run, row.number, body, checksum(body, run, row.number)


def _decode(number: int, body: bytes) -> Row:
    step, time_ns, policy_version, values, *more = json.loads(body)
    tables, labels = more or ({}, {})
    tables = {key: Table(*table) for key, table in tables.items()}
    return Row(number, step, time_ns, values, policy_version, tables, labels)
