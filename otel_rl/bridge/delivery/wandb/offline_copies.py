"""Copies of an offline W&B run on disk: one that is being written, and older ones.

Each opening writes the whole run anew, into a directory of its own. It counts as finished when its
rows and its exit record were read back from the disk; only then are older copies removed, and only
those with no more rows of the same journal. An incomplete copy is removed if it could not be
opened, holds no row, or an older one holds as much.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from otel_rl.bridge.delivery.wandb.offline_file import RunFile
from otel_rl.errors import TrackerUnavailable

__all__ = ["OfflineCopy", "check_room", "check_writable", "removed_unless_opened"]

_MIB = 1 << 20
_READ_OLDER_S = 60.0  # for all older copies: unread ones stay
_HEAD_BYTES = 64 << 10  # contains the run record, which names its journal


class OfflineCopy:
    """Copy that is being written.

    Args:
        directory: Of this copy.
        run_id: Of the run.
        journal: Journal of the rows.
        stall_timeout_s: Longest time without progress of the file while rows are pending.

    Attributes:
        next_row: All rows below were given to the SDK.
    """

    def __init__(
        self, directory: Path, run_id: str, journal: str, *, stall_timeout_s: float
    ) -> None:
        self.next_row = 0
        self._file = RunFile(directory)
        self._run_id = run_id
        self._journal = journal
        self._stall_timeout_s = stall_timeout_s
        # Time since which a row is missing in the file.
        self._waiting_since = time.monotonic()

    def begin(self) -> None:
        """Note that rows are about to be given to the SDK."""
        if self._file.rows == self.next_row:
            self._waiting_since = time.monotonic()

    def check_progress(self) -> None:
        """Read the new part of the file.

        Raises:
            TrackerUnavailable: No row has come for too long, or the file is gone.
        """
        before, now = self._file.rows, time.monotonic()
        self._read()
        if self._file.rows > before or self._file.rows == self.next_row:
            self._waiting_since = now
        elif now - self._waiting_since > self._stall_timeout_s:
            raise self._short()

    def verify(self) -> None:
        """Read the finished file back.

        Raises:
            TrackerUnavailable: It lacks a row or the exit record.
        """
        directory = self._file.directory
        try:
            for path in (*directory.glob("*.wandb"), directory):
                _sync(path)
        except OSError as exc:
            raise TrackerUnavailable(
                f"{directory}: {exc.strerror}.", hint=_room_hint(directory)
            ) from exc
        self._read()
        if self._file.rows != self.next_row or self._file.exit_code is None:
            raise self._short()

    def remove_others(self) -> None:
        """Remove the copies that hold no more rows than this verified one."""
        for other in self._others():
            if self._holds_all_of(other):
                shutil.rmtree(other.directory, ignore_errors=True)

    def remove_if_needless(self) -> None:
        """Remove this incomplete copy, if it holds no row, or another one as many."""
        if not self._file.rows:
            shutil.rmtree(self._file.directory, ignore_errors=True)
            return
        for other in self._others():
            if other.journal == self._journal and other.rows >= self._file.rows:
                shutil.rmtree(self._file.directory, ignore_errors=True)
                return

    def _others(self) -> Iterator[RunFile]:
        """Yield the other copies that could be read to their end."""
        deadline = time.monotonic() + _READ_OLDER_S
        for other in _others(self._file.directory, self._run_id):
            with contextlib.suppress(OSError):  # unreadable: it stays
                if other.read(timeout_s=deadline - time.monotonic()):
                    yield other

    def _holds_all_of(self, other: RunFile) -> bool:
        return not other.rows or (other.journal == self._journal and other.rows <= self._file.rows)

    def _read(self) -> None:
        try:
            self._file.read()
        except OSError as exc:
            raise TrackerUnavailable(f"{self._file.directory}: {exc.strerror}.") from exc

    def _short(self) -> TrackerUnavailable:
        file = self._file
        end = " and no exit record" if file.exit_code is None else ""
        return TrackerUnavailable(
            f"W&B's file in {file.directory} has only {file.rows} of {self.next_row} rows{end}.",
            hint=_room_hint(file.directory),
        )


def check_room(parent: Path, run_id: str, journal: str) -> None:
    """Check that there is room for a new copy beside an older one.

    Args:
        parent: Directory of the copies. It need not exist.
        run_id: Of the run.
        journal: Journal of the rows.

    Raises:
        TrackerUnavailable: There is no room.
    """
    largest, needed = None, 0
    for other in _others(parent / "new", run_id):
        size = 0
        with contextlib.suppress(OSError):
            other.read(max_bytes=_HEAD_BYTES)
            size = other.path.stat().st_size if other.path else 0
        if other.journal == journal and size > needed:
            largest, needed = other, size
    # An older copy may be larger for the same rows, so this errs on the safe side; the copy is read
    # back.
    if largest is not None and _free_bytes(parent) < needed / 2:
        raise TrackerUnavailable(
            f"There is no room to rewrite the offline W&B run beside {largest.directory} with "
            f"{needed / _MIB:.1f} MiB there is no room for that.",
            hint=_room_hint(largest.directory),
        )


@contextlib.contextmanager
def removed_unless_opened(parent: Path, run_id: str) -> Iterator[None]:
    """Remove the directory of a copy that is made within the context, if that raises.

    While a disk is full, each attempt would leave one.

    Args:
        parent: Directory of the copies. It need not exist.
        run_id: Of the run.
    """
    known = {other.directory for other in _others(parent / "new", run_id)}
    try:
        yield
    except BaseException:
        for other in _others(parent / "new", run_id):
            if other.directory not in known:
                shutil.rmtree(other.directory, ignore_errors=True)
        raise


def check_writable(directory: Path) -> None:
    """Refuse an unwritable directory, which W&B would replace by a temporary one with a warning.

    Args:
        directory: Directory of the run.

    Raises:
        TrackerUnavailable: It cannot be read and written, by W&B's own test.
    """
    if not os.access(directory, os.W_OK | os.R_OK):
        raise TrackerUnavailable(
            f"W&B cannot write to {directory}.",
            hint="Check that the disk is mounted and that the bridge may write to it.",
        )


def _others(directory: Path, run_id: str) -> Iterator[RunFile]:
    """Yield the other copies beside ``directory``, unread, newest first."""
    for other in sorted(directory.parent.glob(f"offline-run-*-{run_id}*"), reverse=True):
        if other != directory:
            yield RunFile(other)


def _room_hint(directory: Path) -> str:
    return (
        f"Free space in {directory.parent} ({_free_bytes(directory) / _MIB:.1f} MiB are free). "
        "The journal has all rows, and the run is written anew."
    )


def _free_bytes(directory: Path) -> int:
    """Return the free bytes for a user, as far as the file system reports them; without quotas."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(nearest).free


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
