"""One opening of a run in a tracker, from its position to the last row. No thread, no waiting.

    opened = TrackerSession(writer, info, source, record, settings, count, monotonic)
    opened.open()
    while opened.step():
        pass
    opened.close(exit_code=0)

Rows are neither lost nor doubled because of these rules, in this order:

* The tracker reports its position. The bridge stores no cursor that could be wrong.
* A position at which the rows cannot continue is refused.
* Rows are handed over without a gap, also those of which nothing is selected for the tracker, and
  never more than ``max_unconfirmed_rows`` ahead of those that the tracker has confirmed.
* Only rows that this opening has handed over, or found at its beginning, count as confirmed.
* The run's metadata is sent at the opening and whenever it changes.
* Rows leave the source ``keep_confirmed_s`` after that, or when it has no room for more of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.delivery_interfaces import (
    Count,
    DeliveryRecord,
    DeliverySettings,
    RowSource,
    Writer,
)
from otel_rl.bridge.delivery.one_run.confirmations import Confirmations
from otel_rl.bridge.delivery.one_run.program_options import filled
from otel_rl.bridge.delivery.selection.key_selection import KeySelection
from otel_rl.bridge.delivery.selection.project_keys import ProjectKeys
from otel_rl.bridge.delivery.selection.value_budget import ValueBudget
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.errors import RunDiverged, TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, Row

__all__ = ["TrackerSession"]

# Timeout of one query while no row may be handed over before its answer.
_LEAD_TIMEOUT_S = 1.0

# Of rows that are handed over at a time, as stored. In memory they take up to five times as much,
# here and in the writer.
_BATCH_BYTES: Final = 1 << 20

# Nothing is known of the first ones: so few are handed over, and then more.
_FIRST_ROWS: Final = 16


class TrackerSession:
    """Writes one run through one writer. One thread calls the methods, in the order of the module.

    After any exception, leave the writer and begin again with another.

    Args:
        writer: A new one. Its owner ends it.
        info: The run.
        source: Store of the rows.
        record: Record of what the tracker has.
        settings: Settings of the delivery.
        count: Adds to the bridge's counters.
        monotonic: Seconds, for intervals.
        before: The previous opening in this process, if any.
        project: Keys of all runs; default: of this one.

    Attributes:
        next_row: All rows below are handed to the tracker. Any thread may read it.
        confirmations: Rows that the tracker has confirmed.
    """

    def __init__(
        self,
        writer: Writer,
        info: RunInfo,
        source: RowSource,
        record: DeliveryRecord,
        settings: DeliverySettings,
        count: Count,
        monotonic: Callable[[], float],
        *,
        before: "TrackerSession | None" = None,
        project: ProjectKeys | None = None,
    ) -> None:
        self.next_row = 0
        self._writer = writer
        self._info = info
        self._source = source
        self._settings = settings
        self._count = count
        self.confirmations: Confirmations = Confirmations(
            info.key,
            source,
            record,
            settings,
            count,
            monotonic,
            before.confirmations if before else None,
        )
        self._described: Description | None = None  # the last one sent to the tracker
        self._row_bytes = _BATCH_BYTES // _FIRST_ROWS  # of the longest of late, as stored
        self._selection = KeySelection(
            settings.detail,
            settings.names,
            per_worker=settings.per_worker,
            keys=lambda: source.keys(info.key),
            budget=ValueBudget(most) if (most := settings.max_values_per_minute) else None,
            project=project,
        )

    @property
    def safe_row(self) -> int:
        """All rows below are known to be safe at the tracker. Any thread may read it."""
        return self.confirmations.safe_row

    @property
    def held_row(self) -> int:
        """Return the row from which another opening would resume. Any thread may read it."""
        return self.confirmations.row or 0

    @property
    def location(self) -> str:
        """Return the URL or path of the run. Valid after ``open``."""
        return self._writer.location()

    def open(self) -> None:
        """Open the run in the tracker and check that the rows can continue at its position.

        Raises:
            TrackerRejected: They cannot.
            TrackerUnavailable: Try again later.
        """
        self._described = self._source.description(self._info.key)
        self._info = replace(
            self._info,
            description=self._described,
            attributes=filled(self._info.attributes, self._described),
        )
        position = self._writer.open(self._info)
        self._check(position)
        self.next_row = position
        self.confirmations.begin(position)

    def step(self) -> bool:
        """Hand over the next rows, and query the tracker's confirmation when it is due.

        Returns:
            Whether more may be ready to hand over.
        """
        self._describe()
        room = self._room()
        rows = self._rows(room) if room > 0 else ()
        if rows:
            self._write(rows)
        if room <= 0:
            self.confirmations.take(self._writer.flush(timeout_s=_LEAD_TIMEOUT_S))
        elif self.confirmations.question_due_in_s(self.next_row) <= 0:
            self.confirmations.take(self._writer.flush(timeout_s=0))
        self.confirmations.prune()
        return bool(rows) or room <= 0

    def due_in_s(self) -> float:
        """Return the seconds until ``step`` is due without new rows; may be infinite."""
        return min(
            self.confirmations.question_due_in_s(self.next_row),
            self.confirmations.prune_due_in_s(),
        )

    def is_well(self) -> bool:
        """Return whether the tracker has taken a row, or lacks none, since ``open``."""
        return self.confirmations.is_well(self.next_row)

    def close(self, *, exit_code: int) -> None:
        """Finish the run. Call it when ``step`` has returned False."""
        self.confirmations.take(self._writer.close(exit_code=exit_code))

    def _describe(self) -> None:
        description = self._source.description(self._info.key)
        if description is not self._described:
            self._writer.describe(description)
            self._described = description

    def _check(self, position: int) -> None:
        """Refuse a position at which the rows cannot continue."""
        key = self._info.key
        numbered = self._source.next_row(key)
        if position > numbered:
            raise RunDiverged(
                f"The tracker's run {self._info.run_id} has {position} rows, but {key} has only "
                f"{numbered}. Something else wrote to it, or the bridge's data is from a backup.",
                hint="Give the trial another name.",
            )
        kept = self._source.rows(key, start=position, limit=1)
        if position < numbered and (not kept or kept[0].number != position):
            first = kept[0].number if kept else numbered
            raise TrackerRejected(
                f"The tracker's run {self._info.run_id} has only {position} rows. It had confirmed "
                f"{first}, so these are not kept any more: the run was deleted or emptied there, "
                "or another tracker had them.",
                hint="Restore it, or give the trial another name. The rows from "
                f"{first} on are kept.",
            )

    def _room(self) -> int:
        """Return how many rows may be handed over before the tracker confirms others."""
        confirmed_row = self.confirmations.row
        if confirmed_row is None:
            return self._settings.batch_rows
        lead = self.next_row - confirmed_row
        return min(self._settings.batch_rows, self._settings.max_unconfirmed_rows - lead)

    def _rows(self, limit: int) -> Sequence[Row]:
        most = max(1, _BATCH_BYTES // self._row_bytes)
        rows = self._source.rows(self._info.key, start=self.next_row, limit=min(limit, most))
        longest = max((len(row.stored or b"") for row in rows), default=0)
        # Narrow rows stand between wide ones, so it falls slowly.
        self._row_bytes = max(1, longest, self._row_bytes // 2 if rows else self._row_bytes)
        return rows

    def _write(self, rows: Sequence[Row]) -> None:
        end = self.next_row + len(rows)
        if [row.number for row in rows] != list(range(self.next_row, end)):
            raise TrackerUnavailable(
                f"The rows of {self._info.key} after {self.next_row} have a gap."
            )
        self._writer.write(self._selection.rows(rows))
        for reason, n in self._selection.folded.items():
            self._count(Counter.VALUES_FOLDED, n, reason=reason, run=self._info.key)
        self._selection.folded.clear()
        self._count(Counter.ROWS_WRITTEN, len(rows))
        self.next_row = end
