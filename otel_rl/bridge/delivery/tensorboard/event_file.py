"""An event file that is continued: whole events only, read back from the disk.

TensorBoard's own writer begins a new file whenever it is opened, and loses what it has in memory
when it is killed. Here the file of a run stays one. Its events are TensorBoard's protobuf messages
in its framing: length, checksum of the length, message, checksum of the message.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedRandom, BytesIO
from pathlib import Path
from typing import Final

from otel_rl.bridge.delivery.local_files.read_back import ReadBack

__all__ = ["EventFile"]

_HEADER: Final = struct.Struct("<QI")
_FOOTER_BYTES: Final = 4
_MAX_EVENT_BYTES: Final = 1 << 30  # of any sane file

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
        self._written = ReadBack(self._sound_end(accepts))

    def cut_off(self) -> None:
        """Remove the content after the accepted events. Call it before anything is appended."""
        self._file.truncate(self._written.end)
        _sync_name(self._path)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no event."""
        return not self._written.end

    def append(self, messages: Sequence[bytes]) -> None:
        """Append events; the operating system has all of them on return."""
        framed = BytesIO()
        frame = self._frame(framed)
        for message in messages:
            frame.write(message)
        content = framed.getvalue()
        self._file.seek(self._written.end)
        self._file.write(content)
        self._file.flush()
        self._written.appended(content)

    def sync(self) -> None:
        """Sync the file, and read back the appended events.

        Raises:
            TrackerUnavailable: It is not there.
        """
        self._written.check(self._file, self._path)

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
