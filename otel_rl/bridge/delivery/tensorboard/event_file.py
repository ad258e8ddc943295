"""An event file that is continued: whole events only, read back from the disk.

TensorBoard's own writer begins a new file whenever it is opened, and loses what it has in memory
when it is killed. Here the file of a run stays one. Its events are TensorBoard's protobuf messages
in its framing: length, checksum of the length, message, checksum of the message.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedRandom, BytesIO
from pathlib import Path
from typing import Final

from otel_rl.errors import TrackerUnavailable

__all__ = ["EventFile"]

_HEADER: Final = struct.Struct("<QI")
_FOOTER_BYTES: Final = 4
_MAX_EVENT_BYTES: Final = 1 << 30  # of any sane file
_CHUNK: Final = 1 << 20

# A power cut can only harm what was not synced. Checksums of the rest would take long: they are
# computed in Python.
_CHECKED_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _Event:
    """Place of an event in the file."""

    start: int
    end: int
    message: bytes


class EventFile:
    """One event file. Opening it changes nothing that is in it.

    Args:
        path: Of the file; made if it is not there.
        accepts: Called with each message, in order: False for the first that must go, and all
            after it.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, accepts: Callable[[bytes], bool]) -> None:
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = path
        self._crc: Callable[[bytes], int] = masked_crc32c
        self._frame = RecordWriter
        self._file: BufferedRandom = path.open("r+b" if path.exists() else "w+b")
        self._end = self._sound_end(accepts)
        # Of what was written since it was read back last.
        self._checked_end, self._checksum = self._end, 0

    def cut_off(self) -> None:
        """Remove what follows the accepted events. Call it before anything is appended."""
        self._file.truncate(self._end)
        _sync_name(self._path)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no event."""
        return not self._end

    def append(self, messages: Sequence[bytes]) -> None:
        """Append events; the operating system has all of them on return."""
        framed = BytesIO()
        frame = self._frame(framed)
        for message in messages:
            frame.write(message)
        content = framed.getvalue()
        self._file.seek(self._end)
        self._file.write(content)
        self._file.flush()
        self._end += len(content)
        self._checksum = zlib.crc32(content, self._checksum)

    def sync(self) -> None:
        """Sync the file, and read back what was appended.

        Raises:
            TrackerUnavailable: It is not there.
        """
        os.fsync(self._file.fileno())
        if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
            raise TrackerUnavailable(f"{self._path}: was replaced while it was written.")
        checksum, position = 0, self._checked_end
        while position < self._end:
            chunk = os.pread(self._file.fileno(), min(_CHUNK, self._end - position), position)
            if not chunk:
                break
            checksum = zlib.crc32(chunk, checksum)
            position += len(chunk)
        if position < self._end or checksum != self._checksum:
            raise TrackerUnavailable(
                f"{self._path}: does not have the rows that were written to it.",
                hint="Does something else write to it? Check the disk.",
            )
        self._checked_end, self._checksum = self._end, 0

    def close(self) -> None:
        """Close it. Idempotent."""
        self._file.close()

    def _sound_end(self, accepts: Callable[[bytes], bool]) -> int:
        """Return the end of the last event that is whole and accepted."""
        size, end = os.fstat(self._file.fileno()).st_size, 0
        for event in self._events(size):
            if not accepts(event.message):
                break
            end = event.end
        return end

    def _events(self, size: int) -> Iterator[_Event]:
        position = 0
        self._file.seek(0)
        while len(header := self._file.read(_HEADER.size)) == _HEADER.size:
            length, crc = _HEADER.unpack(header)
            if length > _MAX_EVENT_BYTES or crc != self._crc(header[:8]):
                return
            message, footer = self._file.read(length), self._file.read(_FOOTER_BYTES)
            end = position + _HEADER.size + length + _FOOTER_BYTES
            if len(message) < length or len(footer) < _FOOTER_BYTES:
                return
            is_checked = end > size - _CHECKED_BYTES
            if is_checked and struct.unpack("<I", footer)[0] != self._crc(message):
                return
            yield _Event(position, end, message)
            position = end


def _sync_name(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
