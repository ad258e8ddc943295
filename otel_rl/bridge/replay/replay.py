"""Writes stored runs to trackers, each from its tracker's position, and notes the finished ones.

A run is read beside a bridge that runs, and nothing of its journal changes. Of its rows those that
exist when the replay begins are written.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings, RunState, RunStatus
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import looking
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.private_files import open_private
from otel_rl.errors import JournalClosed
from otel_rl.records import Description, ExperimentKey, KeySpec, Row

__all__ = ["ReadOnlyJournal", "Replay", "Replayed", "StoredRun"]

_T = TypeVar("_T")

_FOREVER_S: Final = 1e8  # of a thread's longest wait; a replay ends for other reasons

_FILE: Final = "replayed.json"

# Addresses of a tracker. Secrets are among them: only a digest is written.
_PLACES: Final = ("WANDB_", "MLFLOW_", "TRACKIO_", "HF_")


class ReadOnlyJournal:
    """The journal of a directory, see ``Journal``. Every write is refused.

    Raises:
        JournalError: It cannot be read.
    """

    shards = 1
    lock_row = problem = ""
    busy_s = 0.0
    max_bytes = 0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with looking(directory) as connection:
            (identity,) = connection.execute("SELECT identity FROM meta").fetchone()
        self.identity = str(identity)

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        raise JournalClosed(f"{function} may not write: the journal is only read.")

    def submit(self, function: Callable[[Connection], _T], /) -> Future[_T]:
        raise JournalClosed(f"{function} may not write: the journal is only read.")

    def read(self) -> AbstractContextManager[Connection]:
        return looking(self._directory)

    def check_room(self, connection: Connection, n_bytes: int, /) -> None: ...

    def size(self) -> int:
        return 0

    def close(self) -> None:
        """Connections are closed after each use."""


class StoredRun:
    """A run in a journal, under its own or another name, see ``RowSource``.

    Args:
        stored: Name of the run there.
        identity: Marks its rows; default: that of the journal, so that its bridge and a replay
            are the same.

    Attributes:
        end: Number of its rows; later ones are left to another replay.
        first: Number of the first row that the journal still has.
        identity: See ``RowSource``.

    Raises:
        JournalError: It cannot be read.
    """

    def __init__(self, store: RunStore, stored: ExperimentKey, identity: str = "") -> None:
        self._store = store
        self.stored = stored
        self.identity = identity or store.identity
        self.end = store.next_row(stored)
        kept = store.rows(stored, start=0, limit=1)
        self.first = kept[0].number if kept else self.end
        self._description = store.description(stored)

    def rows(self, _: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        return self._store.rows(
            self.stored, start=start, limit=max(0, min(limit, self.end - start))
        )

    def keys(self, _: ExperimentKey, /) -> Sequence[KeySpec]:
        return self._store.keys(self.stored)

    def is_ours(self, _: ExperimentKey, /) -> bool:
        return True

    def next_row(self, _: ExperimentKey, /) -> int:
        return self.end

    def description(self, _: ExperimentKey, /) -> Description:
        return self._description

    def has_room(self, _: ExperimentKey, /) -> bool:
        return True


class _NoRecord:
    """A delivery record that keeps nothing: the tracker's position is all that a replay needs."""

    def confirmed(self, key: ExperimentKey, next_row: int, /) -> None: ...

    def opened(self, key: ExperimentKey, location: str, /) -> None: ...

    def prune(self, key: ExperimentKey, below: int, /) -> None: ...

    def reported(self, key: ExperimentKey, state: str, error: str, /) -> None: ...


class Replay:
    """One run on its way to one tracker. ``run`` works; any thread may ask for ``status``.

    Args:
        key: Its name in the tracker.
        settings: Of the delivery.
        patience_s: Seconds without progress after which an unavailable tracker is given up.

    Raises:
        ConfigError: The tracker cannot work with its settings.
    """

    def __init__(
        self, source: StoredRun, key: ExperimentKey, settings: DeliverySettings, patience_s: float
    ) -> None:
        self.key = key
        self.source = source
        self._patience_s = patience_s
        self._stopped = threading.Event()
        self._delivery = DeliveryManager(
            source, [(replace(settings, keep_confirmed_s=0), _NoRecord())], Counters().add
        )

    def run(self) -> RunStatus | None:
        """Write every row that the tracker lacks, and close the run; None if it has no rows."""
        if not self.source.end:
            return None
        self._delivery.notify(self.key)
        watch = threading.Thread(target=self._watch, name="otel-rl-replay-watch", daemon=True)
        watch.start()
        try:
            (status,) = self._delivery.stop(timeout_s=_FOREVER_S, exit_code=0)
        finally:
            self._stopped.set()
        return status

    def status(self) -> RunStatus | None:
        return next(iter(self._delivery.status()), None)

    def kill(self) -> None:
        """End the writer at once. The next replay goes on from the tracker's position."""
        self._stopped.set()
        self._delivery.abandon()

    def _watch(self) -> None:
        """Give up on a tracker that accepts nothing."""
        before, since_s = -1, time.monotonic()
        while not self._stopped.wait(0.2):
            status = self.status()
            position = -1 if status is None else max(status.next_row, status.safe_row)
            is_well = status is None or status.state is RunState.LIVE or not status.last_error
            if position != before or is_well:
                before, since_s = position, time.monotonic()
            elif time.monotonic() - since_s > self._patience_s:
                self._delivery.abandon()
                return


class Replayed:
    """Which runs an earlier replay has finished, so that a later one need not ask their tracker.

    A file beside each journal. It only saves time: without it, or where it cannot be written, the
    tracker is asked, and confirms that it has every row. Any thread may call any method.

    Args:
        options: Of the trackers: other ones are another place.
        enabled: Whether the files count.
    """

    def __init__(self, options: Mapping[str, str], *, enabled: bool = True) -> None:
        self._enabled = enabled
        place = [
            sorted(options.items()),
            sorted((name, v) for name, v in os.environ.items() if name.startswith(_PLACES)),
        ]
        self._place = hashlib.sha256(json.dumps(place).encode()).hexdigest()[:16]
        self._lock = threading.Lock()  # guards the files

    def has(
        self, directory: Path | None, tracker: str, key: ExperimentKey, mark: tuple[int, str]
    ) -> bool:
        """Return whether the tracker has finished the run with this number of rows and status."""
        if directory is None or not self._enabled:
            return False
        with self._lock:
            return _read(directory).get(self._name(tracker, key)) == [*mark]

    def note(
        self, directory: Path | None, tracker: str, key: ExperimentKey, mark: tuple[int, str]
    ) -> None:
        if directory is None:
            return
        path = directory / _FILE
        new = path.with_suffix(".json.new")
        with self._lock:
            known = {**_read(directory), self._name(tracker, key): [*mark]}
            try:
                with open(new, "w", encoding="utf-8", opener=open_private) as file:
                    json.dump(known, file)
                new.replace(path)
            except OSError:
                return  # of a directory that is only read: the tracker is asked again

    def _name(self, tracker: str, key: ExperimentKey) -> str:
        return f"{tracker} {self._place} {json.dumps([key.experiment, key.trial])}"


def _read(directory: Path) -> dict[str, object]:
    try:
        found = json.loads((directory / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
