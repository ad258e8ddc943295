"""Sends requests through the inbox of the run, for a worker without an endpoint.

A request counts as accepted once it is in the file, whose format is in ``otel_rl.inbox``.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from psutil import disk_partitions

from otel_rl.inbox import (
    DATA_DIRECTORY,
    HEAD,
    INBOX,
    LOCK,
    SEGMENT,
    SEGMENT_BYTES,
    WANTED,
    InboxPlace,
    Lock,
    bytes_in,
    make_inbox,
    record,
)
from otel_rl.signals import Signal
from otel_rl.worker.export.inbox_bridge import BridgeKeeper, forget_bridges, say
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.settings import DATA, LAUNCH, Settings, SignalSettings

_MAX_BYTES: Final = 1 << 30
_DISK_SHARE: Final = 0.05
"""Bounds of what all workers of a run may leave unread, of which the smaller one holds."""

_LOOK_S: Final = 1.0
"""Time between two looks at the size of the inbox, and whether its files are still there."""

_PROBE_S: Final = 0.2

_NETWORK: Final = frozenset(
    {
        *("afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs4", "smb3", "smbfs", "wekafs"),
    }
)
"""File systems where locks and memory maps of a database are not those of one host."""


def with_inbox(
    settings: Settings, run: str, environ: Mapping[str, str], *, on_several_hosts: bool
) -> Settings:
    """Return settings with an inbox for each signal without an endpoint, where inboxes are used.

    The function prints why no inbox is used, or what to do with the inbox. No host of a job on
    several hosts has the whole run, so no bridge starts there.
    """
    settings = _with(settings, None)
    # Of many processes of a launch, one says it: children of a worker are told its launch.
    place_here = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or "0"
    is_first = LAUNCH not in environ and place_here == "0"
    if place := _answering(settings.metrics.url):
        if is_first:
            say(f"what this process reports goes to {place}, where something answers")
        return settings
    root = data_directory(environ)
    if problem := _unusable(root):
        if is_first:
            say(
                f"{problem}, so what this process reports stays in memory, and is lost at its end. "
                f"Set {DATA} to a directory on a local disk, or start it with `otel-rl run`."
            )
        return settings
    inbox = InboxPlace(root / run, has_bridge=not on_several_hosts)
    if on_several_hosts and is_first and not inbox.run.exists():
        say(
            f"this job is on several hosts. What this one reports is kept in {inbox.run}; "
            "`otel-rl replay --tracker NAME DIR DIR...` makes one run of these directories of all "
            "hosts. `otel-rl help several-hosts` has the run live."
        )
    return _with(settings, inbox)


def data_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(DATA, "").strip() or DATA_DIRECTORY).absolute()


def _signals(settings: Settings) -> tuple[SignalSettings, ...]:
    return settings.metrics, settings.traces, settings.logs


def _with(settings: Settings, place: InboxPlace | None) -> Settings:
    metrics, traces, logs = (
        replace(one, inbox=None if one.is_named else place) for one in _signals(settings)
    )
    return replace(settings, metrics=metrics, traces=traces, logs=logs)


def _answering(url: str) -> str:
    from socket import create_connection  # not loaded by a worker with an inbox otherwise

    port = urlsplit(url).port or 0
    try:
        create_connection(("127.0.0.1", port), _PROBE_S).close()
    except OSError:
        return ""
    return f"127.0.0.1:{port}"


def _unusable(root: Path) -> str:
    there = next(path for path in (root, *root.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return f"{there} is not writable"
    # Whoever owns a directory can replace what others put there.
    if there == root and os.geteuid() not in (0, there.stat().st_uid):
        return f"{there} belongs to another user"
    kind = _file_system(there.resolve())
    return f"{there} is on a network file system ({kind})" if kind in _NETWORK else ""


def _file_system(path: Path) -> str:
    try:
        mounted = disk_partitions(all=True)
    except OSError:  # a sandbox without /proc
        return ""
    around = [one for one in mounted if path.is_relative_to(one.mountpoint)]
    # Of several on one directory, the last one hides the others.
    return max(reversed(around), key=lambda one: len(one.mountpoint)).fstype if around else ""


class Inbox:
    """The segments of this process in the inbox of one run. Any thread may append.

    Attributes:
        users: Number of open transports.
    """

    def __init__(self, place: InboxPlace) -> None:
        self.users = 0
        # _mutex guards everything below.
        self._mutex = threading.Lock()
        self._begin(place)

    def _begin(self, place: InboxPlace) -> None:
        self._place = place
        self._keeper = BridgeKeeper(place.run) if place.has_bridge else None
        self._held: Lock | None = None
        self._name = ""
        self._segment = -1
        self._number = self._size = 0
        self._next_look_s = 0.0
        self._room = 0
        self._is_over = False

    def append(self, signal: Signal, body: bytes) -> str:
        """Append a request. Returns why that is not possible now; empty if it was appended."""
        with self._mutex:
            try:
                problem = self._append(record(signal, body))
            except OSError as error:
                problem = f"{error.strerror or error} in {self._place.run}"
                with suppress(OSError):
                    os.ftruncate(self._segment, self._size)
            if self._keeper is not None and not problem:
                self._keeper.look()  # after the first record: a child that has none starts nothing
        return problem

    def _append(self, content: bytes) -> str:
        now_s, inbox = monotonic(), self._place.run / INBOX
        if self._is_over:
            return "the process has ended"
        is_look = now_s >= self._next_look_s
        # A program that copies its directory closes the lock's file, and so lets go of the lock: a
        # bridge then removes the segment as that of a worker that has gone.
        if self._segment < 0 or not os.fstat(self._segment).st_nlink:
            self._leave()
            self._enter()
        if is_look:
            self._next_look_s = now_s + _LOOK_S
            self._room = _room_in(inbox)
        if len(content) > self._room:
            used = bytes_in(inbox) >> 20
            return f"the inbox {inbox} is full ({used} MiB that no bridge has read)"
        if self._size >= SEGMENT_BYTES:
            self._next_segment()
        if os.write(self._segment, content) < len(content):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        self._size += len(content)
        self._room -= len(content)
        return ""

    def _enter(self) -> None:
        inbox = make_inbox(self._place.run)
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._number = 0
        lock = Lock(inbox / f".{self._name}")
        # Nobody sees it before it is held.
        lock.path = lock.path.rename(inbox / f"{self._name}{LOCK}")
        self._held = lock
        (inbox / WANTED).unlink(missing_ok=True)  # the run goes on
        self._next_segment()

    def _next_segment(self) -> None:
        self._number += 1
        path = self._place.run / INBOX / f"{self._name}.{self._number:06}{SEGMENT}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        segment = os.open(path, flags, 0o600)
        try:
            size = os.write(segment, HEAD)
        except OSError:
            os.close(segment)
            raise
        if self._segment >= 0:
            os.close(self._segment)
        self._segment, self._size = segment, size

    def _leave(self) -> None:
        if self._segment >= 0:
            os.close(self._segment)
            self._segment = -1
        if self._held is not None:
            self._held.path.unlink(missing_ok=True)
            self._held.close()
            self._held = None

    def close(self, *, is_over: bool = False) -> None:
        """End the segment: nothing more comes from this process, unless it appends again.

        Args:
            is_over: Whether the process is at its end, so that it may not append again.
        """
        with self._mutex, suppress(OSError):
            self._is_over = is_over
            self._leave()

    def move(self, run: Path) -> None:
        with self._mutex, suppress(OSError):
            self._leave()
            self._begin(self._place._replace(run=run))


def _room_in(inbox: Path) -> int:
    disk = os.statvfs(inbox)
    bound = min(_MAX_BYTES, int(_DISK_SHARE * disk.f_bavail * disk.f_frsize))
    return bound - bytes_in(inbox)


class InboxTransport:
    """The transport of one signal to the inbox of a run."""

    def __init__(self, signal: Signal, place: InboxPlace) -> None:
        self._signal = signal
        with _mutex:
            run = _moved.get(place.run, place.run)
            self._inbox = _inboxes.setdefault(run, Inbox(place._replace(run=run)))
            self._inbox.users += 1

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, body: bytes) -> Reply:
        """See ``Transport``. A request without room waits in memory, as for an endpoint."""
        problem = self._inbox.append(self._signal, body)
        if problem:
            return Reply(Outcome.RETRY, problem, unreachable=True)
        return Reply(Outcome.ACCEPTED)

    def close(self) -> None:
        with _mutex:
            self._inbox.users -= 1
            if not self._inbox.users:
                self._inbox.close()


# _mutex guards the two below.
_mutex = threading.Lock()
_inboxes: dict[Path, Inbox] = {}
_moved: dict[Path, Path] = {}


def move(place: InboxPlace | None, run: str) -> None:
    """Move to the inbox of the run that a program has named after it had begun in another run."""
    if place is None:
        return
    with _mutex:
        target = place.run.with_name(run)
        inbox = _inboxes.pop(_moved.get(place.run, place.run), None)
        _moved[place.run] = target
        if inbox is not None:
            inbox.move(target)
            _inboxes[target] = inbox


def end() -> None:
    """Leave the inboxes in order at the process's end, whichever thread still uses them."""
    for inbox in tuple(_inboxes.values()):
        inbox.close(is_over=True)


def forget() -> None:
    """Start over in a forked child, because segments, locks and bridges are its parent's."""
    global _mutex, _inboxes  # a thread of the parent may hold the lock
    _mutex = threading.Lock()
    _inboxes = {}
    forget_bridges()
