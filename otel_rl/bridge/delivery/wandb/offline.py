"""Offline W&B runs on the disk: the copy that is being written, and older ones.

wandb-core does not report what it has written: on a full disk it drops everything from then on,
even when there is room again, and finishes the run without an error. So only the file can be
trusted, and W&B's SDK has no reader for it.

Each opening writes the whole run anew, into a directory of its own. It counts as finished when its
rows and its exit record were read back from the disk; only then are older copies removed, and only
those with no more rows of the same journal. An incomplete copy is removed if it could not be
opened, holds no row, or an older one holds as much.

The file is a LevelDB log: blocks of 32 KiB, a record split over blocks where needed, each part
behind a header of checksum, length and kind. Reading stops at the end or at a damaged record, and
can resume there when the file has grown.
"""

import contextlib
import json
import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from otel_rl.bridge.delivery.wandb.server import JOURNAL_KEY
from otel_rl.errors import TrackerUnavailable

__all__ = [
    "OfflineCopy",
    "RunFile",
    "check_room",
    "check_writable",
    "removed_unless_opened",
]

_MIB = 1 << 20
_READ_OLDER_S = 60.0  # for all older copies: unread ones stay
_HEAD_BYTES = 64 << 10  # contains the run record, which names its journal

_FILE_HEADER = b":W&B\xe1\xbe\x00"
_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# The checksum covers the kind and the bytes after the header.
_SEEDS = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}

# First bytes of a record after its number: its kind. Most of a file is of other kinds.
_SUMMARY, _STATS = b"\x1a", b"\x3a"

_LOOK_AT_CLOCK = 4096  # records


class RunFile:
    """Content of an offline run's directory, as far as it was read. Used by one thread.

    Args:
        directory: Of the run. It need not exist.

    Attributes:
        rows: Rows 0 to ``rows - 1`` are there, with the files of their tables.
        journal: Identity of the journal of the rows; "" if it was not read yet.
        exit_code: Of the run; None while its exit record was not read.
        size: Bytes of the file that were read and are valid.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows = 0
        self.journal = ""
        self.exit_code: int | None = None
        self.size = 0
        self._inode = 0

    @property
    def path(self) -> Path | None:
        return next(iter(sorted(self.directory.glob("run-*.wandb"))), None)

    def read(self, *, max_bytes: int | None = None, timeout_s: float = float("inf")) -> bool:
        """Continue reading.

        Returns:
            Whether all valid bytes were read.

        Raises:
            OSError: The disk cannot be read.
        """
        deadline = time.monotonic() + timeout_s
        path = self.path
        if path is None:
            self._forget()
            return True
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self.size:
                self._forget()  # the file was replaced
                self._inode = about.st_ino
            if not self.size:
                if file.read(len(_FILE_HEADER)) != _FILE_HEADER:
                    return True
                self.size = len(_FILE_HEADER)
            begin = self.size
            for n, (record, end) in enumerate(_records(file, begin)):
                if not self._take(record):
                    return True
                self.size = end
                if max_bytes is not None and end - begin >= max_bytes:
                    return False
                if n % _LOOK_AT_CLOCK == 0 and time.monotonic() > deadline:
                    return False
        return True

    def _forget(self) -> None:
        self.rows = self.size = self._inode = 0
        self.journal = ""
        self.exit_code = None

    def _take(self, record: bytes) -> bool:
        if _kind(record) in {_SUMMARY, _STATS}:
            return True
        message = _parsed(record)
        match message.WhichOneof("record_type"):
            case "history":
                if message.history.step.num == self.rows:
                    if b"table-file" in record and not self._has_files(message.history):
                        return False
                    self.rows += 1
            case "run":
                for item in message.run.config.update:
                    if item.key == JOURNAL_KEY:
                        self.journal = str(json.loads(item.value_json))
            case "exit":
                self.exit_code = message.exit.exit_code
        return True

    def _has_files(self, history: Any) -> bool:  # a message of W&B's
        """Return whether the files that a row names are there with their full size."""
        for item in history.item:
            if "table-file" not in item.value_json:
                continue
            value = json.loads(item.value_json)
            if not isinstance(value, dict) or not {"path", "size"} <= value.keys():
                continue
            path = self.directory / "files" / str(value["path"])
            if not path.is_file() or path.stat().st_size != value["size"]:
                return False
        return True


class OfflineCopy:
    """Copy that is being written.

    Args:
        journal: Journal of the rows.
        stall_timeout_s: Longest time without progress of the file while rows are pending; infinite
            if such a time says nothing.

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
    """Check that there is room for a new copy beside an older one."""
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
    """Refuse an unwritable directory, which W&B would replace by a temporary one with a warning."""
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
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(nearest).free


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _records(file: BufferedReader, position: int) -> Iterator[tuple[bytes, int]]:
    """Yield each complete and valid record from ``position`` on, and its end."""
    file.seek(position)
    parts: list[bytes] = []
    while True:
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            file.seek(left, os.SEEK_CUR)
            position += left
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        checksum, length, kind = _HEADER.unpack(header)
        part = file.read(length)
        position += _HEADER.size + length
        # A record that is being written looks like a damaged one: it is read again later.
        if kind not in _SEEDS or len(part) < length or zlib.crc32(part, _SEEDS[kind]) != checksum:
            return
        if (kind in {_FULL, _FIRST}) == bool(parts):
            return
        parts.append(part)
        if kind in {_FULL, _LAST}:
            yield b"".join(parts), position
            parts = []


def _kind(record: bytes) -> bytes:
    """Return the byte after the record's number."""
    if not record.startswith(b"\x08"):
        return b""
    position = 1
    while record[position : position + 1] >= b"\x80":
        position += 1
    return record[position + 1 : position + 2]


# Any: the generated module declares its messages at run time.
def _parsed(record: bytes) -> Any:
    from wandb.proto import wandb_internal_pb2

    message = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # see above
    message.ParseFromString(record)
    return message
