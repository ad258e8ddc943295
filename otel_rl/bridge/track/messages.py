"""What the delivery loop and a writer process say to each other, one reply to each request.

    Open     -> Ready     | Unavailable | Rejected
    Write    -> Written   | Unavailable | Rejected
    Describe -> Described | Unavailable | Rejected
    Flush    -> Flushed   | Unavailable | Rejected
    Close    -> Closed    | Unavailable | Rejected

The messages travel pickled over a socket pair between a parent and the child that it started.
Nothing else can connect to it, so nothing foreign is ever unpickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from otel_rl.bridge.track import RunInfo
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
    """The tracker stands at ``next_row``; a person finds the run at ``location``."""

    next_row: int
    location: str


@dataclass(frozen=True, slots=True)
class Write:
    """Rows in ascending order of number and without a gap."""

    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Written:
    """All rows below ``next_row`` are handed to the tracker."""

    next_row: int


@dataclass(frozen=True, slots=True)
class Describe:
    """Show what is known of the run."""

    description: Description


@dataclass(frozen=True, slots=True)
class Described:
    """The tracker has it."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait at most ``timeout_s`` for the rows to be safe."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """All rows below ``safe_row`` are safe at the tracker; None if none ever is."""

    safe_row: int | None


@dataclass(frozen=True, slots=True)
class Close:
    """Finish the run."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The tracker has the whole run; the writer process ends. ``safe_row`` is as in Flushed."""

    safe_row: int | None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The request failed and may be tried again, by another writer process."""

    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request will fail again until a person changes something."""

    message: str
    hint: str = ""


Request = Open | Write | Describe | Flush | Close
Reply = Ready | Written | Described | Flushed | Closed | Unavailable | Rejected
