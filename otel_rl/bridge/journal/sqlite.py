"""A journal that is one SQLite file: durable by its write-ahead log with ``synchronous=FULL``.

* Shared fsync: writes that wait at the same moment are committed together.
* One owner: a second bridge on the same directory is refused.
* Every acknowledged write can be found again: the files at the path must be those that are written.
  SQLite goes on writing to a file that was removed, without an error.

One thread, ``otel-rl-journal``, owns the only writing connection. Reads borrow one of a few other
connections and see every change whose ``write`` has returned.
"""

import contextlib
import fcntl
import logging
import os
import queue
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

from otel_rl.bridge.journal.interface import Connection, Presence, Room
from otel_rl.bridge.journal.schema import Dialect, identity_of
from otel_rl.bridge.private_files import sync
from otel_rl.errors import (
    ConfigError,
    JournalClosed,
    JournalError,
    JournalFull,
    JournalGone,
    JournalLocked,
)
from otel_rl.inbox import make_private_directory

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Write = tuple[Callable[[Connection], _T], Future[_T]]

# Functions that share one commit: enough for every receiver thread, small enough to keep the
# transaction short.
_MAX_GROUP: Final = 256


class SqliteJournal:
    """Journal in one directory, for one process. Any thread may call any method.

    Args:
        directory: Created if missing; it holds ``JOURNAL_FILE`` and the journal's lock.
        max_bytes: Bound for incoming data, see ``Room``. What is made of the data may take as
            much again.

    Raises:
        ConfigError: The directory cannot be used, or another version wrote to it.
        JournalLocked: Another process has the journal open.
        JournalError: What is there is not a journal, or a damaged one.
    """

    def __init__(self, directory: Path, *, max_bytes: int = 10 << 30) -> None:
        self._max_bytes = max_bytes
        try:
            for path in make_private_directory(directory):
                sync(path.parent)
            self._lock_file = LockFile(directory / LOCK_FILE)
        except OSError as exc:
            raise ConfigError(
                f"data: cannot use {str(directory)!r}: {exc.strerror}.",
                hint="Choose a directory that this user may write, with --data.",
            ) from exc
        self._path = directory / JOURNAL_FILE
        self._queue: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
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
        self._presence = Presence()
        self.room = Room(max_bytes, _size)
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
        return self._identity

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @property
    def shards(self) -> int:
        return 1

    @property
    def lock_row(self) -> str:
        return ""

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        return self.submit(function).result()

    def submit(self, function: Callable[[Connection], _T], /) -> Future[_T]:
        result: Future[_T] = Future()
        result.set_running_or_notify_cancel()  # a caller that gives up must not stop the thread
        with self._closing:
            is_closed = self._closed.is_set()
            if not is_closed:
                self._queue.put((function, result))
        if is_closed:
            result.set_exception(
                JournalClosed("The bridge is stopping.", hint="Send the batch again later.")
            )
        return result

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """See ``Journal.read``.

        A cursor that is left open would show the connection's next reader an old state. A
        connection is not used again after an exception, for the same reason.
        """
        self._check()
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
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

    @property
    def problem(self) -> str:
        return self._presence.problem

    @property
    def busy_s(self) -> float:
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def size(self) -> int:
        with self.read() as connection:
            return _size(connection)

    def close(self) -> None:
        with self._closing:
            if self._closed.is_set():
                return
            self._closed.set()
            self._queue.put(None)
        self._thread.join()
        self._close_readers()
        self._lock_file.close()

    def _check(self) -> None:
        was_gone = bool(self._presence.problem)
        try:
            self._files.check()
        except JournalGone as exc:
            self._presence.gone(exc)
            raise
        if was_gone:  # not what another thread has found since this look began
            self._presence.there()

    def _close_readers(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()

    def _run(self, connection: sqlite3.Connection) -> None:
        ended = False
        while not ended:
            work = self._queue.get()
            group: list[_Write[Any]] = []
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
                _commit(connection, group, self._check)
                self._busy_since_s = None
            del work, group  # or the last batches would stay until others come
        connection.close()


# One statement: other threads may run at each, and the journal's then waits for them.
_PAGES_IN_USE: Final = (
    "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"
)


def _size(connection: Connection) -> int:
    (pages,) = connection.execute(_PAGES_IN_USE).fetchone()
    return int(pages) * PAGE_BYTES


def _commit(
    connection: sqlite3.Connection, group: Sequence["_Write[Any]"], check: Callable[[], None]
) -> None:
    """Commit a group of writes in one transaction; a failing member does not undo the others.

    Args:
        check: Raises JournalGone if the files that are written are not at the journal's path.
    """
    done: list[Callable[[], None]] = []
    try:
        connection.execute("BEGIN IMMEDIATE")
        if len(group) == 1:  # nearly always: nobody else's work is to be kept if it fails
            ((function, result),) = group
            done.append(partial(result.set_result, function(connection)))
        else:
            done += [_run_apart(connection, *one) for one in group]
        connection.execute("COMMIT")
        check()  # last: they may go while the disk is waited for
    except Exception as exc:  # noqa: BLE001  # handed to every caller of the group
        with contextlib.suppress(sqlite3.Error):  # or the callers would wait for ever
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        for _, result in group:
            result.set_exception(_translated(exc))
        return
    for tell in done:
        tell()


def _run_apart(
    connection: sqlite3.Connection, function: Callable[[Connection], _T], result: "Future[_T]"
) -> Callable[[], None]:
    """Run one of several functions in a transaction, and undo its changes if it fails.

    Returns:
        A function that tells the caller the result, once the transaction is durable.
    """
    connection.execute("SAVEPOINT work")
    try:
        tell = partial(result.set_result, function(connection))
    except Exception as exc:  # handed to the caller, who waits for it
        if not connection.in_transaction:  # SQLite rolled everything back: disk full, I/O
            raise
        connection.execute("ROLLBACK TO work")
        tell = partial(result.set_exception, _translated(exc))
    connection.execute("RELEASE work")
    return tell


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
    # A refusal needs no traceback, whose frames would hold what was refused.
    return exc.with_traceback(None) if isinstance(exc, JournalError) else exc


JOURNAL_FILE: Final = "journal.db"
"""Its name in the data directory."""

LOCK_FILE: Final = "lock"
"""Name of the lock in the data directory."""

# A reader that looks whether a bridge holds the lock holds it for some microseconds.
_LOCK_TRIES: Final = 10
_LOCK_PAUSE_S: Final = 0.02

PAGE_BYTES: Final = 4096  # SQLite's default

_OWNER_ONLY: Final = 0o600

_BESIDE: Final = ("-wal", "-shm", "-journal")  # what SQLite puts beside it, as it is itself

_DAMAGED_HINT: Final = "Move the file away to start a new one, and keep it for inspection."
_FULL_HINT: Final = "Free disk space, or choose another directory with --data."

_DIALECT: Final = Dialect(
    number="INTEGER PRIMARY KEY AUTOINCREMENT",
    of_bytes="BLOB",
    keyed=" WITHOUT ROWID",
    trigger=[
        (
            "CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN"
            " UPDATE {sums} SET {sum} = {sum} {sign} ({side}.bytes + {more}) WHERE {of_record}; END"
        )
    ],
)

_LEAST_FREE_BYTES: Final = 1 << 20  # an empty journal takes a third of it

_OLDEST_SQLITE: Final = (3, 35)  # the first with RETURNING

_MIN_PAGES: Final = 64  # in fewer there is hardly room for the schema


def open_database(path: Path, max_bytes: int) -> tuple[sqlite3.Connection, str]:
    """Open the journal, or create one; return it with its identity.

    Raises:
        ConfigError: Another version wrote the journal, or Python's SQLite is too old.
        JournalError: What is there is not a journal, or a damaged one.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        oldest = ".".join(map(str, _OLDEST_SQLITE))
        raise ConfigError(
            f"The bridge needs SQLite {oldest} or newer; this Python has {sqlite3.sqlite_version}.",
            hint="Use a Python that brings its own SQLite, such as one of uv or conda.",
        )
    is_new = not path.exists()
    try:
        # SQLite gives the files beside it the mode of this one. A directory that was there
        # before may let others in, and who could write here could run code in the bridge.
        if is_new:
            path.touch(mode=_OWNER_ONLY)
        _keep_to_owner(path.parent)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            return connection, _prepared(connection, path, max_bytes)
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.DatabaseError, UnicodeDecodeError) as exc:
        if is_new:  # it holds nothing, not even tables
            for end in ("", *_BESIDE):
                Path(f"{path}{end}").unlink(missing_ok=True)
        words = f"Cannot open the journal {str(path)!r}: {exc}."
        if _is_full(exc, path.parent):
            raise JournalFull(words, hint=_FULL_HINT) from exc
        raise JournalError(words, hint=_DAMAGED_HINT) from exc


def _prepared(connection: sqlite3.Connection, path: Path, max_bytes: int) -> str:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    # Some builds overwrite what is removed, which writes each taken batch once more.
    connection.execute("PRAGMA secure_delete=OFF")
    # Deletes still work in a database that is full by page count, unlike on a full disk.
    max_pages = max(2 * max_bytes // PAGE_BYTES, _MIN_PAGES)
    connection.execute(f"PRAGMA max_page_count={max_pages}")
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        connection.executescript(";".join(["BEGIN", *_DIALECT.statements(), "COMMIT"]))
    return identity_of(
        connection, place=f"data: {str(path)!r}", another="another directory (--data)"
    )


def _is_full(exc: Exception, directory: Path) -> bool:
    """Return whether the disk is full. SQLite has several errors for that, also of a bad disk."""
    is_told = isinstance(exc, sqlite3.Error) and exc.sqlite_errorcode == sqlite3.SQLITE_FULL
    return is_told or shutil.disk_usage(directory).free < _LEAST_FREE_BYTES


def _keep_to_owner(directory: Path) -> None:
    """Restrict files to their owner that an older version, a copy or a backup has made readable."""
    for name in (JOURNAL_FILE, *(JOURNAL_FILE + end for end in _BESIDE), "lock"):
        path = directory / name
        try:
            if stat.S_IMODE(path.stat().st_mode) & ~_OWNER_ONLY:
                path.chmod(_OWNER_ONLY)
        except FileNotFoundError:
            pass
        except PermissionError:
            _log.warning("%s belongs to another user, who decides who may read it.", path)


class OpenFiles:
    """The identities of a journal's files at the time it was opened.

    Args:
        paths: Files that exist for as long as the journal is open.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._known = {os.fspath(path): _on_disk(path) for path in paths}

    def check(self) -> None:
        """Check that the files are still in place, in some microseconds; lets other threads run.

        Raises:
            JournalGone: A file was removed, renamed or replaced. It may be put back.
        """
        for path, known in self._known.items():
            if _on_disk(path) != known:
                raise JournalGone(
                    f"{path!r} was removed or replaced while the bridge was using it. Nothing more "
                    "is acknowledged.",
                    hint="Restore it. If it is lost, start the bridge again: senders repeat what "
                    "was not acknowledged; acknowledged data that is not yet in a run is "
                    "lost.",
                )


def _on_disk(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # before each answer; a Path costs as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino


class LockFile:
    """Lock that a bridge holds while it runs; the kernel frees it when the process dies."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        self._file = os.fdopen(os.open(path, flags, _OWNER_ONLY), "a+")
        try:
            _lock(self._file)
        except OSError as exc:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise JournalLocked(
                f"{str(path.parent)!r} is in use by process {holder}.",
                hint="Stop it, or give this bridge its own directory with --data.",
            ) from exc
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _lock(file: TextIO) -> None:
    for tries_left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def is_in_use(directory: Path) -> bool:
    """Return whether a bridge uses the journal in ``directory``; True where that is unknown."""
    try:
        with (directory / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is held; or this is a copy without it, or that of another user
        return True
    return False
