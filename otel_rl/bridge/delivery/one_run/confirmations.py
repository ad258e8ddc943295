"""Rows that a tracker has confirmed: when to ask again, and when they may leave the source."""

import contextlib
import math
from collections import deque
from collections.abc import Callable

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.delivery_interfaces import (
    Count,
    DeliveryRecord,
    DeliverySettings,
    RowSource,
)
from otel_rl.errors import JournalFull
from otel_rl.records import ExperimentKey

__all__ = ["Confirmations"]


class Confirmations:
    """Confirmed rows of one opening. One thread calls the methods; any thread reads the numbers.

    Args:
        key: The run.
        source: Store of the rows.
        record: Record of what the tracker has.
        settings: Settings of the delivery.
        count: Adds to the bridge's counters.
        monotonic: Seconds, for intervals.
        before: Those of the previous opening in this process, if any.

    Attributes:
        row: All rows below are confirmed; None for a tracker that never confirms.
        safe_row: All rows below are known to be safe at the tracker, also from earlier openings.
        counted_row: Rows below are counted as confirmed, or were so before this process began.
    """

    def __init__(
        self,
        key: ExperimentKey,
        source: RowSource,
        record: DeliveryRecord,
        settings: DeliverySettings,
        count: Count,
        monotonic: Callable[[], float],
        before: "Confirmations | None",
    ) -> None:
        self.row: int | None = 0
        self.safe_row: int = before.safe_row if before else 0
        # Rows that the tracker had before this process began are not counted.
        self.counted_row: int | None = before.counted_row if before else None
        self._key = key
        self._source = source
        self._record = record
        self._settings = settings
        self._count = count
        self._monotonic = monotonic
        self._asked_at: float | None = None
        self._position = 0  # the tracker's position at the opening
        # (time, row) of confirmations that are not pruned yet, oldest first.
        self._unpruned: deque[tuple[float, int]] = deque()
        self._listed_row: int | None = None  # of the last one, also if it is pruned

    def begin(self, position: int) -> None:
        """Store the tracker's position at the opening."""
        self.row = self._position = position
        if self.counted_row is None:
            self.counted_row = position

    def is_well(self, next_row: int) -> bool:
        """Return whether the tracker has taken a row, or lacks none, since the opening."""
        if self.row is None:
            return True
        return self._asked_at is not None and (self.row > self._position or self.row >= next_row)

    def take(self, row: int | None) -> None:
        """Store an answer of the tracker, and count the rows that it newly confirms."""
        self._asked_at = self._monotonic()
        self.row = row
        if row is None:
            return
        if row != self.safe_row:
            # On a full disk the tracker has the answer, and is queried again.
            with contextlib.suppress(JournalFull):
                self._record.confirmed(self._key, row)
            self.safe_row = row
        if row != self._listed_row:
            self._listed_row = row
            while self._unpruned and self._unpruned[-1][1] >= row:
                self._unpruned.pop()
            self._unpruned.append((self._asked_at, row))
        counted_row = self.counted_row or 0
        if row > counted_row:
            self._count(Counter.ROWS_CONFIRMED, row - counted_row)
            self.counted_row = row

    def question_due_in_s(self, next_row: int) -> float:
        """Return the seconds until the tracker is to be asked; infinite if it has every row."""
        if self._asked_at is None:
            return 0
        if self.row is not None and self.row >= next_row:
            return math.inf
        return self._asked_at + self._settings.confirm_interval_s - self._monotonic()

    def prune_due_in_s(self) -> float:
        """Return the seconds until ``prune`` is due; may be infinite."""
        if not self._unpruned:
            return math.inf
        oldest_at, _ = self._unpruned[0]
        age_s = self._monotonic() - oldest_at
        # Checked more often than rows expire, because room may be needed.
        return min(self._settings.keep_confirmed_s - age_s, self._settings.confirm_interval_s)

    def prune(self) -> None:
        """Let rows leave the source that were confirmed long enough ago."""
        if not self._unpruned:
            return
        below = 0
        kept_since = self._monotonic() - self._settings.keep_confirmed_s
        if not self._source.has_room(self._key):
            kept_since = math.inf
        while self._unpruned and self._unpruned[0][0] <= kept_since:
            _, below = self._unpruned.popleft()
        if below:
            with contextlib.suppress(JournalFull):  # they go with the next confirmed ones
                self._record.prune(self._key, below)
