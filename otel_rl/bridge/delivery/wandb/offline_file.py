"""Reads back the file of an offline W&B run.

wandb-core does not report what it has written: on a full disk it drops everything from then on,
even when there is room again, and finishes the run without an error. So only the file can be
trusted, and W&B's SDK has no reader for it.

It is a LevelDB log: blocks of 32 KiB, a record split over blocks where needed, each part behind a
header of checksum, length and kind. Reading stops at the end or at a damaged record, and can resume
there when the file has grown.
"""

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from otel_rl.bridge.delivery.wandb.server_api import JOURNAL_KEY

__all__ = ["RunFile"]

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
        directory: As the argument.
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
        """Return the path of the file; None if there is none."""
        return next(iter(sorted(self.directory.glob("run-*.wandb"))), None)

    def read(self, *, max_bytes: int | None = None, timeout_s: float = float("inf")) -> bool:
        """Continue reading.

        Args:
            max_bytes: Stop after about as many.
            timeout_s: Stop then.

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
        """Evaluate a record. Returns False if it is not complete."""
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
