"""A journal that is one SQLite file: durable by its write-ahead log with ``synchronous=FULL``.

* Shared fsync: calls that wait at the same moment are committed together.
* One owner: a second bridge on the same directory is refused.
* Nothing is acknowledged that cannot be found again: the files at the path must be those that are
  written. SQLite goes on writing to a file that was removed, without an error.

One thread, ``otel-rl-journal``, owns the only writing connection. Reads borrow one of a few others
and see everything whose ``write`` has returned.
"""

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.sqlite_files import (
    JOURNAL_FILE,
    LOCK_FILE,
    PAGE_BYTES,
    LockFile,
    OpenFiles,
    make_directory,
    open_database,
)
from otel_rl.errors import (
    ConfigError,
    JournalClosed,
    JournalFull,
)

__all__ = ["JOURNAL_FILE", "SqliteJournal"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Functions that share one commit: enough for every receiver thread, small enough to keep the
# transaction short.
_MAX_GROUP: Final = 256


class SqliteJournal:
    """One directory, one process. Any thread may call any method.

    Args:
        directory: Created if missing; holds ``JOURNAL_FILE`` and its lock.
        max_bytes: Bound for incoming data, see ``check_room``. What is made of it may take as much
            again.

    Raises:
        ConfigError: The directory cannot be used, or another version wrote to it.
        JournalLocked: Another process has it open.
        JournalError: What is there is no journal, or a damaged one.
    """

    def __init__(self, directory: Path, *, max_bytes: int = 10 << 30) -> None:
        self._max_bytes = max_bytes
        try:
            make_directory(directory)
            self._lock_file = LockFile(directory / LOCK_FILE)
        except OSError as exc:
            raise ConfigError(
                f"data: cannot use {str(directory)!r}: {exc.strerror}.",
                hint="Choose a directory that this user may write, with --data.",
            ) from exc
        self._path = directory / JOURNAL_FILE
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        # When the commit that is being made was begun; written by the journal's thread alone.
        self._busy_since_s: float | None = None
        # _closing guards the moment between the last accepted call and the end of the queue.
        self._closing = threading.Lock()
        # Idle connections: as many as ever read at once.
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        try:
            connection, self._identity = open_database(self._path, max_bytes)
        except BaseException:
            self._lock_file.close()
            raise
        # From here on there are all four.
        self._files = OpenFiles(
            [directory / LOCK_FILE, *(Path(f"{self._path}{end}") for end in ("", "-wal", "-shm"))]
        )
        self._thread = threading.Thread(
            target=self._run, args=(connection,), name="otel-rl-journal", daemon=True
        )
        self._thread.start()

    @property
    def identity(self) -> str:
        """Random, made with the file: marks the runs of this journal."""
        return self._identity

    @property
    def max_bytes(self) -> int:
        """The bound that it was given."""
        return self._max_bytes

    @property
    def shards(self) -> int:
        """One: one thread writes."""
        return 1

    @property
    def hold_row(self) -> str:
        """Nothing: one thread writes."""
        return ""

    @property
    def lock_row(self) -> str:
        """Nothing: one thread writes."""
        return ""

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        """See ``Journal.write``."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()

        def work(connection: sqlite3.Connection) -> Callable[[], None]:
            result = function(connection)
            return lambda: future.set_result(result)

        with self._closing:
            if self._closed.is_set():
                raise JournalClosed("The bridge is stopping.", hint="Send the batch again later.")
            self._queue.put(_Work(work, future.set_exception))
        return future.result()

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """See ``Journal.read``.

        A cursor that is left open would show the connection's next reader the past. After an
        exception it is not used again, for the same reason.
        """
        self._files.check_lately()
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
            self._files.check()  # else another program's new file would be read
            connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            # A name that the disk has damaged harms its own run only.
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._readers.put(connection)
        if self._closed.is_set():
            self._close_readers()

    def check_room(self, connection: Connection, n_bytes: int, /) -> None:
        """See ``Journal.check_room``."""
        if _size(connection) + n_bytes > self._max_bytes:
            raise JournalFull(
                f"The journal has reached its bound of {self._max_bytes} bytes.",
                hint="Raise journal.max_bytes; senders retry meanwhile.",
            )

    @property
    def busy_s(self) -> float:
        """For how long the disk has kept a commit waiting, and all who wait for it; 0 if none."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def size(self) -> int:
        """Bytes in use, of the pages of the database."""
        with self.read() as connection:
            return _size(connection)

    def close(self) -> None:
        """Finish accepted writes, then close. Idempotent."""
        with self._closing:
            if self._closed.is_set():
                return
            self._closed.set()
            self._queue.put(None)
        self._thread.join()
        self._close_readers()
        self._lock_file.close()

    def _close_readers(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()

    def _run(self, connection: sqlite3.Connection) -> None:
        ended = False
        while not ended:
            work = self._queue.get()
            group: list[_Work] = []
            while True:
                if work is None:
                    ended = True
                    break
                group.append(work)
                if len(group) >= _MAX_GROUP:
                    break
                try:
                    work = self._queue.get_nowait()
                except queue.Empty:
                    break
            if group:
                self._busy_since_s = time.monotonic()
                _commit(connection, group, self._files.check)
                self._busy_since_s = None
        connection.close()


def _size(connection: Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages - free) * PAGE_BYTES


class _Work:
    """One function that waits for the database, and the result for its caller."""

    __slots__ = ("fail", "run")

    def __init__(
        self,
        run: Callable[[sqlite3.Connection], Callable[[], None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.run = run
        self.fail = fail


def _commit(connection: sqlite3.Connection, group: list[_Work], check: Callable[[], None]) -> None:
    """Run a group in one transaction; a failing member does not undo the others.

    Args:
        connection: The writing one.
        group: Who waits for it.
        check: Raises JournalGone if what is written is not where it will be looked for.
    """
    succeed: list[tuple[_Work, Callable[[], None]]] = []
    failed: list[tuple[_Work, BaseException]] = []
    try:
        check()
        connection.execute("BEGIN IMMEDIATE")
        if len(group) == 1:  # nearly always: nobody else's work is to be kept if it fails
            (work,) = group
            succeed.append((work, work.run(connection)))
        else:
            _run_each(connection, group, succeed, failed)
        connection.execute("COMMIT")
        check()  # once more: it may have gone while the disk was waited for
    except Exception as exc:  # noqa: BLE001  # handed to every caller of the group
        with contextlib.suppress(sqlite3.Error):  # or the callers would wait for ever
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        for work in group:
            work.fail(_translated(exc))
        return
    for work, error in failed:
        work.fail(error)
    for _, done in succeed:
        done()


def _run_each(
    connection: sqlite3.Connection,
    group: list[_Work],
    succeed: list[tuple[_Work, Callable[[], None]]],
    failed: list[tuple[_Work, BaseException]],
) -> None:
    """Run the members of a group, and undo what those did that fail."""
    for work in group:
        connection.execute("SAVEPOINT work")
        try:
            done = work.run(connection)
        except Exception as exc:  # handed to the caller, who waits for it
            if not connection.in_transaction:  # SQLite rolled everything back: disk full, I/O
                raise
            connection.execute("ROLLBACK TO work")
            failed.append((work, _translated(exc)))
        else:
            succeed.append((work, done))
        connection.execute("RELEASE work")


def _translated(exc: Exception) -> Exception:
    if isinstance(exc, sqlite3.OperationalError) and exc.sqlite_errorcode in {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
    }:
        return JournalFull(
            f"The journal has no room: {exc}.",
            hint="Free disk space or raise journal.max_bytes; senders retry meanwhile.",
        )
    return exc
