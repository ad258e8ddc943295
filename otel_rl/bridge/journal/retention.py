"""Removes ended runs from a journal, the oldest first.

A run that has ended leaves its state, its deduplication data, its history, and other records. All
of them are removed ``keep_ns`` after the last change, or earlier if the ended runs of its tenant
take more than their share. A tombstone stays: the run's names, its number of rows and a time.

A run has ended when none of its batches waits, no step is open, and its trackers have every row.

A run is removed in one transaction. Requests wait meanwhile: a tenth of a second for 10 MiB, which
is more than most runs have left, since rows that trackers have confirmed were removed before.

The tombstone lets a late sender go on: rows are numbered from where they were, so the tracker's run
takes them; points up to the tombstone's time are dropped and counted, since nobody knows any more
which of them are in the run. A hundred thousand tombstones are kept, of some 200 bytes each.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from otel_rl.bridge.journal.deliveries import all_ended
from otel_rl.bridge.journal.interface import MADE, WAITS, Connection, Journal
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

EVERY_RUN: Final = "1 = 1"
"""Condition on ``runs`` where no other bridge may be at work."""

_NS_PER_S: Final = 1_000_000_000

# A run that ended just now may go on: a process whose exit report is late, a second attempt.
_MIN_AGE_NS: Final = 3_600 * _NS_PER_S

_TOMBSTONES: Final = 100_000

_PART: Final = 20_000  # records that one statement removes


@dataclass(slots=True)
class Removed:
    """Counts of the runs that one turn has removed.

    Attributes:
        too_old: Number of runs that ended ``keep_ns`` ago.
        over_share: Number of runs that ended later, removed for the sake of their tenant's share.
        unarchived: Number of their values that were in no file of the archive yet.
    """

    too_old: list[ExperimentKey] = field(default_factory=list)
    over_share: list[ExperimentKey] = field(default_factory=list)
    unarchived: int = 0

    @property
    def keys(self) -> Sequence[ExperimentKey]:
        return [*self.too_old, *self.over_share]


@dataclass(frozen=True, slots=True)
class _Ended:
    """An ended run that may be removed.

    Attributes:
        changed_ns: Time of the run's last change, by the bridge's clock.
        size: Bytes of the run in the journal.
    """

    key: ExperimentKey
    changed_ns: int
    size: int


class Retention:
    """Keeps the data of ended runs within bounds. One thread calls ``turn``.

    Args:
        trackers: Names of the trackers that must have every row.
        keep_ns: Nanoseconds that an ended run stays.
        share_of: Returns the bytes that the ended runs of the same tenant may take, and the
            tenant's name.
        late_ns: How far ahead of the bridge's clock a point's time may be.
        busy: Returns the runs on which this bridge works although they have ended.
        free: SQL condition on ``runs``: no other bridge works on the run.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        trackers: Sequence[str],
        keep_ns: int,
        share_of: Callable[[ExperimentKey], tuple[str, int]],
        late_ns: int = 0,
        busy: Callable[[], Collection[ExperimentKey]] = frozenset,
        free: str = EVERY_RUN,
    ) -> None:
        self._journal = journal
        self._trackers = tuple(trackers)
        self._has_ended = (
            f"is_open = 0 AND NOT {WAITS} AND (next_row = 0 OR {all_ended(len(trackers))})"
        )
        self._keep_ns = keep_ns
        self._share_of = share_of
        self._late_ns = late_ns
        self._busy = busy
        self._free = free

    def turn(self, now_ns: int) -> Removed:
        """Remove runs that are too old or beyond a share at ``now_ns``.

        Raises:
            JournalError: The journal is unreachable. Some runs may be removed.
        """
        ended, busy = self._ended(now_ns - _MIN_AGE_NS), set(self._busy())
        used: Counter[str] = Counter()
        for one in ended:
            used[self._share_of(one.key)[0]] += one.size
        chosen: list[_Ended] = []
        for one in ended:
            tenant, share = self._share_of(one.key)
            if one.key not in busy and (self._is_old(one, now_ns) or used[tenant] > share):
                used[tenant] -= one.size
                chosen.append(one)
        removed = Removed()
        for one in chosen:
            # A transaction for each, so that no writer waits for long.
            unarchived = self._journal.write(partial(self._remove, one=one, now_ns=now_ns))
            if unarchived is not None:
                removed.unarchived += unarchived
                is_old = self._is_old(one, now_ns)
                (removed.too_old if is_old else removed.over_share).append(one.key)
        if removed.keys:
            self._journal.write(_remove_old_tombstones)
        return removed

    def _is_old(self, one: _Ended, now_ns: int) -> bool:
        return one.changed_ns <= now_ns - self._keep_ns

    def _ended(self, before_ns: int) -> Sequence[_Ended]:
        with self._journal.read() as connection:
            found = connection.execute(
                f"SELECT experiment, trial, changed_ns, {MADE} FROM runs"  # noqa: S608  # ours
                f" WHERE changed_ns <= ? AND {self._has_ended} AND {self._free}"
                " ORDER BY changed_ns, number",
                (before_ns, *self._trackers),
            ).fetchall()
        return [
            _Ended(ExperimentKey(experiment, trial), int(changed_ns), int(size))
            for experiment, trial, changed_ns, size in found
        ]

    def _remove(self, connection: Connection, *, one: _Ended, now_ns: int) -> int | None:
        """Remove a run.

        Returns how many values no file has; None if the run has changed and stays.
        """
        run = run_id(one.key.experiment, one.key.trial)
        # No batch can be added to it from here on; earlier ones are seen by what follows.
        connection.execute(
            f"SELECT number FROM runs WHERE run_id = ?{self._journal.lock_row}",  # noqa: S608
            (run,),
        ).fetchall()
        found = connection.execute(
            f"SELECT number FROM runs WHERE run_id = ? AND changed_ns = ?"  # noqa: S608
            f" AND {self._has_ended} AND {self._free}",
            (run, one.changed_ns, *self._trackers),
        ).fetchone()
        if found is None:
            return None
        (unarchived,) = connection.execute(
            "SELECT COALESCE(SUM(samples), 0) FROM archive WHERE run_id = ?", (run,)
        ).fetchone()
        _bury(connection, run, lost_ns=one.changed_ns + self._late_ns, now_ns=now_ns)
        return int(unarchived)


def delete_run(journal: Journal, key: ExperimentKey, now_ns: int, free: str = EVERY_RUN) -> bool:
    """Remove a run with its waiting batches.

    Args:
        now_ns: Points up to this time are not taken any more.
        free: SQL condition on ``runs``: no bridge works on the run.

    Returns:
        Whether the run was removed; it stays if a bridge works on it.

    Raises:
        JournalError: The journal is unreachable.
    """
    run = run_id(key.experiment, key.trial)

    def delete(connection: Connection) -> bool:
        # No bridge can begin to work on it from here on.
        connection.execute(
            f"SELECT number FROM runs WHERE run_id = ?{journal.lock_row}",  # noqa: S608
            (run,),
        ).fetchall()
        is_free = connection.execute(
            f"SELECT number FROM runs WHERE run_id = ? AND {free}",  # noqa: S608  # ours
            (run,),
        ).fetchone()
        if is_free is not None:
            _bury(connection, run, lost_ns=now_ns, now_ns=now_ns)
        return is_free is not None

    return journal.write(delete)


def begin_run(connection: Connection, key: ExperimentKey, now_ns: int, *, epoch: int = 0) -> None:
    """Put a run into the journal, unless it is there. A removed run keeps its row numbers."""
    run = run_id(key.experiment, key.trial)
    connection.execute(
        "INSERT INTO runs"
        " (run_id, experiment, trial, changed_ns, epoch, next_row, pruned_row, lost_ns)"
        " SELECT ?, ?, ?, ?, ?, COALESCE(MAX(next_row), 0), COALESCE(MAX(next_row), 0),"
        " COALESCE(MAX(lost_ns), 0) FROM deleted WHERE run_id = ?"
        " ON CONFLICT DO NOTHING",
        (run, key.experiment, key.trial, now_ns, epoch, run),
    )


def _bury(connection: Connection, run: str, *, lost_ns: int, now_ns: int) -> None:
    """Replace a run and all its records by a tombstone."""
    connection.execute(
        "INSERT INTO deleted"
        " (run_id, experiment, trial, next_row, lost_ns, deleted_ns)"
        " SELECT run_id, experiment, trial, next_row, CAST(? AS BIGINT), CAST(? AS BIGINT)"
        " FROM runs WHERE run_id = ?"
        " ON CONFLICT (run_id) DO UPDATE SET next_row = excluded.next_row,"
        " lost_ns = excluded.lost_ns, deleted_ns = excluded.deleted_ns",
        (lost_ns, now_ns, run),
    )
    # The run first, so that nothing is counted for it any more.
    connection.execute("DELETE FROM runs WHERE run_id = ?", (run,))
    for table in ("rows", "log", "archive"):
        # In parts, because a server ends a statement that takes long.
        while True:
            last = connection.execute(
                f"SELECT number FROM {table} WHERE run_id = ? ORDER BY number"  # noqa: S608  # ours
                " LIMIT 1 OFFSET ?",
                (run, _PART),
            ).fetchone()
            if last is None:
                break
            connection.execute(
                f"DELETE FROM {table} WHERE run_id = ? AND number < ?",  # noqa: S608  # ours
                (run, *last),
            )
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run,))  # noqa: S608  # ours


def _remove_old_tombstones(connection: Connection) -> None:
    connection.execute(
        "DELETE FROM deleted WHERE deleted_ns <="
        " (SELECT deleted_ns FROM deleted ORDER BY deleted_ns DESC LIMIT 1 OFFSET ?)",
        (_TOMBSTONES,),
    )
