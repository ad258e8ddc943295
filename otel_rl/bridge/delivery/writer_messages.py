"""Messages between the delivery loop and a writer process, one reply to each request.

    Open     -> Ready     | Unavailable | Rejected
    Write    -> Written   | Unavailable | Rejected
    Describe -> Described | Unavailable | Rejected
    Flush    -> Flushed   | Unavailable | Rejected
    Close    -> Closed    | Unavailable | Rejected

The messages travel pickled over a socket pair between a parent and the child that it started.
Nothing else can connect to it, so only trusted data is unpickled. Rows travel in the journal's
format, which takes a fraction of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.journal.formats.row_format import decode_row, encode_row
from otel_rl.records import Description, KeySpec, Row

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

    def __reduce__(
        self,
    ) -> "tuple[Callable[[Sequence[_PackedRow]], Write], tuple[list[_PackedRow]]]":
        return _unpacked, ([_PackedRow.of(row) for row in self.rows],)


class _PackedRow(NamedTuple):
    """A row on its way: its stored form, and what the journal does not store."""

    number: int
    body: bytes
    devices: Mapping[str, float]
    new_keys: Sequence[KeySpec]

    @classmethod
    def of(cls, row: Row) -> "_PackedRow":
        return cls(row.number, encode_row(row), row.devices, row.new_keys)

    def row(self) -> Row:
        row = decode_row(self.number, self.body)
        if not self.devices and not self.new_keys:
            return row
        return replace(row, devices=self.devices, new_keys=self.new_keys)


def _unpacked(rows: Sequence[_PackedRow]) -> Write:
    return Write([packed.row() for packed in rows])


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
