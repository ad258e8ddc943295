"""Files of a journal that is one SQLite database: made for its owner alone, and watched."""

import fcntl
import logging
import math
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from otel_rl.bridge.journal.schema import identity_of, statements
from otel_rl.bridge.private_files import make_private_directory, open_private
from otel_rl.errors import JournalError, JournalFull, JournalGone, JournalLocked
from otel_rl.inbox import DATA_DIRECTORY

__all__ = [
    "DATA_DIRECTORY",
    "JOURNAL_FILE",
    "LOCK_FILE",
    "PAGE_BYTES",
    "LockFile",
    "OpenFiles",
    "is_in_use",
    "make_directory",
    "open_database",
]

_log = logging.getLogger(__name__)

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

_LEAST_FREE_BYTES: Final = 1 << 20  # an empty journal takes a third of it

_MIN_PAGES: Final = 64  # in fewer there is hardly room for the schema


def open_database(path: Path, max_bytes: int) -> tuple[sqlite3.Connection, str]:
    """Open the journal, or make one, with its identity.

    Args:
        path: Of the database.
        max_bytes: See ``SqliteJournal``.

    Raises:
        ConfigError: Another version wrote to it.
        JournalError: What is there is no journal, or a damaged one.
    """
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
    """Set a connection up, make what is missing, and return the identity of the journal."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    # Some builds overwrite what is removed, which writes each taken batch once more.
    connection.execute("PRAGMA secure_delete=OFF")
    # Deletes still work in a database that is full by page count, unlike on a full disk.
    max_pages = max(2 * max_bytes // PAGE_BYTES, _MIN_PAGES)
    connection.execute(f"PRAGMA max_page_count={max_pages}")
    if not _columns_of_meta(connection):
        schema = statements(
            number="INTEGER PRIMARY KEY AUTOINCREMENT", of_bytes="BLOB", keyed=" WITHOUT ROWID"
        )
        connection.executescript(f"BEGIN;{schema}COMMIT")
    return identity_of(
        connection,
        _columns_of_meta(connection),
        place=f"data: {str(path)!r}",
        another="another directory (--data)",
    )


def _columns_of_meta(connection: sqlite3.Connection) -> set[str]:
    found = connection.execute("SELECT name FROM pragma_table_info('meta')")
    return {name for (name,) in found}


def _is_full(exc: Exception, directory: Path) -> bool:
    """Return whether the disk is full: SQLite has several errors for that, also of a bad disk."""
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


def make_directory(directory: Path) -> None:
    """Make the directory and its parents, so that they survive power loss."""
    for path in make_private_directory(directory):
        if path.name == DATA_DIRECTORY:  # in a repository: the journals hold prompts and answers
            with open(  # a Path has no opener
                path / ".gitignore", "w", encoding="utf-8", opener=open_private
            ) as ignored:
                ignored.write("*\n")
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


_LATELY_S = 0.1
"""A reader whose files were there this long ago reads on."""


class OpenFiles:
    """The files of a journal, as they were when it was opened.

    Args:
        paths: Of those that are there for as long as it is open.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._known = {os.fspath(path): _on_disk(path) for path in paths}
        self._checked_s = -math.inf

    def check_lately(self) -> None:
        """Check, unless that was done a moment ago.

        Raises:
            JournalGone: As of ``check``.
        """
        if time.monotonic() - self._checked_s > _LATELY_S:
            self.check()

    def check(self) -> None:
        """Costs some microseconds, and lets other threads take the interpreter.

        Raises:
            JournalGone: One was removed, renamed or replaced. It may be put back.
        """
        for path, known in self._known.items():
            if _on_disk(path) != known:
                self._checked_s = -math.inf
                raise JournalGone(
                    f"{path!r} was removed or replaced while the bridge was using it. Nothing more "
                    "is acknowledged.",
                    hint="Restore it. If it is lost, start the bridge again: senders repeat what "
                    "was not acknowledged; acknowledged data that is not yet in a run is "
                    "lost.",
                )
        self._checked_s = time.monotonic()


def _on_disk(path: str | Path) -> tuple[int, int] | None:
    """Return the identity of a file while it is open; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  # before each answer; a Path costs as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino


class LockFile:
    """Held as long as the bridge runs; the kernel lets go of it when the process dies."""

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
        """Let go of the lock. Idempotent."""
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
