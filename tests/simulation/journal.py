"""The journal of simulated bridges: in memory, and what crashes, crashes at a transaction."""

import contextlib
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TypeVar

from otel_rl.bridge.journal.interface import Connection, Room, Value, write_owned
from otel_rl.bridge.journal.leases import BridgeLeases, LeaseTable
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import JournalFull, LeaseLost

_T = TypeVar("_T")

_BRIDGES = "CREATE TABLE bridges (owner TEXT NOT NULL PRIMARY KEY, expires_ns BIGINT NOT NULL)"

# What bridges on one database say in PostgreSQL's words: one writer at a time needs no locks.
_POSTGRES_CLOCK = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT)"
_POSTGRES_ONLY = (" FOR NO KEY UPDATE SKIP LOCKED", " FOR NO KEY UPDATE", ' COLLATE "C"')

# The functions that write, by what a crash beside them is to a person.
_KINDS = {
    Spool.submit.__qualname__: "a request",
    RunStore.commit.__qualname__: "rows",
    write_owned.__qualname__: "a position",
    BridgeLeases.__qualname__: "a lease",
    LeaseTable.__qualname__: "a lease",
}


class Crash(BaseException):
    """The bridge's process is dead. No ``except Exception`` of it sees that."""


class MemoryJournal(SqliteJournal):
    """A journal without files, threads and fsync; it outlives the simulated processes.

    What is committed is durable, by definition: whether that is so on a disk is the business of
    ``tests/disk``.

    Args:
        chance: Decides where it crashes.
        clock: Of the database, in seconds.

    Attributes:
        crash_rate: How many of the transactions are the last thing that a process does.
        is_full: Whether the disk has room for nothing.
        events: What has happened, and how often.
    """

    def __init__(
        self, chance: random.Random, clock: Callable[[], float], events: Counter[str]
    ) -> None:
        self._chance = chance
        self._clock = clock
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.deserialize(_new_journal())
        self._connection.execute(_BRIDGES)
        (self._identity,) = self._connection.execute("SELECT identity FROM meta").fetchone()
        self._max_bytes = 1 << 30
        self.room = Room(self._max_bytes, lambda _: 0)
        self.crash_rate = 0.0
        self.is_full = False
        self.events = events

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        kind = _kind(function)
        self._may_crash(f"crash before {kind}")
        if self.is_full:
            self.events[f"no room for {kind}"] += 1
            raise JournalFull("The simulated disk is full.")
        self._connection.execute("BEGIN")
        try:
            result = function(_Translated(self._connection, self._clock))
        except BaseException as exc:
            self._connection.execute("ROLLBACK")
            if isinstance(exc, LeaseLost):
                self.events[f"fenced write of {kind}"] += 1
            raise
        self._connection.execute("COMMIT")
        self._may_crash(f"crash after {kind}")
        return result

    def submit(self, function: Callable[[Connection], _T], /) -> Future[_T]:
        """Done at once: there is one thread. A crash is no answer."""
        answer: Future[_T] = Future()
        try:
            answer.set_result(self.write(function))
        except Exception as exc:  # noqa: BLE001  # handed to the caller
            answer.set_exception(exc)
        return answer

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        yield self._connection

    def close(self) -> None:
        self._connection.close()

    def _may_crash(self, what: str) -> None:
        if self._chance.random() < self.crash_rate:
            self.events[what] += 1
            raise Crash


class Way(MemoryJournal):
    """One bridge's way to a journal, on which it may fall asleep.

    Args:
        journal: Shared by the bridges.
        pause: Called before each transaction.
    """

    def __init__(self, journal: MemoryJournal, pause: Callable[[], None]) -> None:
        self._journal = journal
        self._pause = pause
        self._identity = journal.identity
        self._max_bytes = journal.max_bytes
        self.room = journal.room
        self._connection = journal._connection

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        self._pause()
        return self._journal.write(function)

    def close(self) -> None:
        """The journal lives longer."""


class _Translated:
    """A connection that takes what bridges say to PostgreSQL."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._now_ns = str(int(clock() * 1e9))

    def execute(self, sql: str, parameters: Sequence[Value] = (), /) -> sqlite3.Cursor:
        return self._connection.execute(self._translated(sql), parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Value]], /) -> object:
        return self._connection.executemany(self._translated(sql), parameters)

    def _translated(self, sql: str) -> str:
        sql = sql.replace(_POSTGRES_CLOCK, self._now_ns)
        for words in _POSTGRES_ONLY:
            sql = sql.replace(words, "")
        return sql


def _kind(function: Callable[..., object]) -> str:
    name = getattr(function, "__qualname__", "")
    return next((kind for start, kind in _KINDS.items() if name.startswith(start)), "something")


@cache
def _new_journal() -> bytes:
    """The file of a journal that was just made."""
    with tempfile.TemporaryDirectory() as directory:
        SqliteJournal(Path(directory)).close()
        with contextlib.closing(sqlite3.connect(Path(directory) / JOURNAL_FILE)) as connection:
            # A database in memory has no write-ahead log to be in.
            connection.execute("PRAGMA journal_mode=DELETE")
            return connection.serialize()
