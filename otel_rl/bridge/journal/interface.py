"""Interface of the bridge's own database (spool and run store in one), and of run ownership.

* Durable: once ``write`` returns, its changes survive ``kill -9`` and power loss.
* Atomic: each function that is given to ``write`` happens wholly or not at all, and may span the
  spool and the run store.
* Visible: a read sees every change whose ``write`` has returned, in whichever bridge.
* One statement sees one moment. Two statements of a read may see two.

``sqlite.py`` is one file for one bridge, ``postgres.py`` one database for any number of them. Both
take the same statements, with ``?`` for parameters.
"""

import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from otel_rl.errors import JournalFull, JournalGone, LeaseLost
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

Value = str | bytes | int | None
"""What a column holds."""

BYTES_BESIDE_ROW: Final = 64
"""What a row takes beside its body: its key and the empty part of its page (40 to 100 bytes,
measured)."""

ROOM_OF_ROWS: Final = f"(row_bytes + {BYTES_BESIDE_ROW} * (runs.next_row - pruned_row))"
"""Bytes that the rows of one of the ``runs`` take on the disk, about."""

RECORD_BYTES: Final = 100
"""What a record of a run takes beside its body: its key, its place in an index, the rest of a
page."""

_BODIES: Final = " + ".join(
    f"COALESCE((SELECT LENGTH(body) + {RECORD_BYTES} FROM {table}"  # noqa: S608  # ours
    f" WHERE {table}.run_id = runs.run_id), 0)"
    for table in ("states", "descriptions")
)

MADE: Final = f"({ROOM_OF_ROWS} + log_bytes + {_BODIES})"
"""Bytes of everything that was made of the batches of one of the ``runs``, about.

Without what waits for the archive: that has a bound of its own, and holds back no rows."""

WAITING: Final = "COALESCE((SELECT SUM(bytes) FROM waiting WHERE waiting.run_id = runs.run_id), 0)"
"""Bytes of the batches of one of the ``runs``."""

WAITS: Final = (
    "EXISTS (SELECT 1 FROM waiting WHERE waiting.run_id = runs.run_id AND waiting.bytes <> 0)"
)
"""Condition on ``runs``: there are such batches."""


class Cursor(Protocol):
    """Result of a statement.

    An error of the statement may be raised later in the same ``write``.
    """

    def fetchone(self) -> Any:  # a row has columns of any type
        ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> object: ...


class Connection(Protocol):
    """Connection that takes statements for the length of one ``write`` or ``read``."""

    def execute(self, sql: str, parameters: Sequence[Value] = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Value]], /) -> object: ...


class Journal(Protocol):
    """One database. Any thread may call any method."""

    @property
    def identity(self) -> str:
        """Random text made with the database; it marks the runs of this journal."""
        ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def shards(self) -> int:
        """Number of counters that concurrent writers of one sum are spread over."""
        ...

    @property
    def lock_row(self) -> str:
        """SQL suffix of a SELECT that locks a row of ``runs``; empty where one thread writes."""
        ...

    @property
    def problem(self) -> str:
        """Why nothing is stored until an operator acts; empty if all is well."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds for which no waiting write could be stored; 0 if all is well."""
        ...

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        """Run ``function`` in a transaction, and return its result once its changes are durable.

        Where others write at the same moment, ``function`` may be run again from its beginning.

        Raises:
            JournalFull: There is no room, within the bound or on the disk. Nothing was written.
            JournalClosed: The bridge is stopping. Nothing was written.
            JournalUnavailable: The database is unreachable. Nothing was written, or everything was:
                only a read can find out.
            Exception: Whatever ``function`` raised. Nothing was written.
        """
        ...

    def submit(self, function: Callable[[Connection], _T], /) -> Future[_T]:
        """Do the same as ``write`` without waiting: the future gets the result or the error.

        A thread of the journal completes the future and runs its callbacks: they must be short.
        """
        ...

    def read(self) -> AbstractContextManager[Connection]:
        """Lend a connection for reading, for the length of the context.

        Every cursor must be read to its end or closed before the context ends.

        Raises:
            JournalUnavailable: The database is unreachable.
        """
        ...

    @property
    def room(self) -> "Room":
        """Room for new data, which must not take what present data need to become rows."""
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """Finish the accepted writes, then close. Closing again does nothing."""
        ...


_MEASURED_FOR_S: Final = 1.0  # the size changes by what is made of data, and by what others do


class Room:
    """Room of a journal for new data, within its bound. Any thread may call any method.

    The size is measured once a second, and whenever the room seems too small.

    Args:
        max_bytes: The bound. The journal may exceed it by what is made or taken elsewhere within a
            second.
        measure: Returns the size of the journal.
    """

    def __init__(self, max_bytes: int, measure: Callable[[Connection], int]) -> None:
        self._max_bytes = max_bytes
        self._measure = measure
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._measured_at = -math.inf
        self._used_bytes = 0

    def take(self, connection: Connection, n_bytes: int, *, over_bytes: int = 0) -> None:
        """Take room for new data, inside the ``write`` that adds the data.

        Turning a batch into rows needs room before the batch's own room is free again, so batches
        may not take all of it.

        Args:
            over_bytes: How much the bound may be exceeded.

        Raises:
            JournalFull: ``n_bytes`` more would exceed the bound.
        """
        most = self._max_bytes + over_bytes - n_bytes
        with self._lock:
            now = time.monotonic()
            if self._used_bytes > most or now - self._measured_at > _MEASURED_FOR_S:
                self._used_bytes, self._measured_at = self._measure(connection), now
            if self._used_bytes > most:
                raise JournalFull(
                    f"The journal has reached its bound of {self._max_bytes} bytes.",
                    hint="Raise journal.max_bytes; senders retry meanwhile.",
                )
            self._used_bytes += n_bytes


class Presence:
    """Whether a journal was in its place when last looked for. Any thread may call any method."""

    def __init__(self) -> None:
        self._gone: JournalGone | None = None

    @property
    def problem(self) -> str:
        gone = self._gone
        return "" if gone is None else str(gone)

    def gone(self, exc: JournalGone) -> None:
        """Record that the journal was removed or replaced, and log it once."""
        is_news, self._gone = self._gone is None, exc
        if is_news:
            _log.error("%s", exc)

    def there(self) -> None:
        """Record that the journal is back in its place."""
        if self._gone is not None:
            self._gone = None
            _log.warning("The journal is back. Requests are accepted again.")


def checksum(body: object, *columns: str | int) -> int:
    """Return the checksum that verifies a record on reading: SQLite does not notice flipped bits.

    Args:
        body: The large column. One flipped bit can turn it into other bytes that still decode.
        columns: The other columns that identify the record, among them its run and its number.
    """
    if not isinstance(body, bytes):
        return -1
    return zlib.crc32(body, zlib.crc32(repr(columns).encode()))


class Ownership(Protocol):
    """The runs that one bridge owns. Any thread may ask."""

    def epoch(self, key: ExperimentKey, /) -> int | None:
        """Return the number of this bridge's turn with the run; None while the run is not its own.

        One turn at a time owns a run, and each turn has a larger number than the one before. The
        number fences a turn's writes: they happen while the turn lasts, or not at all.
        """
        ...


class SoleOwner:
    """Ownership without sharing: every run always belongs to this bridge."""

    def epoch(self, key: ExperimentKey, /) -> int:  # noqa: ARG002  # all alike
        return 0


def write_owned(
    journal: Journal, owners: Ownership, key: ExperimentKey, function: Callable[[Connection], _T]
) -> _T:
    """Change a run's records in a transaction, if this bridge owns the run at that moment.

    Raises:
        LeaseLost: The run belongs to another bridge. Nothing was written.
        JournalError: See ``Journal.write``.
    """
    epoch = owners.epoch(key)
    if epoch is None:
        raise LeaseLost(f"{key} belongs to another bridge.")

    def fenced(connection: Connection) -> _T:
        if epoch:
            locked = connection.execute(
                "UPDATE runs SET epoch = epoch WHERE run_id = ? AND epoch = ? RETURNING number",
                (run_id(key.experiment, key.trial), epoch),
            ).fetchone()
            if locked is None:
                raise LeaseLost(f"{key} belongs to another bridge now.")
        return function(connection)

    return journal.write(fenced)


@dataclass(frozen=True, slots=True)
class Use:
    """Approximate bytes of one run in the journal.

    Attributes:
        waiting: Bytes of the batches that are not turned into rows yet.
        made: Bytes of what was made of batches: rows, state, description, logs and history.
        rows: The part of ``made`` that is rows.
    """

    waiting: int
    made: int
    rows: int = 0

    @property
    def total(self) -> int:
        return self.waiting + self.made
