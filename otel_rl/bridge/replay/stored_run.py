"""A run of a journal as a source of rows: those that exist when the replay begins.

It reads beside a bridge that runs, and changes nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import looking
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.errors import JournalClosed
from otel_rl.records import Description, ExperimentKey, KeySpec, Row

__all__ = ["ReadOnlyJournal", "StoredRun"]

_T = TypeVar("_T")


class ReadOnlyJournal:
    """The journal of a directory, see ``Journal``. Every write is refused.

    Raises:
        JournalError: It cannot be read.
    """

    shards = 1
    hold_row = lock_row = ""
    busy_s = 0.0
    max_bytes = 0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with looking(directory) as connection:
            (identity,) = connection.execute("SELECT identity FROM meta").fetchone()
        self.identity = str(identity)

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        """Refuse it.

        Raises:
            JournalClosed: Always.
        """
        raise JournalClosed(f"{function} may not write: the journal is only read.")

    def read(self) -> AbstractContextManager[Connection]:
        """See ``Journal.read``."""
        return looking(self._directory)

    def check_room(self, connection: Connection, n_bytes: int, /) -> None:
        """There is no room: nothing is written."""

    def size(self) -> int:
        """Nothing is written."""
        return 0

    def close(self) -> None:
        """Connections are closed after each use."""


class StoredRun:
    """A run in a journal, under its own or another name, see ``RowSource``.

    Args:
        store: The runs of the journal.
        stored: Name of the run there.
        identity: Marks its rows; default: that of the journal, so that its bridge and a replay
            are the same.

    Attributes:
        stored: As given.
        end: Number of its rows; later ones are left to another replay.
        first: Number of the first row that the journal still has.
        identity: See ``RowSource``.

    Raises:
        JournalError: It cannot be read.
    """

    def __init__(self, store: RunStore, stored: ExperimentKey, identity: str = "") -> None:
        self._store = store
        self.stored = stored
        self.identity = identity or store.identity
        self.end = store.next_row(stored)
        kept = store.rows(stored, start=0, limit=1)
        self.first = kept[0].number if kept else self.end
        self._description = store.description(stored)

    def rows(self, _: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        """See ``RowSource``."""
        return self._store.rows(
            self.stored, start=start, limit=max(0, min(limit, self.end - start))
        )

    def keys(self, _: ExperimentKey, /) -> Sequence[KeySpec]:
        """See ``RowSource``."""
        return self._store.keys(self.stored)

    def is_ours(self, _: ExperimentKey, /) -> bool:
        """Nothing is written to the journal."""
        return True

    def next_row(self, _: ExperimentKey, /) -> int:
        """See ``RowSource``."""
        return self.end

    def description(self, _: ExperimentKey, /) -> Description:
        """See ``RowSource``."""
        return self._description

    def has_room(self, _: ExperimentKey, /) -> bool:
        """Nothing is written to the journal."""
        return True
