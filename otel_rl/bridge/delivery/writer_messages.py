"""Messages between the delivery loop and a writer process, one reply to each request.

    Open     -> Ready     | Unavailable | Rejected
    Write    -> Written   | Unavailable | Rejected
    Describe -> Described | Unavailable | Rejected
    Flush    -> Flushed   | Unavailable | Rejected
    Close    -> Closed    | Unavailable | Rejected

The messages travel pickled over a socket pair between a parent and the child that it started.
Nothing else can connect to it, so only trusted data is unpickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.records import Description, Row

__all__ = [
    "Close",
    "Closed",
    "Describe",
    "Described",
    "Flush",
    "Flushed",
    "Open",
    "Ready",
    "Rejected",
    "Reply",
    "Request",
    "Unavailable",
    "Write",
    "Written",
]


@dataclass(frozen=True, slots=True)
class Open:
    """Create or resume the run in the tracker of this name. The first message, sent once."""

    tracker: str
    run: RunInfo


@dataclass(frozen=True, slots=True)
class Ready:
    """Reply to Open: the tracker's position is ``next_row``, the run is at ``location``."""

    next_row: int
    location: str


@dataclass(frozen=True, slots=True)
class Write:
    """Rows in ascending order of number and without a gap."""

    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Written:
    """Reply to Write: all rows below ``next_row`` are handed to the tracker."""

    next_row: int


@dataclass(frozen=True, slots=True)
class Describe:
    """Update the run's metadata."""

    description: Description


@dataclass(frozen=True, slots=True)
class Described:
    """Reply to Describe."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait at most ``timeout_s`` for the rows to be safe."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """Reply to Flush: all rows below ``safe_row`` are safe; None if none ever is."""

    safe_row: int | None


@dataclass(frozen=True, slots=True)
class Close:
    """Finish the run."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Reply to Close: the tracker has all of the run. ``safe_row`` is as in Flushed."""

    safe_row: int | None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Failure reply: another writer process may retry the request."""

    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Failure reply: the request fails again until an operator acts."""

    message: str
    hint: str = ""


Request = Open | Write | Describe | Flush | Close
Reply = Ready | Written | Described | Flushed | Closed | Unavailable | Rejected
