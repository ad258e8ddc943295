"""The inbox of a run: files by which its workers reach a bridge on the same host without a port.

A worker appends its OTLP requests to segments of its own; one bridge reads the segments of all
workers, and deletes each segment that it has taken wholly. The directory of a run has

    inbox/WORKER.lock              locked by the worker for as long as it lives
    inbox/WORKER.000001.otlp       its requests, in segments of about 16 MiB
    inbox/bridge.lock              locked by the bridge; has its process id and who started it
    inbox/bridge.starting          who is starting a bridge, until that bridge has the lock
    inbox/wanted                   whoever started the bridge is at its end, and waits for that one
    bridge.log                     what the bridge says

A segment begins with ``HEAD``. Each record is a header of three little-endian numbers and a body,
the OTLP request: length of the body (4 bytes), signal (1 byte, its place in ``SIGNALS`` from 1) and
CRC-32 of both (4 bytes). A record is written by one call, so only the last record of a killed
worker can be torn: nobody was told that it is kept.

The lock of a worker exists and is held before the worker's first segment is written, and is removed
after a clean end. A lock that exists and is free belongs to a killed worker. Locks are of the kind
``lockf``: a forked child does not keep the lock of its parent, and a process loses a lock when it
closes *any* descriptor of the file, so that nothing but the lock may open it. Nothing is forced to
the disk: written requests survive the death of the process, but not that of the machine.
"""

import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from otel_rl.signals import Signal

DATA_DIRECTORY: Final = ".otel_rl"
"""Of journals and inboxes, in the working directory, unless another one is named."""

INBOX: Final = "inbox"
"""Name of the directory in that of the run."""

LOG_FILE: Final = "bridge.log"

BRIDGE_LOCK: Final = "bridge.lock"
BRIDGE_STARTING: Final = "bridge.starting"
WANTED: Final = "wanted"

LOCK: Final = ".lock"
SEGMENT: Final = ".otlp"

HEAD: Final = b"otelbox1"
SEGMENT_BYTES: Final = 16 << 20
"""A worker begins another segment after so many."""

SIGNALS: Final = (Signal.METRICS, Signal.TRACES, Signal.LOGS)

_HEADER: Final = Struct("<IBI")
_OWNER_ONLY: Final = 0o600


class InboxPlace(NamedTuple):
    """Place to which a worker writes its requests.

    Attributes:
        has_bridge: Whether a bridge on this host reads the requests while the run goes on.
    """

    run: Path
    has_bridge: bool


class BrokenSegment(Exception):
    """The next bytes are not a record, and never were one."""


class Record(NamedTuple):
    """One request in a segment.

    Attributes:
        body: The request, as protobuf.
        end: Position behind the record in the segment.
    """

    signal: Signal
    body: bytes
    end: int


def record(signal: Signal, body: bytes) -> bytes:
    """Return the bytes of one record."""
    number = SIGNALS.index(signal) + 1  # so that nothing but zeros is no record
    return _HEADER.pack(len(body), number, zlib.crc32(body, number)) + body


def records(segment: Path, begin: int, at_most: int) -> Iterator[Record]:
    """Yield the whole records of a segment from a position on.

    Args:
        begin: Position of the first record: 0, or the end of a record.
        at_most: Number of bytes to read; at least one record is read.

    Raises:
        FileNotFoundError: The segment was removed.
        BrokenSegment: The bytes of the next record are not what was written.
    """
    with segment.open("rb") as file:
        if not begin:
            head = file.read(len(HEAD))
            if not HEAD.startswith(head):
                raise BrokenSegment
            begin = len(head)
        file.seek(begin)
        content = file.read(max(at_most, _HEADER.size))
        if len(content) >= _HEADER.size:
            needed = _HEADER.size + _HEADER.unpack_from(content)[0]
            content += file.read(max(0, needed - len(content)))
    place = 0
    while place + _HEADER.size <= len(content):
        length, number, crc = _HEADER.unpack_from(content, place)
        end = place + _HEADER.size + length
        if end > len(content):
            return
        body = content[end - length : end]
        if not 0 < number <= len(SIGNALS) or zlib.crc32(body, number) != crc:
            raise BrokenSegment
        yield Record(SIGNALS[number - 1], body, begin + end)
        place = end


class Lock:
    """A lock that the kernel releases when this process dies.

    Args:
        path: Path of the lock's file, which is made for its owner alone. No other code may open it
            in this process.

    Raises:
        OSError: Another process holds the lock (``BlockingIOError``), or the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def write(self, text: str) -> None:
        """Replace the content of the file."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def close(self) -> None:
        """Release the lock; its file stays."""
        os.close(self._descriptor)


def is_held(path: Path) -> bool | None:
    """Return whether another process holds a lock; None if the lock's file does not exist.

    A momentary shared lock finds that out, so that several callers do not hinder each other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Whoever ends in order removes the file before it lets go of the lock.
        return False if os.fstat(descriptor).st_nlink else None
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def make_inbox(run: Path) -> Path:
    """Make the inbox of a run, with the directories above it, for their owner alone.

    Raises:
        OSError: The inbox cannot be made.
    """
    make_private_directory(run / INBOX)
    return run / INBOX


def make_private_directory(directory: Path) -> Sequence[Path]:
    """Make a directory and its parents, for their owner alone. Existing ones keep their mode.

    Returns:
        The directories that were made, the deepest first.

    Raises:
        OSError: A directory cannot be made.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        if path.name == DATA_DIRECTORY:  # in a repository: what is below holds prompts and answers
            with suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                ignored = os.open(path / ".gitignore", flags, _OWNER_ONLY)
                os.write(ignored, b"*\n")
                os.close(ignored)
    return missing


def segments(inbox: Path) -> dict[str, list[Path]]:
    """Return the segments by the name of their worker, oldest first."""
    found: dict[str, list[Path]] = {}
    with suppress(FileNotFoundError):
        for path in sorted(inbox.iterdir()):
            if path.suffix == SEGMENT:
                found.setdefault(path.name.partition(".")[0], []).append(path)
    return found


def inboxes_below(directory: Path) -> list[Path]:
    """Return the inboxes of a run's directory, of a data directory, or of one above that."""
    places = (INBOX, f"*/{INBOX}", f"{DATA_DIRECTORY}/*/{INBOX}")
    return sorted(path for place in places for path in directory.glob(place) if path.is_dir())


def bytes_in(inbox: Path) -> int:
    """Return the size of all segments; segments that vanish meanwhile do not count."""
    size = 0
    with suppress(OSError), os.scandir(inbox) as entries:
        for entry in entries:
            if entry.name.endswith(SEGMENT):
                with suppress(FileNotFoundError):
                    size += entry.stat().st_size
    return size
