"""Keeps each run in one of the journals that lie side by side, one for each `otel-rl run`.

A program may name a run that another journal has, for example because it was started again.
Another launch is another run, as in W&B, so the run gets the next free name: `lr-1-2` for `lr-1`.
One bridge decides for all processes of a launch, when it first hears of a run, and from then on its
own journal has the run: so after a restart it decides the same.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import journals_below, looking
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = ["Beside", "RunNaming", "home_of"]

_LOCK: Final = ".names.lock"


@dataclass(frozen=True, slots=True)
class Beside:
    """Journals beside that of a bridge, and what is to be done about runs that they have.

    Attributes:
        root: Directory above them all; a journal may be in itself, too.
        own: Directory of the bridge's journal.
        renamed: Called with each run that gets another name, and that name.
    """

    root: Path
    own: Path
    renamed: Callable[[ExperimentKey, ExperimentKey], None]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the other bridges from deciding at the same time."""
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def home_of(key: ExperimentKey, root: Path, own: Path | None = None) -> Path | None:
    """Return the directory of the journal that has a run, ``own`` first; None if there is none."""
    for directory in (*filter(None, [own]), *journals_below(root)):
        try:
            with looking(directory) as connection:
                if _has_run(connection, key):
                    return directory
        except JournalError:  # none is there yet, or none that can be read
            continue
    return None


class RunNaming:
    """Decides which run a sender's run is. Any thread may call it.

    Args:
        beside: The other journals.
        begin: Puts a run into the bridge's own journal.
    """

    def __init__(
        self,
        beside: Beside,
        *,
        begin: Callable[[ExperimentKey], None],
    ) -> None:
        self._beside = beside
        self._begin = begin
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._settled: dict[ExperimentKey, ExperimentKey] = {}

    def __call__(self, key: ExperimentKey) -> ExperimentKey:
        """Return the run that a sender's run is here.

        Raises:
            JournalError: The run cannot be stored; the sender retries.
        """
        settled = self._settled.get(key)
        if settled is not None:
            return settled
        with self._lock:
            if key not in self._settled:
                with self._beside.held():
                    self._settled[key] = self._settle(key)
                if self._settled[key] != key:
                    self._beside.renamed(key, self._settled[key])
            return self._settled[key]

    def _settle(self, key: ExperimentKey) -> ExperimentKey:
        beside = self._beside
        for candidate in key.numbered():
            home = home_of(candidate, beside.root, beside.own)
            # A program numbers its runs, too: its second may be called as its first is here.
            if home in (None, beside.own) and candidate not in self._settled.values():
                self._begin(candidate)
                return candidate
        raise AssertionError  # numbers do not end


def _has_run(connection: Connection, key: ExperimentKey) -> bool:
    cursor = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id(*key),))
    return cursor.fetchone() is not None
