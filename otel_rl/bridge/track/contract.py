"""What the delivery needs of the bridge, and what it tells about each run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Self

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.track import Tracker
from otel_rl.records import Description, ExperimentKey, Row

__all__ = ["Count", "DeliverySettings", "RowSource", "RunState", "RunStatus", "Writer"]


class Writer(Tracker, Protocol):
    """A tracker for one opening of one run, which somebody else can end: a process, usually.

    Every method may raise TrackerUnavailable, because the writer has died or does not answer.
    Leaving the context ends it, whatever it does.
    """

    def __enter__(self) -> Self:
        """Start nothing yet."""
        ...

    def __exit__(self, *exc_info: object) -> None:
        """End it."""
        ...

    def kill(self) -> None:
        """End it at once. Any thread may call it, at any time, more than once."""
        ...


class RowSource(Protocol):
    """Where the rows are. Any thread may call any method; one run's calls delay no other's.

    What writes may raise JournalFull or LeaseLost; then nothing is remembered. Any call may raise
    JournalUnavailable.
    """

    @property
    def identity(self) -> str:
        """Tells its rows from those of another source."""
        ...

    def rows(self, key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        """The kept rows from number ``start`` on, ascending, at most ``limit``.

        Their ``values`` are plain dicts: rows are sent to another process.
        """
        ...

    def is_ours(self, key: ExperimentKey, /) -> bool:
        """Whether this bridge may write the run now. If not, ``rows`` raises LeaseLost."""
        ...

    def next_row(self, key: ExperimentKey, /) -> int:
        """The number that the next row of the run will get."""
        ...

    def description(self, key: ExperimentKey, /) -> Description:
        """What is known of the run beside its rows; the same object until that changes."""
        ...

    def confirmed(self, key: ExperimentKey, tracker: str, next_row: int, /) -> None:
        """Remember durably that the tracker has all rows below ``next_row``."""
        ...

    def has_room(self, key: ExperimentKey, /) -> bool:
        """Whether more rows may be made of the run while it keeps those that it has."""
        ...

    def prune(self, key: ExperimentKey, tracker: str, below: int, /) -> None:
        """The rows below are not needed any more."""
        ...

    def reported(self, key: ExperimentKey, tracker: str, state: str, error: str, /) -> None:
        """Remember durably what keeps the tracker from taking rows; "" for nothing."""
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
    """What a user may set.

    Attributes:
        tracker: Name of the backend.
        directory: Where trackers keep their files.
        attributes: Settings of the tracker.
        max_writers: Live runs at a time, each with a process of its own. The run that has been
            idle for longest makes room.
        min_hold_s: A run keeps its writer for at least this long, so that more live runs than
            writers take turns and do not fight.
        batch_rows: Rows handed over at a time.
        max_unconfirmed_rows: How far the rows handed over may be ahead of those that the tracker
            has confirmed. What is unconfirmed is in the memory of the tracker's library.
        confirm_interval_s: Between two questions to the tracker about what it has.
        keep_confirmed_s: How long a row is kept after the tracker has confirmed it. A tracker that
            answers from a replica, or is restored from a backup, may ask for it again. Shorter if
            the source has no room for more rows of the run.
        first_retry_s: Pause after the first failure; it doubles from there.
        max_retry_s: Longest pause.
        rejected_retry_s: Pause after the tracker has refused settings or credentials.
        end_grace_s: How long no row may come after the end of an experiment before its run is
            closed.
        scratch: Where the logs and locks of writers are; ``directory`` if not given.
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


class RunState(StrEnum):
    """Where the delivery of a run stands.

    Attributes:
        WAITING: Has no writer: it is new, or made room for another run.
        OPENING: The tracker is being asked where it stands.
        LIVE: Rows are written as they come.
        RETRYING: The tracker is away. The rows are kept.
        REJECTED: The tracker refuses. The rows are kept, and it is asked again now and then.
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
    """What a person wants to know about one run.

    Attributes:
        key: Experiment and trial.
        tracker: Name of the backend.
        location: URL or path, empty before the first opening.
        state: Where the delivery stands.
        next_row: All rows below are handed to the tracker. After a failure, those that it has
            confirmed.
        safe_row: All rows below are known to be safe at the tracker.
        pending: Rows that wait to be handed over.
        last_error: What went wrong last, empty once the tracker takes rows again.
    """

    key: ExperimentKey
    tracker: str
    location: str
    state: RunState
    next_row: int
    safe_row: int
    pending: int
    last_error: str
