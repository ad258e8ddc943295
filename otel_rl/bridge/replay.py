"""Writes stored runs to trackers, each from the position of its tracker.

A run is read beside a bridge that runs, and its journal does not change. The rows that exist when
the replay begins are written.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings, RunState, RunStatus
from otel_rl.bridge.journal.interface import Connection, Room
from otel_rl.bridge.journal.reader import looking
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.errors import JournalClosed
from otel_rl.records import Description, ExperimentKey, KeySpec, Row

_T = TypeVar("_T")

_FOREVER_S: Final = 1e8  # of a thread's longest wait; a replay ends for other reasons


class ReadOnlyJournal:
    """The journal of a directory as a ``Journal`` that refuses every write.

    Raises:
        JournalError: The journal cannot be read.
    """

    shards = 1
    lock_row = problem = ""
    busy_s = 0.0
    max_bytes = 0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.room = Room(0, lambda _: 0)  # nothing is added
        with looking(directory) as connection:
            (identity,) = connection.execute("SELECT identity FROM meta").fetchone()
        self.identity = str(identity)

    def write(self, function: Callable[[Connection], _T], /) -> _T:
        raise JournalClosed(f"{function} may not write: the journal is only read.")

    def submit(self, function: Callable[[Connection], _T], /) -> Future[_T]:
        raise JournalClosed(f"{function} may not write: the journal is only read.")

    def read(self) -> AbstractContextManager[Connection]:
        return looking(self._directory)

    def size(self) -> int:
        return 0

    def close(self) -> None:
        """Connections are closed after each use."""


class StoredRun:
    """A run in a journal, under its own or another name, see ``RowSource``.

    The rows are marked with the identity of the journal, as a bridge marks them.

    Args:
        stored: Name of the run in the journal.

    Attributes:
        end: Number of the run's rows; later rows are left to another replay.

    Raises:
        JournalError: The journal cannot be read.
    """

    def __init__(self, store: RunStore, stored: ExperimentKey) -> None:
        self._store = store
        self.stored = stored
        self.identity = store.identity
        self.end = store.next_row(stored)
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
        key: Name of the run in the tracker.
        patience_s: Seconds without progress after which the replay gives up an unavailable tracker.

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
        """Give up on a tracker that accepts no rows."""
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
