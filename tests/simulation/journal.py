"""The journal of a simulated bridge: in memory, and what crashes, crashes at a transaction."""

import contextlib
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import JournalFull

__all__ = ["Crash", "MemoryJournal"]

_T = TypeVar("_T")


class Crash(BaseException):
    """The bridge's process is dead. No ``except Exception`` of it sees that."""


class MemoryJournal(SqliteJournal):
    """A journal without files, threads and fsync; it outlives the simulated process.

    What is committed is durable, by definition: whether that is so on a disk is the business of
    ``tests/disk``.

    Args:
        chance: Decides where it crashes.

    Attributes:
        crash_rate: How many of the transactions are the last thing that the process does.
        is_full: Whether the disk has room for nothing.
        writes: Transactions so far.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.deserialize(_new_journal())
        (self._identity,) = self._connection.execute("SELECT identity FROM meta").fetchone()
        self._max_bytes = 1 << 30
        self.crash_rate = 0.0
        self.is_full = False
        self.writes = 0

    def write(self, function: Callable[[sqlite3.Connection], _T]) -> _T:
        self._may_crash()
        if self.is_full:
            raise JournalFull("The simulated disk is full.")
        self.writes += 1
        self._connection.execute("BEGIN")
        try:
            result = function(self._connection)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        self._may_crash()
        return result

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        yield self._connection

    def close(self) -> None:
        self._connection.close()

    def _may_crash(self) -> None:
        if self._chance.random() < self.crash_rate:
            raise Crash


@cache
def _new_journal() -> bytes:
    """The file of a journal that was just made."""
    with tempfile.TemporaryDirectory() as directory:
        SqliteJournal(Path(directory)).close()
        with contextlib.closing(sqlite3.connect(Path(directory) / JOURNAL_FILE)) as connection:
            # A database in memory has no write-ahead log to be in.
            connection.execute("PRAGMA journal_mode=DELETE")
            return connection.serialize()
