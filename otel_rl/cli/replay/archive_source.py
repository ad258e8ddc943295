"""A run of the archive as a source of a replay. Needs pyarrow."""

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.replay.archived_run import ArchiveFiles, archived_run, identity_of
from otel_rl.bridge.replay.replay import StoredRun
from otel_rl.records import ExperimentKey

__all__ = ["ArchiveSource"]

_NO_BOUND = 1 << 62  # but the disk's: rows are removed with the directory


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Run of an archive, see ``ReplaySource``. Its rows are made again in a temporary directory."""

    files: ArchiveFiles
    settings: BridgeSettings

    @property
    def key(self) -> ExperimentKey:
        """See ``ReplaySource``."""
        return self.files.key

    @property
    def directory(self) -> Path:
        """See ``ReplaySource``: ``<data>/archive/<run id>``, or where the files were copied to."""
        place = self.files.directory.absolute().parent
        return place.parent if place.name == "archive" else self.settings.data

    @property
    def mark(self) -> tuple[int, str]:
        """See ``ReplaySource``."""
        return self.files.values, identity_of(self.files, self.settings.align)

    def opened(self, stack: contextlib.ExitStack, goes_on: Callable[[float], bool], /) -> StoredRun:
        """See ``ReplaySource``."""
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-rl-replay-"))
        journal = SqliteJournal(Path(scratch), max_bytes=_NO_BOUND)
        stack.callback(journal.close)
        return archived_run(self.files, journal, self.settings.align, goes_on)
