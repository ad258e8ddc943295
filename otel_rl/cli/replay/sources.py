"""Sources of the rows of a replay: a journal, or an archive."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.replay.replay import ReadOnlyJournal, StoredRun
from otel_rl.cli.find_run import FoundRun, shared_journal
from otel_rl.records import ExperimentKey

__all__ = ["JournalSource", "ReplaySource"]


class ReplaySource(Protocol):
    """One run that is kept somewhere."""

    @property
    def key(self) -> ExperimentKey:
        """Return its name there."""
        ...

    @property
    def directory(self) -> Path | None:
        """Return the data directory that it belongs to; None for a database."""
        ...

    @property
    def mark(self) -> tuple[int, str]:
        """Return a value that changes when there are more rows. Cheap."""
        ...

    def opened(self, stack: contextlib.ExitStack, goes_on: Callable[[float], bool], /) -> StoredRun:
        """Return its rows, for the length of the context.

        Args:
            stack: The context.
            goes_on: Called now and then with the share that is read; False ends the work.

        Raises:
            JournalError: They cannot be read, or ``goes_on`` is False.
        """
        ...


@dataclass(frozen=True, slots=True)
class JournalSource:
    """Run of a journal, see ``ReplaySource``."""

    found: FoundRun
    settings: BridgeSettings

    @property
    def key(self) -> ExperimentKey:
        """See ``ReplaySource``."""
        return self.found.key

    @property
    def directory(self) -> Path | None:
        """See ``ReplaySource``."""
        return self.found.directory

    @property
    def mark(self) -> tuple[int, str]:
        """See ``ReplaySource``."""
        overview = self.found.overview
        return overview.rows, overview.description.status.value

    @property
    def is_whole(self) -> bool:
        """Return whether the journal still has the first row.

        Raises:
            JournalError: It cannot be read.
        """
        with contextlib.ExitStack() as stack:
            return self.opened(stack, lambda _: True).first == 0

    def opened(self, stack: contextlib.ExitStack, _: Callable[[float], bool], /) -> StoredRun:
        """See ``ReplaySource``."""
        if self.directory is not None:
            store = RunStore(ReadOnlyJournal(self.directory))
        else:
            store = RunStore(stack.enter_context(shared_journal(self.settings)))
        return StoredRun(store, self.key)
