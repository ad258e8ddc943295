"""The copies of an offline W&B run on the disk: one that is being written, and older ones.

Each opening writes the whole run anew, into a directory of its own. It counts as finished when its
rows and its exit record were read back from the disk; only then are older copies removed, and of
those only what holds no more rows of the same journal. A copy that came out short goes again if
an older one holds as much.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from otel_rl.bridge.track.wandb_file import RunFile
from otel_rl.errors import TrackerUnavailable

__all__ = ["OfflineCopy", "check_room"]

_MIB = 1 << 20
_READ_OLDER_S = 60.0  # an older copy that takes longer to read is left where it is
_HEAD_BYTES = 64 << 10  # has the record of the run, which names its journal


class OfflineCopy:
    """The copy that is being written.

    Args:
        directory: Of this copy.
        run_id: Of the run.
        journal: That the rows come from.
        stall_timeout_s: For how long the file may take no row while some are waiting.

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
        # Since when there is a row that is not in the file.
        self._waiting_since = time.monotonic()

    def begin(self) -> None:
        """Rows are about to be given to the SDK."""
        if self._file.rows == self.next_row:
            self._waiting_since = time.monotonic()

    def check_progress(self) -> None:
        """Read what has come to the file.

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
        """Remove the copies that hold nothing more than this one, which was verified."""
        for other in _others(self._file.directory, self._run_id):
            if other.read(timeout_s=_READ_OLDER_S) and self._holds_all_of(other):
                shutil.rmtree(other.directory, ignore_errors=True)

    def remove_if_needless(self) -> None:
        """Remove this copy, which came out short, if another one holds as many rows."""
        for other in _others(self._file.directory, self._run_id):
            if (
                other.read(timeout_s=_READ_OLDER_S)
                and other.journal == self._journal
                and other.rows >= self._file.rows
            ):
                shutil.rmtree(self._file.directory, ignore_errors=True)
                return

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
    """Refuse to begin a copy for which there is no room beside an older one.

    Args:
        parent: Where the copies are. It need not exist.
        run_id: Of the run.
        journal: That the rows come from.

    Raises:
        TrackerUnavailable: There is not.
    """
    largest, needed = None, 0
    for other in _others(parent / "new", run_id):
        other.read(max_bytes=_HEAD_BYTES)
        size = other.path.stat().st_size if other.path else 0
        if other.journal == journal and size > needed:
            largest, needed = other, size
    # An older one may have more beside the rows, so this is on the safe side; what it lets through
    # is read back.
    if largest is not None and _free_bytes(parent) < needed / 2:
        raise TrackerUnavailable(
            f"An offline W&B run is written anew, and beside {largest.directory} with "
            f"{needed / _MIB:.1f} MiB there is no room for that.",
            hint=_room_hint(largest.directory),
        )


def _others(directory: Path, run_id: str) -> Iterator[RunFile]:
    """What was not read yet of the other copies beside ``directory``, newest first."""
    for other in sorted(directory.parent.glob(f"offline-run-*-{run_id}*"), reverse=True):
        if other != directory:
            yield RunFile(other)


def _room_hint(directory: Path) -> str:
    return (
        f"Free space in {directory.parent} ({_free_bytes(directory) / _MIB:.1f} MiB are free). "
        "The journal has all rows, and the run is written anew."
    )


def _free_bytes(directory: Path) -> int:
    """What a user may write there, as far as the file system tells; quotas are not seen."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(nearest).free


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
