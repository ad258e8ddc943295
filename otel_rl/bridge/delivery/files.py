"""Files of the trackers that the bridge writes itself: appended to, synced and read back."""

import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_rl.bridge.private_files import open_private
from otel_rl.errors import TrackerError, TrackerRejected, TrackerUnavailable

_CHUNK: Final = 1 << 20  # bytes

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class AppendedFile:
    """A file that only grows. Appended content counts once it was synced and read back.

    Nothing is buffered, so no write happens after a call has returned. No call holds Python's lock
    while it waits for the disk.

    Args:
        path: Path of the file; a missing file is made, readable by its owner only.

    Attributes:
        end: End of the file's sound content, in bytes. ``append`` replaces whatever follows it.

    Raises:
        OSError: The file cannot be opened; any method may raise this for its own access.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Closed with this object, whatever holds the errors of a tracker that has failed.
        self._file = open(path, "r+b", buffering=0, opener=_made)  # noqa: SIM115
        self.end = 0
        self._checked_end = 0
        self._checksum = 0

    @property
    def size(self) -> int:
        """Bytes of the file, including content that is not sound."""
        return os.fstat(self._file.fileno()).st_size

    def chunks(self) -> Iterator[bytes]:
        position = 0
        while chunk := self.read(position, _CHUNK):
            yield chunk
            position += len(chunk)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, position)

    def begin(self, end: int) -> None:
        """Append from ``end`` on. Content before it is not read back."""
        self.end = self._checked_end = end
        self._checksum = 0

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def append(self, content: bytes) -> None:
        """Append to the sound content; the operating system has it on return."""
        if self.size > self.end:
            self.truncate(self.end)
        written = 0
        while written < len(content):
            written += os.pwrite(
                self._file.fileno(), memoryview(content)[written:], self.end + written
            )
        self.end += len(content)
        self._checksum = zlib.crc32(content, self._checksum)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def check(self) -> None:
        """Sync the file, and check that the file at the path has the appended content.

        Raises:
            TrackerUnavailable: The file at the path has other content.
        """
        self.sync()
        if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
            raise TrackerUnavailable(f"{self._path}: was replaced while it was written.")
        checksum, position = 0, self._checked_end
        while position < self.end:
            chunk = self.read(position, min(_CHUNK, self.end - position))
            if not chunk:
                break
            checksum = zlib.crc32(chunk, checksum)
            position += len(chunk)
        if position < self.end or checksum != self._checksum:
            raise TrackerUnavailable(
                f"{self._path}: does not have the rows that were written to it.",
                hint="Does something else write to it? Check the disk.",
            )
        self._checked_end, self._checksum = self.end, 0

    def close(self) -> None:
        self._file.close()


def check_journal(mark: Path, journal: str, *, rows: int, place: Path, kind: str) -> None:
    """Refuse to append to rows of another journal; mark a place that has no rows.

    Args:
        mark: File that names the journal.
        journal: Identity of the present journal; empty accepts any.
        rows: Number of rows at the place.
        place: File or directory of the rows, for the message.
        kind: "file" or "directory".

    Raises:
        TrackerRejected: The rows at the place are of another journal.
        OSError: The mark cannot be read or written.
    """
    written_from = mark.read_text().strip() if mark.exists() else ""
    if not journal or written_from == journal:
        return
    if rows:
        raise TrackerRejected(
            f"{place}: has {rows} rows of another journal.",
            hint=f"Give the trial another name, move the {kind} away, or start the bridge with "
            "the data directory that it was written from.",
        )
    with open(mark, "w", opener=open_private) as file:
        file.write(f"{journal}\n")
        file.flush()
        os.fsync(file.fileno())


def unavailable(place: Path, exc: OSError, directory: Path) -> TrackerUnavailable:
    """Return the error of a file that cannot be written now."""
    hint = f"Free space in {directory}." if exc.errno in _NO_ROOM else ""
    return TrackerUnavailable(f"{place}: {exc.strerror}.", hint=hint)


def not_opened(place: Path, exc: OSError, directory: Path) -> TrackerError:
    if exc.errno in _NO_ROOM:
        return unavailable(place, exc, directory)
    return TrackerRejected(
        f"{place}: cannot be opened ({exc.strerror}).",
        hint="Give the bridge a directory that it may write to.",
    )


def _made(path: str, flags: int) -> int:
    return open_private(path, flags | os.O_CREAT)
