"""Removes ended runs from a journal, the oldest first.

A run that has ended leaves its state, what was seen, its history, and what else belongs to it. All
of it goes, ``keep_ns`` after the last change, or earlier if the ended runs of its tenant have more
than their share. What stays is a tombstone: its names, its number of rows and a time.

A run has ended when nothing of it waits, no step is open, and its trackers have every row.

The tombstone is what lets a late sender go on: rows are numbered from where they were, so the
tracker's run takes them, and points up to the time are dropped and counted, since it is not known
any more which of them are in the run. A hundred thousand tombstones are kept, of some 200 bytes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_rl.bridge.journal.deliveries import all_ended
from otel_rl.bridge.journal.interface import MADE, Connection, Journal
from otel_rl.bridge.journal.log import Log
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = ["EVERY_RUN", "Removed", "Retention", "delete_run"]

EVERY_RUN: Final = "1 = 1"
"""Condition on ``runs`` where no other bridge may be at work."""

_NS_PER_S: Final = 1_000_000_000

# A run that ended just now may go on: a process whose exit report is late, a second attempt.
_MIN_AGE_NS: Final = 3_600 * _NS_PER_S

_TOMBSTONES: Final = 100_000

# In one transaction.
_RUNS_AT_ONCE: Final = 100
_REMOVED_BYTES: Final = 4 << 20
_REMOVED_AT_ONCE: Final = 200  # records of a history

_TABLES: Final = (
    *("log", "states", "descriptions", "rows", "deliveries"),
    *("archive", "waiting", "set_aside", "runs"),
)
"""All that have something of a run."""

_IS_QUIET: Final = (
    "is_open = 0"
    " AND NOT EXISTS (SELECT 1 FROM waiting AS w WHERE w.run_id = runs.run_id AND w.bytes <> 0)"
)


@dataclass(slots=True)
class Removed:
    """Runs that one turn has removed.

    Attributes:
        too_old: Runs that ended ``keep_ns`` ago.
        over_share: Runs that ended later, for the sake of their tenant's share.
        unarchived: Their values that were in no file of the archive yet.
    """

    too_old: list[ExperimentKey] = field(default_factory=list)
    over_share: list[ExperimentKey] = field(default_factory=list)
    unarchived: int = 0

    @property
    def keys(self) -> Sequence[ExperimentKey]:
        """All of them."""
        return [*self.too_old, *self.over_share]


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run that may go.

    Attributes:
        key: The run.
        changed_ns: When it changed last, by the bridge's clock.
        size: Bytes of it.
    """

    key: ExperimentKey
    changed_ns: int
    size: int


class Retention:
    """Keeps the data of ended runs within bounds. One thread calls ``turn``.

    Args:
        journal: Where they are.
        trackers: Those that must have every row.
        keep_ns: How long an ended run stays.
        share_of: Bytes that the ended runs of the same tenant may take, and that tenant's name.
        late_ns: How far ahead of the bridge's clock a point may be.
        busy: Runs on which this bridge works although they have ended.
        free: Condition on ``runs``: no other bridge works on it.
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
        self._has_ended = f"{_IS_QUIET} AND (next_row = 0 OR {all_ended(len(trackers))})"
        self._keep_ns = keep_ns
        self._share_of = share_of
        self._late_ns = late_ns
        self._busy = busy
        self._free = free

    def turn(self, now_ns: int) -> Removed:
        """Remove runs that are too old or beyond a share at ``now_ns``.

        Raises:
            JournalError: The journal is unreachable. Some may be removed.
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
        for some in _in_parts(chosen):
            for one, unarchived in self._remove(some, now_ns):
                removed.unarchived += unarchived
                is_old = self._is_old(one, now_ns)
                (removed.too_old if is_old else removed.over_share).append(one.key)
        if removed.keys:
            self._journal.write(_remove_old_tombstones)
        return removed

    def _is_old(self, one: _Ended, now_ns: int) -> bool:
        return one.changed_ns <= now_ns - self._keep_ns

    def _ended(self, before_ns: int) -> Sequence[_Ended]:
        """Ended runs that changed last before that time, the oldest first."""
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

    def _remove(self, some: Sequence[_Ended], now_ns: int) -> Sequence[tuple[_Ended, int]]:
        """Remove runs that are as they were. Returns those that are gone, see ``_removed``."""
        for one in some:
            if one.size > _REMOVED_BYTES:
                self._remove_history(one)
        # In this order everywhere, so that no two wait for each other.
        in_order = sorted(some, key=lambda one: one.key)
        return self._journal.write(
            lambda connection: [
                (one, unarchived)
                for one in in_order
                if (unarchived := self._removed(connection, one, now_ns)) is not None
            ]
        )

    def _remove_history(self, one: _Ended) -> None:
        """Remove the history of a run, part by part. Nothing depends on them."""
        run = run_id(one.key.experiment, one.key.trial)
        while self._journal.write(lambda connection: _remove_some_history(connection, run)):
            pass

    def _removed(self, connection: Connection, one: _Ended, now_ns: int) -> int | None:
        """Remove one run. Returns its values without a file; None if it has changed and stays."""
        run = run_id(one.key.experiment, one.key.trial)
        # No batch can be added to it from here on; earlier ones are seen by what follows.
        connection.execute(
            f"SELECT number FROM runs WHERE run_id = ?{self._journal.lock_row}",  # noqa: S608
            (run,),
        ).fetchall()
        found = connection.execute(
            f"SELECT next_row FROM runs WHERE run_id = ? AND changed_ns = ?"  # noqa: S608
            f" AND {self._has_ended} AND {self._free}",
            (run, one.changed_ns, *self._trackers),
        ).fetchone()
        if found is None:
            return None
        (unarchived,) = connection.execute(
            "SELECT COALESCE(SUM(samples), 0) FROM archive WHERE run_id = ?", (run,)
        ).fetchone()
        lost_ns = one.changed_ns + self._late_ns
        _bury(connection, one.key, found[0], lost_ns=lost_ns, now_ns=now_ns)
        return int(unarchived)


def delete_run(journal: Journal, key: ExperimentKey, now_ns: int) -> None:
    """Remove a run as it is, with what waits of it; no bridge may be at work.

    Raises:
        JournalError: The journal is unreachable. Some of the run's history may be removed.
    """
    run = run_id(key.experiment, key.trial)

    def remove(connection: Connection) -> None:
        found = connection.execute("SELECT next_row FROM runs WHERE run_id = ?", (run,)).fetchone()
        if found is not None:
            connection.execute("DELETE FROM batches WHERE run_id = ?", (run,))
            _bury(connection, key, found[0], lost_ns=now_ns, now_ns=now_ns)

    while journal.write(lambda connection: _remove_some_history(connection, run)):
        pass
    journal.write(remove)


def _bury(
    connection: Connection, key: ExperimentKey, next_row: int, *, lost_ns: int, now_ns: int
) -> None:
    """Put a tombstone in place of a run."""
    run = run_id(key.experiment, key.trial)
    connection.execute(
        "INSERT INTO deleted (run_id, experiment, trial, next_row, lost_ns, deleted_ns)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (run_id) DO UPDATE SET next_row = excluded.next_row,"
        " lost_ns = excluded.lost_ns, deleted_ns = excluded.deleted_ns",
        (run, key.experiment, key.trial, next_row, lost_ns, now_ns),
    )
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run,))  # noqa: S608


def _in_parts(ended: Iterable[_Ended]) -> Iterator[Sequence[_Ended]]:
    """Yield the runs to remove in one transaction each, so that no writer waits for long."""
    some: list[_Ended] = []
    size = 0
    for one in ended:
        some.append(one)
        size += one.size
        if len(some) >= _RUNS_AT_ONCE or size > _REMOVED_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _remove_some_history(connection: Connection, run: str) -> bool:
    found = connection.execute(
        "SELECT number FROM log WHERE run_id = ? AND kind = ? ORDER BY number LIMIT ?",
        (run, str(Log.HISTORY), _REMOVED_AT_ONCE),
    ).fetchall()
    connection.executemany("DELETE FROM log WHERE number = ?", found)
    return len(found) == _REMOVED_AT_ONCE


def _remove_old_tombstones(connection: Connection) -> None:
    connection.execute(
        "DELETE FROM deleted WHERE deleted_ns <="
        " (SELECT deleted_ns FROM deleted ORDER BY deleted_ns DESC LIMIT 1 OFFSET ?)",
        (_TOMBSTONES,),
    )
