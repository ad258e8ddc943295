"""Offline W&B runs on the disk: the copy that is being written, and older copies.

wandb-core does not report what it has written: on a full disk it drops everything from then on,
even when there is room again, and finishes the run without an error. So only the file can be
trusted, and W&B's SDK has no reader for the file.

Each opening writes the whole run anew, into a directory of its own. The copy counts as finished
when its rows and its exit record were read back from the disk; only then are older copies removed,
and only those that have no more rows of the same journal. An incomplete copy is removed if it could
not be opened, holds no row, or an older copy holds as much.

The file is a LevelDB log: blocks of 32 KiB, a record split over blocks where needed, each part
behind a header of checksum, length and kind. Reading stops at the end or at a damaged record.
"""

import contextlib
import json
import os
import shutil
import struct
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from otel_rl.bridge.delivery.wandb.server import JOURNAL_KEY
from otel_rl.bridge.private_files import sync
from otel_rl.errors import TrackerUnavailable

_MIB = 1 << 20
_FULL_BYTES = 16 << 10  # what is left of a disk that takes no more rows
_READ_OLDER_S = 60.0  # for all older copies: unread ones stay

_FILE_HEADER = b":W&B\xe1\xbe\x00"
_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# The checksum covers the kind and the bytes after the header.
_SEEDS = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}

_MOST_PARTS = (64 << 20) // _BLOCK  # of a record; W&B's own have 10 MiB at most

_LOOK_AT_CLOCK = 4096  # records


class RunFile:
    """Content of an offline run's directory, read once.

    Args:
        directory: Directory of the run. It need not exist.
        timeout_s: Seconds after which reading ends.

    Attributes:
        rows: Rows 0 to ``rows - 1`` are in the file, and the files of their tables exist.
        journal: Identity of the journal of the rows; "" if the file does not name it.
        exit_code: Exit code of the run; None without an exit record.
        is_read: Whether all valid records were read.

    Raises:
        OSError: The disk cannot be read.
    """

    def __init__(self, directory: Path, *, timeout_s: float = float("inf")) -> None:
        self.directory = directory
        self.rows = 0
        self.journal = ""
        self.exit_code: int | None = None
        self.is_read = True
        deadline = time.monotonic() + timeout_s
        path = _file_in(directory)
        if path is None:
            return
        with path.open("rb") as file:
            for n, record in enumerate(records(file)):
                if not self._take(record):
                    return
                if n % _LOOK_AT_CLOCK == 0 and time.monotonic() > deadline:
                    self.is_read = False
                    return

    def _take(self, record: bytes) -> bool:
        message = parsed(record)
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
    """The copy that is being written.

    Attributes:
        next_row: All rows below it were given to the SDK.
    """

    def __init__(self, directory: Path, run_id: str, journal: str) -> None:
        self.next_row = 0
        self._directory = directory
        self._run_id = run_id
        self._journal = journal
        self._bytes = 0  # of the file, at the last look

    def begin(self) -> None:
        """See ``Upload.begin``: a copy does not wait for each row."""

    def is_stuck(self) -> bool:
        """Return whether the rest cannot be written, because the disk is full or the file is gone.

        Some disks report no free room and still take what root writes: in that case the file has
        grown.
        """
        file = _file_in(self._directory)
        if file is None:
            return True
        before, self._bytes = self._bytes, file.stat().st_size
        return self._bytes == before and _free_bytes(self._directory) < _FULL_BYTES

    def verify(self) -> None:
        """Read the finished file back, once.

        Raises:
            TrackerUnavailable: The file lacks a row or the exit record.
        """
        directory = self._directory
        try:
            for path in (*directory.glob("*.wandb"), directory):
                sync(path)
            file = RunFile(directory)
        except OSError as exc:
            raise TrackerUnavailable(
                f"{directory}: {exc.strerror}.", hint=_room_hint(directory)
            ) from exc
        if file.rows != self.next_row or file.exit_code is None:
            end = " and no exit record" if file.exit_code is None else ""
            raise TrackerUnavailable(
                f"W&B's file in {directory} has only {file.rows} of {self.next_row} rows{end}.",
                hint=_room_hint(directory),
            )

    def remove_others(self) -> None:
        """Remove the copies that hold no more rows than this verified one."""
        for other in self._others():
            is_ours = other.journal == self._journal and other.rows <= self.next_row
            if not other.rows or is_ours:
                shutil.rmtree(other.directory, ignore_errors=True)

    def remove_if_needless(self) -> None:
        """Remove this incomplete copy if it holds no row, or another copy holds as many."""
        with contextlib.suppress(OSError):  # unreadable: it stays
            rows = RunFile(self._directory).rows
            if not rows or any(
                other.journal == self._journal and other.rows >= rows for other in self._others()
            ):
                shutil.rmtree(self._directory, ignore_errors=True)

    def _others(self) -> Iterator[RunFile]:
        deadline = time.monotonic() + _READ_OLDER_S
        for directory in _beside(self._directory, self._run_id):
            with contextlib.suppress(OSError):  # unreadable: it stays
                other = RunFile(directory, timeout_s=deadline - time.monotonic())
                if other.is_read:
                    yield other


def check_room(parent: Path, run_id: str) -> None:
    """Check that there is room for a new copy beside an older one."""
    sizes = []
    for directory in _beside(parent / "new", run_id):
        with contextlib.suppress(OSError):  # removed meanwhile
            if (file := _file_in(directory)) is not None:
                sizes.append(file.stat().st_size)
    # An older copy may be larger for the same rows, so this errs on the safe side; the copy is read
    # back.
    needed = max(sizes, default=0)
    if _free_bytes(parent) < needed / 2:
        raise TrackerUnavailable(
            f"There is no room to rewrite the offline W&B run {run_id} beside a copy of "
            f"{needed / _MIB:.1f} MiB.",
            hint=_room_hint(parent / "new"),
        )


@contextlib.contextmanager
def removed_unless_opened(parent: Path, run_id: str) -> Iterator[None]:
    """Remove the directory of a copy that is made within the context, if the context raises.

    Otherwise each attempt on a full disk would leave a directory.
    """
    known = {*_beside(parent / "new", run_id)}
    try:
        yield
    except BaseException:
        for other in _beside(parent / "new", run_id):
            if other not in known:
                shutil.rmtree(other, ignore_errors=True)
        raise


def check_writable(directory: Path) -> None:
    """Refuse an unwritable directory, which W&B would only replace by a temporary one."""
    if not os.access(directory, os.W_OK | os.R_OK):
        raise TrackerUnavailable(
            f"W&B cannot write to {directory}.",
            hint="Check that the disk is mounted and that the bridge may write to it.",
        )


def _beside(directory: Path, run_id: str) -> Iterator[Path]:
    """Yield the directories of the other copies beside ``directory``, newest first."""
    for other in sorted(directory.parent.glob(f"offline-run-*-{run_id}*"), reverse=True):
        if other != directory:
            yield other


def _file_in(directory: Path) -> Path | None:
    return next(iter(sorted(directory.glob("run-*.wandb"))), None)


def _room_hint(directory: Path) -> str:
    return (
        f"Free space in {directory.parent} ({_free_bytes(directory) / _MIB:.1f} MiB are free). "
        "The journal has all rows, and the run is written anew."
    )


def _free_bytes(directory: Path) -> int:
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(nearest).free


def records(file: BinaryIO) -> Generator[bytes, None, bool]:
    """Yield each record of a file of W&B, up to its end or to the first damage.

    Returns:
        Whether the file ends with a whole record.
    """
    if file.read(len(_FILE_HEADER)) != _FILE_HEADER:
        return False
    position = len(_FILE_HEADER)
    parts: list[bytes] = []
    while True:
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            file.seek(left, os.SEEK_CUR)
            position += left
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return not (header or parts)
        checksum, length, kind = _HEADER.unpack(header)
        part = file.read(length)
        position += _HEADER.size + length
        if kind not in _SEEDS or len(part) < length or zlib.crc32(part, _SEEDS[kind]) != checksum:
            return False
        if (kind in {_FULL, _FIRST}) == bool(parts) or len(parts) > _MOST_PARTS:
            return False
        parts.append(part)
        if kind in {_FULL, _LAST}:
            yield b"".join(parts)
            parts = []


# Any: the generated module declares its messages at run time.
def parsed(record: bytes) -> Any:
    """Return a record as a message of W&B's. Raises ``DecodeError`` of protobuf."""
    from wandb.proto import wandb_internal_pb2

    message = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # see above
    message.ParseFromString(record)
    return message
