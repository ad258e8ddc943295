"""Deliveries: the rows of each run that a tracker has confirmed, and the tracker's last error.

Rows are removed only below the number that every tracker of the bridge has confirmed and allows to
remove: an unreachable tracker holds rows back, but delays no other tracker.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from otel_rl.bridge.journal.interface import (
    Connection,
    Journal,
    Ownership,
    SoleOwner,
    write_owned,
)
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

_T = TypeVar("_T")

_PRUNED_AT_ONCE: Final = 2_000


class DeliveryStore:
    """Deliveries of one journal's runs to one tracker. Any thread may call any method.

    Args:
        others: Names of the bridge's other trackers, whose unconfirmed rows stay too. See ``of``.
        has_room: Tells whether a run may get more rows while its present ones are stored.
    """

    def __init__(
        self,
        journal: Journal,
        tracker: str,
        *,
        others: Sequence[str] = (),
        owners: Ownership | None = None,
        has_room: Callable[[ExperimentKey], bool] = lambda _: True,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._journal = journal
        self._tracker = tracker
        self._all = (tracker, *others)
        self._owners = owners or SoleOwner()
        self._has_room = has_room
        self._clock_ns = clock_ns

    def of(self, tracker: str) -> "DeliveryStore":
        """Return the store of another tracker of the bridge, or this one."""
        if tracker == self._tracker:
            return self
        return DeliveryStore(
            self._journal,
            tracker,
            others=[name for name in self._all if name != tracker],
            owners=self._owners,
            has_room=self._has_room,
            clock_ns=self._clock_ns,
        )

    def unfinished(self, *, for_one_launch: bool = False) -> Sequence[ExperimentKey]:
        """Return the runs that have rows with which the tracker's run was not closed.

        Args:
            for_one_launch: Leave out the runs of which this tracker has nothing and which are
                closed at a tracker that this bridge does not have: an earlier launch wrote them
                there.
        """
        elsewhere = (
            " AND NOT (d.run_id IS NULL AND EXISTS (SELECT 1 FROM deliveries AS o"  # noqa: S608  # ours
            " WHERE o.run_id = runs.run_id AND o.finished_row >= runs.next_row"
            f" AND o.tracker NOT IN ({_marks(len(self._all))})))"
        )
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs LEFT JOIN deliveries AS d"  # noqa: S608  # ours
                " ON d.run_id = runs.run_id AND d.tracker = ?"
                " WHERE runs.next_row > COALESCE(d.finished_row, 0)"
                f"{elsewhere * for_one_launch} ORDER BY runs.number",
                (self._tracker, *self._all * for_one_launch),
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def confirmed(self, key: ExperimentKey, next_row: int) -> None:
        """Remember that the tracker has every row before ``next_row``."""
        self._put(key, next_row=next_row, confirmed_ns=self._clock_ns())

    def prune(self, key: ExperimentKey, below: int) -> None:
        """Allow the removal of the rows before ``below``, and remove those that all trackers allow.

        Raises:
            JournalFull: There is no room even for the removal. Some rows may be removed.
        """
        self._remove(key, [self._tracker], below)

    def _remove(self, key: ExperimentKey, allowing: Sequence[str], below: int) -> None:
        """Note which trackers need no rows before ``below``, and remove rows that none needs."""
        run = run_id(key.experiment, key.trial)

        def remove(connection: Connection) -> bool:
            connection.execute(
                "UPDATE deliveries SET allowed_row = ?"  # noqa: S608  # ours
                f" WHERE run_id = ? AND tracker IN ({_marks(len(allowing))})",
                (below, run, *allowing),
            )
            return _remove_rows(connection, run, self._all)

        while self._write(key, remove):
            pass

    def prune_finished(self, *, confirmed_before_ns: int) -> None:
        """Remove this bridge's rows that all trackers had finished and confirmed before a time.

        Rows of a run that has no room for more are removed at once, whatever the time.
        """
        n = len(self._all)
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial, next_row, (SELECT MAX(confirmed_ns)"  # noqa: S608  # ours
                " FROM deliveries AS d WHERE d.run_id = runs.run_id) FROM runs"
                f" WHERE row_bytes > 0 AND {all_closed(n)} AND {all_confirmed(n)}",
                (*self._all, *self._all),
            ).fetchall()
        for experiment, trial, next_row, confirmed_ns in found:
            key = ExperimentKey(experiment, trial)
            if self._owners.epoch(key) is None:
                continue
            if confirmed_ns <= confirmed_before_ns or not self._has_room(key):
                self._remove(key, self._all, next_row)

    def reported(self, key: ExperimentKey, state: str, error: str) -> None:
        """Store the error for which the tracker accepts no rows, and its time; "" for no error.

        Raises:
            JournalFull: There is no room. Nothing was written.
        """
        run = run_id(key.experiment, key.trial)
        self._write(
            key,
            lambda connection: connection.execute(
                "INSERT INTO deliveries (run_id, tracker, state, error, error_ns)"
                " SELECT run_id, ?, ?, ?, ? FROM runs WHERE run_id = ?"
                " ON CONFLICT (run_id, tracker) DO UPDATE SET error_ns ="
                " CASE WHEN deliveries.error = '' THEN excluded.error_ns"
                " ELSE deliveries.error_ns END,"
                " state = excluded.state, error = excluded.error",
                (self._tracker, state, error.replace("\0", ""), self._clock_ns(), run),
            ),
        )

    def opened(self, key: ExperimentKey, location: str) -> None:
        """Remember where the tracker shows the run."""
        self._put(key, location=location.replace("\0", ""))

    def finish(self, key: ExperimentKey, next_row: int) -> None:
        """Remember that the tracker's run was closed with every row before ``next_row``."""
        self._put(key, finished_row=next_row)

    def finished(self, key: ExperimentKey) -> int:
        """Return the row number of the last call of ``finish``; 0 if there was none."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT finished_row FROM deliveries WHERE run_id = ? AND tracker = ?",
                (run_id(key.experiment, key.trial), self._tracker),
            ).fetchone()
        return int(found[0]) if found else 0

    def _put(self, key: ExperimentKey, **columns: int | str) -> None:
        statement = (
            f"INSERT INTO deliveries (run_id, tracker, {', '.join(columns)})"  # noqa: S608  # ours
            f" SELECT run_id, ?{', ?' * len(columns)} FROM runs WHERE run_id = ?"
            " ON CONFLICT (run_id, tracker) DO UPDATE"
            f" SET {', '.join(f'{name} = excluded.{name}' for name in columns)}"
        )
        values = (self._tracker, *columns.values(), run_id(key.experiment, key.trial))
        self._write(key, lambda connection: connection.execute(statement, values))

    def _write(self, key: ExperimentKey, function: Callable[[Connection], _T]) -> _T:
        return write_owned(self._journal, self._owners, key, function)


def _remove_rows(connection: Connection, run: str, trackers: Sequence[str]) -> bool:
    """Remove so few rows that no writer waits for long. Returns whether more are left to remove."""
    first, known, end = connection.execute(
        "SELECT (SELECT pruned_row FROM runs WHERE run_id = ?), COUNT(*),"  # noqa: S608  # ours
        " MIN(CASE WHEN allowed_row < next_row THEN allowed_row ELSE next_row END)"
        f" FROM deliveries WHERE run_id = ? AND tracker IN ({_marks(len(trackers))})",
        (run, run, *trackers),
    ).fetchone()
    if known < len(trackers) or end <= first:
        return False
    some = min(end, first + _PRUNED_AT_ONCE)
    connection.execute("DELETE FROM rows WHERE run_id = ? AND number < ?", (run, some))
    connection.execute("UPDATE runs SET pruned_row = ? WHERE run_id = ?", (some, run))
    return bool(some < end)


def _marks(n: int) -> str:
    return ", ".join("?" * n)


# Conditions on ``runs``: rows that several trackers have. The parameters are their names.


def lacks_rows(n: int) -> str:
    """Return the SQL condition that one of a run's ``n`` trackers was not closed with all rows."""
    return f"(next_row > 0 AND {_count('d.finished_row >= runs.next_row', n)} < {n})"


def all_closed(n: int) -> str:
    """Return the SQL condition that all of a run's ``n`` trackers were closed with all rows."""
    return f"({_count('d.finished_row = runs.next_row', n)} = {n})"


def all_confirmed(n: int) -> str:
    """Return the SQL condition that all of a run's ``n`` trackers have confirmed all rows."""
    return f"({_count('d.next_row = runs.next_row', n)} = {n})"


def all_ended(n: int) -> str:
    """Return the SQL condition that each of ``n`` trackers was closed with all rows or has them."""
    either = "(d.finished_row = runs.next_row OR d.next_row = runs.next_row)"
    return f"({_count(either, n)} = {n})"


def _count(condition: str, n: int) -> str:
    return (
        "(SELECT COUNT(*) FROM deliveries AS d WHERE d.run_id = runs.run_id"  # noqa: S608  # ours
        f" AND d.tracker IN ({_marks(n)}) AND {condition})"
    )
