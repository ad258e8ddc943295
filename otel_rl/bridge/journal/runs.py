"""Runs of a journal: numbered rows, the state that made them, logs and metadata.

A commit is the heart of exactly-once: the new rows of a run, the state that made them, the
deduplication data, and the removal of the batches they came from are one transaction. A crash
before it repeats the work; a crash after it does not.

Every record carries a checksum. Damage on the disk harms only the run that the record belongs to: a
row becomes ``DAMAGED_ROW`` at its number, a state is gone.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from otel_rl.bridge.counters import StateFault
from otel_rl.bridge.journal.interface import (
    BYTES_BESIDE_ROW,
    ROOM_OF_ROWS,
    Connection,
    Journal,
    Ownership,
    SoleOwner,
    checksum,
)
from otel_rl.bridge.journal.log import Log, change_logs, read_log
from otel_rl.bridge.journal.retention import begin_run
from otel_rl.bridge.journal.state import (
    decode_row,
    encode_description,
    encode_row,
    read_description,
    readable_keys,
)
from otel_rl.errors import LeaseLost
from otel_rl.records import Description, ExperimentKey, KeySpec, Offset, RoleStanding, Row
from otel_rl.run_id import run_id

_log = logging.getLogger(__name__)

_CHANGE_RUN: Final = (
    "UPDATE runs SET next_row = ?, is_open = ?, roles = ?,"
    " begun_ns = CASE WHEN begun_ns = 0 THEN ? ELSE begun_ns END, changed_ns = ?,"
    " step_ns = CASE WHEN COALESCE(CAST(? AS BIGINT), step, -1) = COALESCE(step, -1)"
    " THEN step_ns ELSE ? END,"
    " step = COALESCE(CAST(? AS BIGINT), step)"
    " WHERE run_id = ? AND epoch = ? RETURNING number"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """Changes of one run in a transaction.

    Attributes:
        rows: New rows, numbered on from the last one.
        next_row: The number that the next row will get.
        state: Encoded state of the row stage, to go on from after a restart. Opaque here.
        taken: Offsets of the batches that are in the rows and the state. They need not be all
            before the last: where several bridges accept, one batch may become visible after
            another with a higher number.
        is_open: Whether the passing of time alone may complete a row.
        added: New part of each log, after its newest entry; None for no new part.
        forgotten: Time or number of each log up to which its parts are not needed any more.
        description: The run's metadata; None if it has not changed.
        roles: How the workers of each role stand, for readers of the journal.
        epoch: The turn in which all this was made, see ``Ownership``.
        archive: New parts of the archive: number of values and ``ArchivedPart``.
        step: The newest step, for readers of the journal; None keeps the stored one.
    """

    key: ExperimentKey
    rows: Sequence[Row]
    next_row: int
    state: bytes
    taken: Sequence[Offset] = ()
    is_open: bool = False
    added: Mapping[Log, tuple[int, bytes] | None] = dataclasses.field(default_factory=dict)
    forgotten: Mapping[Log, int] = dataclasses.field(default_factory=dict)
    description: Description | None = None
    roles: Mapping[str, RoleStanding] = dataclasses.field(default_factory=dict)
    epoch: int = 0
    archive: Sequence[tuple[int, bytes]] = ()
    step: int | None = None


class PreparedCommit:
    """A commit encoded as bytes, so that the transaction is short.

    Args:
        now_ns: Time of the commit, in nanoseconds since the epoch.

    Attributes:
        row_bytes: What its rows take on the disk, about.
    """

    def __init__(self, commit: Commit, now_ns: int) -> None:
        self.key = commit.key
        self._commit = commit
        self._now_ns = now_ns
        self._run = run_id(commit.key.experiment, commit.key.trial)
        bodies = [(row.number, encode_row(row, now_ns)) for row in commit.rows]
        self._rows = [
            (self._run, number, body, checksum(body, self._run, number)) for number, body in bodies
        ]
        self.row_bytes = sum(len(body) + BYTES_BESIDE_ROW for _, body in bodies)
        self._description = (
            None if commit.description is None else encode_description(commit.description)
        )

    def store(self, connection: Connection) -> None:
        commit, run = self._commit, self._run
        is_known = self._change_run(connection)
        if not is_known:  # new, or not ours
            begin_run(connection, commit.key, self._now_ns, epoch=commit.epoch)
            is_known = self._change_run(connection)
        if not is_known:
            raise LeaseLost(f"{commit.key} belongs to another bridge now.")
        connection.execute(
            "INSERT INTO states (run_id, body, crc) VALUES (?, ?, ?) ON CONFLICT (run_id)"
            " DO UPDATE SET body = excluded.body, crc = excluded.crc",
            (run, commit.state, checksum(commit.state, run)),
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
        change_logs(connection, run, commit.added, commit.forgotten)
        connection.executemany(
            "INSERT INTO archive (run_id, samples, made_ns, body, crc) VALUES (?, ?, ?, ?, ?)",
            [
                (run, samples, self._now_ns, body, checksum(body, run))
                for samples, body in commit.archive
            ],
        )
        connection.executemany(
            "DELETE FROM batches WHERE position = ?", [(offset,) for offset in commit.taken]
        )

    def _change_run(self, connection: Connection) -> bool:
        """Update the run's record. Returns False if the run is unknown or another bridge's."""
        commit = self._commit
        changed = connection.execute(
            _CHANGE_RUN,
            (
                commit.next_row,
                int(commit.is_open),
                json.dumps(commit.roles),
                *(self._now_ns, self._now_ns),
                *(commit.step, self._now_ns, commit.step),
                *(self._run, commit.epoch),
            ),
        ).fetchone()
        return changed is not None


DAMAGED_ROW: Final = "otel_rl/bridge/rows/damaged"
"""The only key of a row that stands in for one that the disk has damaged. Its value is 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class SavedRun:
    """Stored state from which a run resumes.

    Attributes:
        state: ``Commit.state`` of the last commit; None for a run that is new.
        next_row: Number of the next row; not 0 without a state if the state is damaged.
        logs: The parts of each log that were not forgotten, oldest first, without the logs that
            only readers of the run need: the history, the spans of chosen steps, rollouts.
        fault: Why there is no state although one was stored; the reason was logged.
        lost_ns: Time up to which nobody knows which points were taken, as the run was removed (see
            ``Retention``); 0 if that is known.
    """

    state: bytes | None
    next_row: int
    logs: Mapping[Log, Sequence[bytes]] = dataclasses.field(default_factory=dict)
    fault: StateFault | None = dataclasses.field(default=None, compare=False)
    lost_ns: int = 0

    def log(self, kind: Log) -> Sequence[bytes]:
        return self.logs.get(kind, ())


class Shares(Protocol):
    """Room of the journal that the tenants of runs have left. Any thread may call any method."""

    def is_left(self, key: ExperimentKey, /) -> bool:
        """Return whether more of the tenant's batches may be made into rows."""
        ...

    def is_left_for_rows(self, key: ExperimentKey, /) -> bool:
        """Return whether the tenant's begun steps may become rows."""
        ...

    def add_rows(self, key: ExperimentKey, n_bytes: int, /) -> None:
        """Count stored rows."""
        ...


class RunStore:
    """The runs of one journal. Any thread may read; one thread commits.

    Args:
        max_share: Share of the journal's bound that the rows of one run may take, see ``has_room``.
        clock_ns: Clock in nanoseconds since the epoch, for messages.
        shares: Room that the tenants of runs have left.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        max_share: float = 1.0,
        owners: Ownership | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        shares: Shares | None = None,
    ) -> None:
        self._journal = journal
        self._shares = shares
        self._owners = owners or SoleOwner()
        self._clock_ns = clock_ns
        self._max_row_bytes = int(max_share * journal.max_bytes)
        # Read often and by many threads, each of which puts in what the journal has.
        self._descriptions: dict[ExperimentKey, Description] = {}

    def forget(self, key: ExperimentKey) -> None:
        """Read the run's description again at its next use: another bridge may have changed it."""
        self._descriptions.pop(key, None)

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store the rows and states, and remove the batches that they were made of.

        Raises:
            JournalFull: There is no room. Nothing was written.
            LeaseLost: One of the runs belongs to another bridge now. Nothing was written.
        """
        now_ns = self._clock_ns()
        # In this order everywhere, so that no two wait for each other.
        prepared = [
            PreparedCommit(commit, now_ns) for commit in sorted(commits, key=lambda one: one.key)
        ]

        def store(connection: Connection) -> None:
            for one in prepared:
                one.store(connection)

        self._journal.write(store)
        if self._shares is not None:
            for made in prepared:
                self._shares.add_rows(made.key, made.row_bytes)
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

    def has_room(self, key: ExperimentKey) -> bool:
        """Return whether a run's rows and its tenant's data leave room for more batches.

        Rows that a tracker does not take may not use up the room of other runs: then the batches of
        the run wait, and in the end its senders do.
        """
        is_left = self._shares is None or self._shares.is_left(key)
        return is_left and self._number(key, ROOM_OF_ROWS) < self._max_row_bytes

    def has_room_for_begun(self, key: ExperimentKey) -> bool:
        """Return whether the rows of a run's tenant leave room for those of begun steps.

        It does not ask what the tenant's open steps take: they become smaller with each row.
        """
        return self._shares is None or self._shares.is_left_for_rows(key)

    def open_runs(self) -> Sequence[ExperimentKey]:
        """Return the runs whose state holds samples that are in no row yet."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs WHERE is_open = 1 ORDER BY number"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def saved(self, key: ExperimentKey) -> SavedRun:
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT next_row, lost_ns, body, crc FROM runs"
                " LEFT JOIN states ON states.run_id = runs.run_id WHERE runs.run_id = ?",
                (run,),
            ).fetchone()
            if found is None:  # logs that are there are of a life before, which is being removed
                return SavedRun(None, 0)
            logs: dict[Log, Sequence[bytes]] = {
                kind: read_log(connection, run, kind)
                for kind in Log
                if kind not in {Log.HISTORY, Log.CHOSEN, Log.ROLLOUTS}
            }
        next_row, lost_ns, body, crc = found
        state, fault = (None, None) if body is None else _sound(key, body, crc)
        parts = {kind: of_kind for kind, of_kind in logs.items() if of_kind}
        return SavedRun(state, next_row, parts, fault, lost_ns)

    def keys(self, key: ExperimentKey) -> Sequence[KeySpec]:
        """Return the catalogue of the run's tracker keys, in order of appearance.

        A key that is in a row is in the catalogue, unless the disk has damaged it.
        """
        with self._journal.read() as connection:
            parts = read_log(connection, run_id(key.experiment, key.trial), Log.KEYS)
        return readable_keys(parts)

    def is_ours(self, key: ExperimentKey) -> bool:
        return self._owners.epoch(key) is not None

    def next_row(self, key: ExperimentKey) -> int:
        return self._number(key, "next_row")

    def rows(self, key: ExperimentKey, *, start: int, limit: int) -> Sequence[Row]:
        """Return up to ``limit`` rows from number ``start`` on, or from the first not pruned.

        The rows ascend without gaps: ``DAMAGED_ROW`` stands for one that the disk has damaged.

        Raises:
            LeaseLost: Another bridge writes the rows of this run.
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
                rows.append(decode_row(number, sound[number]))
            else:
                _log.error("Row %d of %s is damaged in the journal. Check the disk.", number, key)
                # It stands where its neighbour does on the axes.
                step, time_ns = (rows[-1].step, rows[-1].time_ns) if rows else (0, 0)
                rows.append(Row(number, step, time_ns, {DAMAGED_ROW: 1}))
        return rows

    @property
    def identity(self) -> str:
        return self._journal.identity

    def _number(self, key: ExperimentKey, expression: str) -> int:
        with self._journal.read() as connection:
            found = connection.execute(
                f"SELECT {expression} FROM runs WHERE run_id = ?",  # noqa: S608  # ours
                (run_id(key.experiment, key.trial),),
            ).fetchone()
        return int(found[0]) if found else 0


def _sound(key: ExperimentKey, body: bytes, crc: int) -> tuple[bytes | None, StateFault | None]:
    if checksum(body, run_id(key.experiment, key.trial)) == crc:
        return body, None
    _log.error(
        "The state of %s is damaged in the journal: open steps are lost, and repeated samples "
        "are not recognised. Check the disk.",
        key,
    )
    return None, StateFault.DAMAGED
