"""One opening of a run in a tracker, from its position to the last row.

A session starts no thread and never waits.

    opened = TrackerSession(writer, info, route)
    opened.open()
    while opened.step():
        pass
    opened.close(exit_code=0)

Rows are neither lost nor doubled because of these rules, in this order:

* The tracker reports its position. The bridge stores no cursor that could be wrong.
* A position at which the rows cannot continue is refused.
* Rows are handed over without a gap, including rows without selected values, and never more than
  ``max_unconfirmed_rows`` ahead of the rows that the tracker has confirmed.
* Only rows that this opening has handed over, or found at its beginning, count as confirmed.
* The run's metadata is sent at the opening and whenever it changes.
* Rows leave the source ``keep_confirmed_s`` after that, or when the source has no room for more.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.delivery.tracker import RunInfo, Tracker
from otel_rl.bridge.delivery.wandb.account import OWN_RUN
from otel_rl.bridge.keys import KeyNames
from otel_rl.errors import JournalFull, RunDiverged, TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, KeySpec, Row
from otel_rl.semconv.spec import Tier

# Timeout of one query while no row may be handed over before its answer.
_LEAD_TIMEOUT_S = 1.0

# Of rows that are handed over at a time, as stored. In memory they take up to five times as much,
# here and in the writer.
_BATCH_BYTES: Final = 1 << 20

# Nothing is known of the first ones: so few are handed over, and then more.
_FIRST_ROWS: Final = 16

_MODES: Final = {"online": "keyed", "offline": "offline", "dryrun": "offline"}
"""A program's words and the tracker's: one that wants to be online may run without a key."""


class RowSource(Protocol):
    """Store of rows. Any thread may call any method; calls for one run delay no other run.

    Any call may raise JournalUnavailable.
    """

    @property
    def identity(self) -> str: ...

    def rows(self, key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        """Return at most ``limit`` stored rows from number ``start`` on, ascending.

        The ``values`` of rows are plain dicts, because rows are sent to another process.
        """
        ...

    def keys(self, key: ExperimentKey, /) -> Sequence[KeySpec]:
        """Return the meanings of the run's keys, in the order in which the keys appeared."""
        ...

    def is_ours(self, key: ExperimentKey, /) -> bool:
        """Return whether this bridge owns the run now.

        If it does not, ``rows`` raises LeaseLost.
        """
        ...

    def next_row(self, key: ExperimentKey, /) -> int: ...

    def description(self, key: ExperimentKey, /) -> Description:
        """Return the run's description; the same object until it changes."""
        ...

    def has_room(self, key: ExperimentKey, /) -> bool:
        """Return whether the run may get more rows while its present ones are stored."""
        ...


class DeliveryRecord(Protocol):
    """Durable record of the rows that the tracker has of each run. Any thread may call any method.

    Any call may raise JournalFull or LeaseLost, after which nothing is stored, or
    JournalUnavailable.
    """

    def confirmed(self, key: ExperimentKey, next_row: int, /) -> None:
        """Store durably that the tracker has all rows below ``next_row``."""
        ...

    def opened(self, key: ExperimentKey, location: str, /) -> None:
        """Store durably where the tracker shows the run."""
        ...

    def prune(self, key: ExperimentKey, below: int, /) -> None:
        """Allow the removal of the rows below ``below``."""
        ...

    def reported(self, key: ExperimentKey, state: str, error: str, /) -> None:
        """Store durably why the tracker takes no rows; "" for no error."""
        ...


class Count(Protocol):
    """Function that adds to a counter of the bridge, as ``Counters.add`` does."""

    def __call__(
        self,
        counter: Counter,
        n: int = 1,
        *,
        reason: StrEnum | None = None,
        run: ExperimentKey | None = None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Settings of the delivery.

    Attributes:
        tracker: Name of the backend.
        directory: Directory for the trackers' files.
        attributes: Settings of the tracker.
        of_teams: ``attributes`` for the runs of each team, by the team's name; with teams, runs of
            no team are not begun.
        max_writers: Number of live runs at a time. The run that has been idle for longest makes
            room.
        min_hold_s: Least time for which a run keeps its writer, so that runs take turns instead of
            evicting each other.
        batch_rows: Rows handed over at a time; fewer if they are wide.
        max_unconfirmed_rows: Bound on rows that are handed over and not confirmed; the tracker's
            library holds them in memory.
        confirm_interval_s: Interval between two queries of the rows that the tracker has.
        keep_confirmed_s: How long a row is kept after the tracker has confirmed it. A tracker that
            answers from a replica, or is restored from a backup, may need the row again. Shorter if
            the source has no room for more rows of the run.
        first_retry_s: Pause after the first failure; it doubles from there.
        max_retry_s: Longest pause, and the one after the tracker has refused settings or
            credentials.
        end_grace_s: How long the tracker's run stays open for further rows after its experiment has
            ended, counted from the last row.
        scratch: Directory of the writers' logs and locks; ``directory`` if not given.
        detail: Tiers of the values that are sent.
        names: Which names are used for metrics that a framework logged.
        per_worker: Whether every series of a single worker is sent.
    """

    tracker: str
    directory: Path
    attributes: Mapping[str, str]
    of_teams: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    max_writers: int = 32
    min_hold_s: float = 30.0
    batch_rows: int = 500
    max_unconfirmed_rows: int = 20_000
    confirm_interval_s: float = 30.0
    keep_confirmed_s: float = 600.0
    first_retry_s: float = 0.5
    max_retry_s: float = 60.0
    end_grace_s: float = 15.0
    scratch: Path | None = None
    detail: Tier = Tier.EVERYTHING
    names: KeyNames = KeyNames.OTEL_RL
    per_worker: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """Everything that the deliveries of all runs from the journal to one tracker share.

    Attributes:
        record: Record of the rows that the tracker has.
        written: Called with rows that were handed to the tracker.
    """

    source: RowSource
    record: DeliveryRecord
    settings: DeliverySettings
    count: Count
    monotonic: Callable[[], float] = time.monotonic
    written: Callable[[ExperimentKey, Sequence[Row]], None] = lambda *_: None


class TrackerSession:
    """Writes one run through one writer. One thread calls the methods, in the order of the module.

    After any exception, leave the writer and begin again with another one.

    Args:
        writer: A new writer. Its owner ends it.
        before: The previous opening in this process, if any.

    Attributes:
        next_row: All rows below it are handed to the tracker. Any thread may read it.
        confirmations: Record of the rows that the tracker has confirmed.
    """

    def __init__(
        self,
        writer: Tracker,
        info: RunInfo,
        route: Route,
        *,
        before: "TrackerSession | None" = None,
    ) -> None:
        self.next_row = 0
        self._writer = writer
        self._info = info
        self._source = route.source
        self._settings = settings = route.settings
        self._count = route.count
        self._written = route.written
        self.confirmations: Confirmations = Confirmations(
            info.key, route, before.confirmations if before else None
        )
        self._described: Description | None = None  # the last one sent to the tracker
        self._row_bytes = _BATCH_BYTES // _FIRST_ROWS  # of the longest of late, as stored
        self._selection = KeySelection(
            settings.detail,
            settings.names,
            per_worker=settings.per_worker,
            keys=lambda: route.source.keys(info.key),
        )

    @property
    def safe_row(self) -> int:
        """All rows below it are known to be safe at the tracker. Any thread may read it."""
        return self.confirmations.safe_row

    @property
    def held_row(self) -> int:
        """Return the row from which another opening would resume. Any thread may read it."""
        return self.confirmations.row or 0

    @property
    def location(self) -> str:
        return self._writer.location()

    def open(self) -> None:
        """Open the run in the tracker and check that the rows can continue at its position.

        Raises:
            TrackerRejected: The rows cannot continue at the tracker's position.
            TrackerUnavailable: The tracker is unavailable; try again later.
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
            Whether more rows may be ready to hand over.
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
        return self.confirmations.is_well(self.next_row)

    def close(self, *, exit_code: int) -> None:
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
        confirmed_row = self.confirmations.row
        if confirmed_row is None:
            return self._settings.batch_rows
        lead = self.next_row - confirmed_row
        return min(self._settings.batch_rows, self._settings.max_unconfirmed_rows - lead)

    def _rows(self, limit: int) -> Sequence[Row]:
        most = max(1, _BATCH_BYTES // self._row_bytes)
        rows = self._source.rows(self._info.key, start=self.next_row, limit=min(limit, most))
        longest = max((row.stored_bytes for row in rows), default=0)
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
        self._count(Counter.ROWS_WRITTEN, len(rows))
        self._written(self._info.key, rows)
        self.next_row = end


class Confirmations:
    """Rows that the tracker has confirmed in one opening: when to ask again, and when rows may go.

    One thread calls the methods; any thread reads the numbers.

    Args:
        before: Confirmations of the previous opening in this process, if any.

    Attributes:
        row: All rows below it are confirmed; None for a tracker that never confirms.
        safe_row: All rows below it are known to be safe at the tracker, including earlier openings.
        counted_row: Rows below it are counted as confirmed, or were counted before this process
            began.
    """

    def __init__(self, key: ExperimentKey, route: Route, before: "Confirmations | None") -> None:
        self.row: int | None = 0
        self.safe_row: int = before.safe_row if before else 0
        # Rows that the tracker had before this process began are not counted.
        self.counted_row: int | None = before.counted_row if before else None
        self._key = key
        self._source = route.source
        self._record = route.record
        self._settings = route.settings
        self._count = route.count
        self._monotonic = route.monotonic
        self._asked_at: float | None = None
        self._position = 0  # the tracker's position at the opening
        # (time, row) of confirmations that are not pruned yet, oldest first.
        self._unpruned: deque[tuple[float, int]] = deque()
        self._listed_row: int | None = None  # of the last one, also if it is pruned

    def begin(self, position: int) -> None:
        self.row = self._position = position
        if self.counted_row is None:
            self.counted_row = position

    def is_well(self, next_row: int) -> bool:
        if self.row is None:
            return True
        return self._asked_at is not None and (self.row > self._position or self.row >= next_row)

    def take(self, row: int | None) -> None:
        """Store the tracker's answer, and count the newly confirmed rows."""
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
        """Return the seconds until the tracker must be asked; infinite if it has every row."""
        if self._asked_at is None:
            return 0
        if self.row is not None and self.row >= next_row:
            return math.inf
        return self._asked_at + self._settings.confirm_interval_s - self._monotonic()

    def prune_due_in_s(self) -> float:
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


def filled(
    options: Sequence[tuple[str, str]], description: Description
) -> tuple[tuple[str, str], ...]:
    """Return a tracker's options, with placeholders replaced by what the run's program names.

    ``tracker.options.project = "team-{project}"`` lets the senders of a bridge name the end of
    their project, and nothing else: an option without a placeholder is the operator's alone. A
    placeholder for which the program names nothing stays. A run that another process has opened is
    at that process's location, once the location is known.
    """
    if dict(options).get("attach", "") not in ("", OWN_RUN):
        return tuple(options)
    named = {
        "project": description.project,
        "entity": description.entity,
        "mode": _MODES.get(description.mode, ""),
    }
    return tuple(
        (name, text.replace(f"{{{name}}}", named[name]) if named.get(name) else text)
        for name, text in options
    )
