"""Reads the inboxes of a run: requests that workers on this host have left in files.

These requests take the same way as those that come over HTTP. Their batches, and the positions up
to which the segments are read, are journaled in one transaction, and a segment is removed after the
transaction that has its end: so every request of a file is in the run once, whenever the bridge or
a worker is killed.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from otel_rl.bridge.counters import Where
from otel_rl.bridge.receive.answers import answer_to
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.errors import JournalClosed, MalformedRequest, OtelRLError, RequestTooLarge
from otel_rl.inbox import (
    BRIDGE_LOCK,
    LOCK,
    BrokenSegment,
    Record,
    is_held,
    records,
    segments,
)
from otel_rl.records import Batch

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.1
_RETRY_S: Final = 1.0

_READ_BYTES: Final = 1 << 20
"""Of each worker in a turn, so that none gets far ahead of another one."""


class Keep(Protocol):
    """Makes batches durable, together with the positions up to which segments are read."""

    def __call__(
        self, batches: Sequence[Batch], positions: Mapping[str, int], removed: Sequence[str], /
    ) -> None: ...


class _Worker(NamedTuple):
    inbox: Path
    name: str

    @property
    def lock(self) -> Path:
        return self.inbox / f"{self.name}{LOCK}"


@dataclass(slots=True)
class _Turn:
    """What was read from the workers' segments and is not journaled yet."""

    batches: list[Batch] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    finished: list[Path] = field(default_factory=list)


class InboxReader:
    """Reads inboxes in a thread of its own, from ``start`` to ``stop``.

    Args:
        inboxes: Directories of one run on one or several hosts.
        keep: Makes the inboxes' batches durable.
        positions: Returns the positions that were given to ``keep`` before.

    Attributes:
        living: Number of workers that were alive at the last look.
        is_empty: Whether everything was read at the last look.
        last_s: Time of the monotonic clock at which a worker was last alive.
        was_killed: Whether the last worker to disappear has not ended in order.
    """

    def __init__(
        self,
        inboxes: Sequence[Path],
        intake: IngestPipeline,
        keep: Keep,
        positions: Callable[[], Mapping[str, int]],
    ) -> None:
        self.living = 0
        self.is_empty = self.was_killed = False
        self.last_s = time.monotonic()
        self._inboxes = inboxes
        self._intake = intake
        self._keep = keep
        self._journaled = positions
        self._positions: dict[str, int] = {}
        self._removed: list[str] = []
        self._known: set[_Worker] = set()
        self._turn = _Turn()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-rl-inbox", daemon=True)

    def start(self) -> None:
        self._positions.update(self._journaled())
        self._thread.start()

    def stop(self) -> None:
        """Read what the inboxes hold, and end the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            is_stopping = self._stopping.is_set()
            pause_s = _PAUSE_S
            try:
                while self.look():
                    pass
            except JournalClosed:
                return
            except Exception as error:  # noqa: BLE001  # counted; what is in the files stays there
                self._intake.answer(error, Where.INBOX)
                pause_s = _RETRY_S
            if is_stopping:
                return
            self._stopping.wait(pause_s)

    def look(self) -> bool:
        """Take in what workers have written since the last look, up to a bound.

        Returns:
            Whether workers had written anything.

        Raises:
            OtelRLError: The requests cannot be stored now; the next look goes on with them.
        """
        found = {inbox: segments(inbox) for inbox in self._inboxes}
        self._known |= {_Worker(inbox, name) for inbox, of in found.items() for name in of}
        self._known |= {
            _Worker(path.parent, path.stem)
            for inbox in self._inboxes
            for path in inbox.glob(f"[!.]*{LOCK}")
            if path.name != BRIDGE_LOCK
        }
        # Before their segments are read: what a worker has written by its end is there after it.
        standing = {worker: is_held(worker.lock) for worker in sorted(self._known)}
        self.living = sum(map(bool, standing.values()))
        if self.living:
            self.last_s = time.monotonic()
        self._settle()  # what a look before has read in vain
        has_read = False
        try:
            for worker, lives in standing.items():
                paths = found[worker.inbox].get(worker.name, ())
                has_read |= self._read_worker(paths, lives=bool(lives))
        finally:
            self._settle()
        if not has_read:
            self._part(standing)
        self.is_empty = not has_read
        return has_read

    def _part(self, standing: Mapping[_Worker, bool | None]) -> None:
        for worker, lives in standing.items():
            if not lives:
                self.was_killed = lives is False
                self._known.discard(worker)
                with suppress(OSError):
                    worker.lock.unlink(missing_ok=True)

    def _read_worker(self, paths: Sequence[Path], *, lives: bool) -> bool:
        """Read the segments of a worker, up to a bound. Returns whether they held anything new."""
        room = _READ_BYTES
        for number, path in enumerate(paths, 1):
            is_whole = number < len(paths) or not lives
            room -= self._read_segment(path, room, is_whole=is_whole)
            if room <= 0:
                break
        return room < _READ_BYTES

    def _read_segment(self, path: Path, room: int, *, is_whole: bool) -> int:
        begin = position = self._positions.get(path.name, 0)
        try:
            for record in records(path, begin, room):
                self._take(record)
                position = self._positions[path.name] = self._turn.positions[path.name] = record.end
        except FileNotFoundError:
            return 0
        except BrokenSegment:
            if is_whole:
                rest = path.stat().st_size - position
                _log.warning("%s: %d bytes are damaged, and are in no run.", path, rest)
                self._intake.answer(MalformedRequest(f"{path} is damaged."), Where.INBOX)
                self._turn.finished.append(path)
            return position - begin
        if is_whole and position == begin:  # behind it is at most a record that a kill has torn
            self._turn.finished.append(path)
        return position - begin

    def _take(self, record: Record) -> None:
        """Take in a request like one over HTTP; it is refused if HTTP would refuse it."""
        try:
            limit = self._intake.limits.max_body_bytes
            if len(record.body) > limit:
                raise RequestTooLarge(f"A request has {len(record.body)} bytes, over {limit}.")
            self._intake.take(record.signal, record.body, accept=self._turn.batches.extend)
        except OtelRLError as error:
            if answer_to(error).is_retryable:
                raise
            self._intake.answer(error, Where.INBOX)

    def _settle(self) -> None:
        """Journal what was read, and remove the segments that were read to their end."""
        turn = self._turn
        if turn.batches or turn.positions:
            self._keep(turn.batches, turn.positions, self._removed)
            self._removed = []
        self._turn = _Turn()
        for path in turn.finished:
            path.unlink(missing_ok=True)
            self._positions.pop(path.name, None)
            self._removed.append(path.name)
