"""Run store: numbered rows of each run, the state that made them, and the run's metadata.

Everything carries a checksum. What is damaged on the disk harms the run that it belongs to, and no
other: a row becomes ``DAMAGED_ROW`` at its number, a state is gone.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from otel_rl.bridge.counters import StateFault
from otel_rl.bridge.journal.commit import Commit, PreparedCommit
from otel_rl.bridge.journal.formats.description_format import read_description
from otel_rl.bridge.journal.formats.key_log import readable_keys
from otel_rl.bridge.journal.formats.row_format import decode_row
from otel_rl.bridge.journal.interface import ROOM_OF_ROWS, Connection, Journal, checksum
from otel_rl.bridge.journal.leases.ownership import Ownership, SoleOwner
from otel_rl.bridge.journal.log import Log, read_log
from otel_rl.bridge.journal.space.space_quota import Room, Use, WholeJournal
from otel_rl.errors import LeaseLost
from otel_rl.records import Description, ExperimentKey, KeySpec, Row
from otel_rl.run_id import run_id

__all__ = ["DAMAGED_ROW", "RunStore", "SavedRun"]

_log = logging.getLogger(__name__)

DAMAGED_ROW: Final = "otel_rl/bridge/rows/damaged"
"""The only key of a row that stands in for one that the disk has damaged. Its value is 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class SavedRun:
    """Stored state from which a run resumes.

    Attributes:
        state: ``Commit.state`` of the last commit; None for a run that is new.
        dedup: Every ``Commit.dedup`` of the run that was not forgotten, oldest first.
        next_row: The number of the next row; not 0 without a state if the state is damaged.
        spans: Every ``Commit.spans`` of the run that was not forgotten, oldest first.
        fault: Why there is no state though one was kept; it was logged.
        lost_ns: It is unknown which points up to this time were taken; 0 if it is known.
            The run was removed, see ``Retention``.
        keys: Every ``Commit.keys`` of the run, oldest first.
        steps: Every ``Commit.steps`` of the run that was not forgotten, oldest first.
    """

    state: bytes | None
    dedup: Sequence[bytes]
    next_row: int
    spans: Sequence[bytes]
    fault: StateFault | None = dataclasses.field(default=None, compare=False)
    lost_ns: int = 0
    keys: Sequence[bytes] = dataclasses.field(default_factory=list)
    steps: Sequence[bytes] = dataclasses.field(default_factory=list)


class RunStore:
    """The runs of one journal. Any thread may read; one commits.

    Args:
        journal: Where they are.
        max_share: Part of the journal's bound that the rows of one run may take, see ``has_room``.
        owners: Says which runs this bridge may write.
        clock_ns: Nanoseconds since the epoch, for messages.
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
            PreparedCommit(commit, now_ns) for commit in sorted(commits, key=lambda one: one.key)
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

    def has_room(self, key: ExperimentKey) -> bool:
        """Return whether the rows of the run and its tenant's data leave room for more.

        Rows that a tracker does not take may not use up the room of other runs: then the batches of
        the run wait, and in the end its senders.
        """
        return self._room.is_left(key) and self._number(key, ROOM_OF_ROWS) < self._max_row_bytes

    def open_runs(self) -> Sequence[ExperimentKey]:
        """The runs whose state holds samples that are in no row yet."""
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
            dedup = read_log(connection, run, Log.DEDUP)
            spans = read_log(connection, run, Log.SPANS)
            keys = read_log(connection, run, Log.KEYS)
            steps = read_log(connection, run, Log.STEPS)
        found, fault = _sound(key, *state) if state else (None, None)
        lost_ns = self._number(key, "lost_ns")
        return SavedRun(found, dedup, self.next_row(key), spans, fault, lost_ns, keys, steps)

    def keys(self, key: ExperimentKey) -> Sequence[KeySpec]:
        """Return the meaning of the tracker keys of the run, in order of appearance.

        A key that is in a row is here, unless the disk has damaged it.
        """
        with self._journal.read() as connection:
            parts = read_log(connection, run_id(key.experiment, key.trial), Log.KEYS)
        return readable_keys(parts)

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
                rows.append(decode_row(number, sound[number]))
            else:
                _log.error("Row %d of %s is damaged in the journal. Check the disk.", number, key)
                # It stands where its neighbour does on the axes.
                step, time_ns = (rows[-1].step, rows[-1].time_ns) if rows else (0, 0)
                rows.append(Row(number, step, time_ns, {DAMAGED_ROW: 1}))
        return rows

    @property
    def identity(self) -> str:
        """The journal's own, so that a tracker can distinguish its rows from those of another."""
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
