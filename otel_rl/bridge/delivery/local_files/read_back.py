"""Proof that appended content is in a file: it is synced and read back."""

import os
import zlib
from io import BufferedRandom
from pathlib import Path
from typing import Final

from otel_rl.errors import TrackerUnavailable

__all__ = ["ReadBack"]

_CHUNK: Final = 1 << 20  # bytes


class ReadBack:
    """Checksum of the content that was appended to a file since the last check.

    Args:
        end: End of the file's sound content, in bytes. Nothing before it is read.

    Attributes:
        end: The same, after what was appended.
    """

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self._checked_end = end
        self._checksum = 0

    def appended(self, content: bytes) -> None:
        """Add content that the operating system has."""
        self.end += len(content)
        self._checksum = zlib.crc32(content, self._checksum)

    def check(self, file: BufferedRandom, path: Path) -> None:
        """Sync the file, and check that the file of this name has the appended content.

        Raises:
            OSError: It cannot be synced or read.
            TrackerUnavailable: It has something else.
        """
        os.fsync(file.fileno())
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise TrackerUnavailable(f"{path}: was replaced while it was written.")
        checksum, position = 0, self._checked_end
        while position < self.end:
            chunk = os.pread(file.fileno(), min(_CHUNK, self.end - position), position)
            if not chunk:
                break
            checksum = zlib.crc32(chunk, checksum)
            position += len(chunk)
        if position < self.end or checksum != self._checksum:
            raise TrackerUnavailable(
                f"{path}: does not have the rows that were written to it.",
                hint="Does something else write to it? Check the disk.",
            )
        self._checked_end, self._checksum = self.end, 0
