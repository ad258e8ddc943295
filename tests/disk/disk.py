"""A disk that loses what was not synced: files as a loss of power would have left them.

What the disk promises is only what POSIX does. Bytes are safe once their file was synced, names
once their directory was. Of everything else any part may be there: each sector for itself, in no
order, and a file that grew may hold zeros where its bytes are missing.
"""

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct("<B7xQQQQ")


@dataclass(frozen=True, slots=True)
class Event:
    """One change, as ``recorder.c`` wrote it down.

    Attributes:
        kind: One of O, W, T, S, U, R, D: see ``recorder.c``.
        inode: Of the file that was changed, 0 if it is a name that was.
        offset: Of the bytes that were written, or the new length.
        path: As given to the system.
        data: What was written.
        end: Length of the log up to here.
    """

    kind: str
    inode: int
    offset: int
    path: str
    data: bytes
    end: int


def read_log(path: Path) -> Sequence[Event]:
    """The events of a log, in order."""
    log = path.read_bytes()
    events: list[Event] = []
    position = 0
    while position < len(log):
        kind, inode, offset, path_length, data_length = _HEADER.unpack_from(log, position)
        position += _HEADER.size
        name = log[position : position + path_length].decode()
        position += path_length
        data = log[position : position + data_length]
        position += data_length
        events.append(Event(chr(kind), inode, offset, name, data, position))
    return events


def rebuild(
    before: Mapping[str, bytes], events: Sequence[Event], directory: Path, chance: random.Random
) -> Mapping[str, bytes]:
    """The files of ``directory`` after ``events``, had the power failed after the last of them.

    Args:
        before: Name and content of what was there, and safe, before the first event.
        events: What was done.
        directory: Events elsewhere do not matter. It has no directories in it.
        chance: Decides what of the unsynced is there.
    """
    disk = _Disk(before, directory)
    for event in events:
        disk.apply(event)
    return dict(disk.after_power_cut(chance))


@dataclass(slots=True, eq=False)
class _File:
    """What is safe of a file, and what happened to it since it was synced."""

    safe: bytes = b""
    unsynced: list[Event] = field(default_factory=list)

    def sync(self) -> None:
        self.safe, self.unsynced = _changed(self.safe, self.unsynced), []

    def after_power_cut(self, chance: random.Random) -> bytes:
        sector = chance.choice([512, 4096, 1 << 30])
        kept = chance.choice([0.0, 0.3, 0.7, 1.0])
        parts = [part for event in self.unsynced for part in _sectors(event, sector)]
        return _changed(self.safe, [part for part in parts if chance.random() < kept])


class _Disk:
    """One directory: names, some of them not synced yet, and the files that they lead to."""

    def __init__(self, before: Mapping[str, bytes], directory: Path) -> None:
        self._directory = str(directory)
        self._names = {name: _File(content) for name, content in before.items()}
        self._safe_names = dict(self._names)
        # Since the directory was synced: a name, and where it led from then on, if anywhere.
        self._renamed: list[tuple[str, _File | None]] = []
        self._inodes: dict[int, _File] = {}
        self._own_inode: int | None = None

    def apply(self, event: Event) -> None:
        match event.kind:
            case "O":
                self._open(event)
            case "W" | "T":
                if event.inode in self._inodes:
                    self._inodes[event.inode].unsynced.append(event)
            case "S":
                self._sync(event.inode)
            case "U":
                if (name := self._name(event.path)) is not None:
                    self._lead(name, None)
            case "R":
                self._rename(*event.path.split("\0"))

    def after_power_cut(self, chance: random.Random) -> Iterator[tuple[str, bytes]]:
        names = dict(self._safe_names)
        # Names of one directory are kept in order by every file system, so some first ones are.
        for name, file in self._renamed[: chance.randint(0, len(self._renamed))]:
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file
        for name, file in names.items():
            yield name, file.after_power_cut(chance)

    def _open(self, event: Event) -> None:
        if event.path == self._directory:
            self._own_inode = event.inode
        elif (name := self._name(event.path)) is not None:
            if name not in self._names:
                self._lead(name, _File())
            # Numbers of files that were removed are given again.
            self._inodes[event.inode] = self._names[name]

    def _sync(self, inode: int) -> None:
        if inode == self._own_inode:
            self._safe_names, self._renamed = dict(self._names), []
        elif inode in self._inodes:
            self._inodes[inode].sync()

    def _rename(self, old: str, new: str) -> None:
        old_name, new_name = self._name(old), self._name(new)
        if old_name is None or new_name is None:
            raise ValueError(f"not within one directory: {old} to {new}")
        self._lead(new_name, self._names[old_name])
        self._lead(old_name, None)

    def _lead(self, name: str, file: _File | None) -> None:
        self._renamed.append((name, file))
        if file is None:
            del self._names[name]
        else:
            self._names[name] = file

    def _name(self, path: str) -> str | None:
        parent, _, name = path.rpartition("/")
        return name if parent == self._directory else None


def _changed(content: bytes, events: Sequence[Event]) -> bytes:
    if not events:
        return content
    changed = bytearray(content)
    for event in events:
        if event.kind == "T":
            del changed[event.offset :]
            changed.extend(bytes(event.offset - len(changed)))
        else:
            changed.extend(bytes(max(0, event.offset - len(changed))))
            changed[event.offset : event.offset + len(event.data)] = event.data
    return bytes(changed)


def _sectors(event: Event, size: int) -> Iterator[Event]:
    """The event, a write cut where sectors of the disk begin."""
    if event.kind == "T":
        yield event
        return
    start = 0
    while start < len(event.data):
        end = min(len(event.data), ((event.offset + start) // size + 1) * size - event.offset)
        yield Event("W", event.inode, event.offset + start, "", event.data[start:end], event.end)
        start = end
