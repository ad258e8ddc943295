"""Interfaces between the delivery and the bridge: row source, record, settings and status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.selection import KeyNames
from otel_rl.records import Description, ExperimentKey, KeySpec, Row
from otel_rl.semconv.spec import Tier

__all__ = [
    "Count",
    "DeliveryRecord",
    "DeliverySettings",
    "RowSource",
    "RunState",
    "RunStatus",
]


class RowSource(Protocol):
    """Store of rows. Any thread may call any method; calls for one run delay no other run.

    Any call may raise JournalUnavailable.
    """

    @property
    def identity(self) -> str:
        """Return the identity of the source, which marks its rows."""
        ...

    def rows(self, key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        """Return at most ``limit`` stored rows from number ``start`` on, ascending.

        Their ``values`` are plain dicts: rows are sent to another process.
        """
        ...

    def keys(self, key: ExperimentKey, /) -> Sequence[KeySpec]:
        """Return what the keys of the run's rows mean, in the order in which they came up."""
        ...

    def is_ours(self, key: ExperimentKey, /) -> bool:
        """Return whether this bridge owns the run now. If not, ``rows`` raises LeaseLost."""
        ...

    def next_row(self, key: ExperimentKey, /) -> int:
        """Return the number of the run's next row."""
        ...

    def description(self, key: ExperimentKey, /) -> Description:
        """Return the run's description; the same object until it changes."""
        ...

    def has_room(self, key: ExperimentKey, /) -> bool:
        """Return whether the run may get more rows while its present ones are stored."""
        ...


class DeliveryRecord(Protocol):
    """Durable record of what the tracker has of each run. Any thread may call any method.

    Any call may raise JournalFull or LeaseLost, then nothing is stored, or JournalUnavailable.
    """

    def confirmed(self, key: ExperimentKey, next_row: int, /) -> None:
        """Store durably that the tracker has all rows below ``next_row``."""
        ...

    def opened(self, key: ExperimentKey, location: str, /) -> None:
        """Store durably where the tracker has the run, for people who look."""
        ...

    def prune(self, key: ExperimentKey, below: int, /) -> None:
        """Allow the removal of the rows below."""
        ...

    def reported(self, key: ExperimentKey, state: str, error: str, /) -> None:
        """Store durably why the tracker takes no rows; "" for no error."""
        ...


class Count(Protocol):
    """Adds to a counter of the bridge: ``Counters.add``."""

    def __call__(
        self,
        counter: Counter,
        n: int = 1,
        *,
        reason: StrEnum | None = None,
        run: ExperimentKey | None = None,
    ) -> None:
        """Add ``n``."""
        ...


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Settings of the delivery.

    Attributes:
        tracker: Name of the backend.
        directory: Where trackers keep their files.
        attributes: Settings of the tracker.
        max_writers: Live runs at a time. The run that has been idle for longest makes room.
        min_hold_s: Least time for which a run keeps its writer, so that runs take turns instead of
            evicting each other.
        batch_rows: Rows handed over at a time; fewer if they are wide.
        max_unconfirmed_rows: Bound on rows handed over and not confirmed, which are in the memory
            of the tracker's library.
        confirm_interval_s: Interval between two queries of the tracker for the rows that it has.
        keep_confirmed_s: How long a row is kept after the tracker has confirmed it. A tracker that
            answers from a replica, or is restored from a backup, may need it again. Shorter if the
            source has no room for more rows of the run.
        first_retry_s: Pause after the first failure; it doubles from there.
        max_retry_s: Longest pause.
        rejected_retry_s: Pause after the tracker has refused settings or credentials.
        end_grace_s: How long after the end of an experiment its run stays open for further rows,
            counted from the last one.
        scratch: Directory of the logs and locks of writers; ``directory`` if not given.
        detail: Tiers of the values that are sent.
        names: Names of metrics that a framework logged.
        per_worker: Whether every series of a single worker is sent.
        max_values_per_minute: Of a run; beyond it values are folded. 0 for no bound.
    """

    tracker: str
    directory: Path
    attributes: Mapping[str, str]
    max_writers: int = 32
    min_hold_s: float = 30.0
    batch_rows: int = 500
    max_unconfirmed_rows: int = 20_000
    confirm_interval_s: float = 30.0
    keep_confirmed_s: float = 600.0
    first_retry_s: float = 0.5
    max_retry_s: float = 60.0
    rejected_retry_s: float = 60.0
    end_grace_s: float = 15.0
    scratch: Path | None = None
    detail: Tier = Tier.EVERYTHING
    names: KeyNames = KeyNames.OTEL_RL
    per_worker: bool = False
    max_values_per_minute: int = 0


class RunState(StrEnum):
    """State of a run's delivery.

    Attributes:
        WAITING: Has no writer: it is new, or made room for another run.
        OPENING: The tracker is opening the run.
        LIVE: Rows are written as they come.
        RETRYING: The tracker is unavailable. The rows are kept.
        REJECTED: The tracker refuses the run. The rows are kept, and it is retried at intervals.
        FINISHED: All rows are written and the tracker's run is closed.
    """

    WAITING = "waiting"
    OPENING = "opening"
    LIVE = "live"
    RETRYING = "retrying"
    REJECTED = "rejected"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Delivery status of one run.

    Attributes:
        key: Experiment and trial.
        tracker: Name of the backend.
        location: URL or path, empty before the first opening.
        state: State of the delivery.
        next_row: All rows below are handed to the tracker. After a failure, those that it has
            confirmed.
        safe_row: All rows below are known to be safe at the tracker.
        pending: Number of rows that wait to be handed over.
        last_error: The last error, empty once the tracker takes rows again.
    """

    key: ExperimentKey
    tracker: str
    location: str
    state: RunState
    next_row: int
    safe_row: int
    pending: int
    last_error: str
