"""Finds runs in the journals that a command can reach, and opens the journal of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import (
    RunOverview,
    looking,
    overview,
    removed_runs,
    shared_overview,
    shared_removed_runs,
)
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.lookup.journal_discovery import journals, shared_journal
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey

__all__ = ["FoundRun", "find_runs", "opened", "removed", "runs_below"]


@dataclass(frozen=True, slots=True)
class FoundRun:
    """Run of a journal.

    Attributes:
        overview: As the journal has it.
        directory: Of the journal; None for the database of ``journal.url``.
    """

    overview: RunOverview
    directory: Path | None

    @property
    def key(self) -> ExperimentKey:
        """Return its names."""
        return self.overview.key


def find_runs(settings: BridgeSettings) -> tuple[Sequence[FoundRun], Sequence[JournalError]]:
    """Return every run in reach, the most recently active one last, and why journals are not read.

    A run with several trackers comes once.
    """
    found: dict[tuple[ExperimentKey, Path | None], FoundRun] = {}
    if settings.journal.url is not None:
        with shared_journal(settings) as journal:
            for run in shared_overview(journal):
                found[run.key, None] = FoundRun(run, None)
        return _by_activity(found), ()
    return _runs_of(journals(settings))


def runs_below(directory: Path) -> tuple[Sequence[FoundRun], Sequence[JournalError]]:
    """Return the same of the journals below a directory, at any depth."""
    return _runs_of(sorted(path.parent for path in directory.rglob(JOURNAL_FILE)))


def _runs_of(
    directories: Iterable[Path],
) -> tuple[Sequence[FoundRun], Sequence[JournalError]]:
    found: dict[tuple[ExperimentKey, Path | None], FoundRun] = {}
    faults: list[JournalError] = []
    for directory in directories:
        try:
            for run in overview(directory):
                found[run.key, directory] = FoundRun(run, directory)
        except JournalError as exc:
            faults.append(exc)
    return _by_activity(found), faults


def _by_activity(
    found: Mapping[tuple[ExperimentKey, Path | None], FoundRun],
) -> Sequence[FoundRun]:
    return sorted(found.values(), key=lambda one: one.overview.changed_ns)


def removed(settings: BridgeSettings) -> Mapping[ExperimentKey, int]:
    """Return runs that ended and were removed from the journals, and when (ns)."""
    if settings.journal.url is not None:
        with shared_journal(settings) as journal:
            return shared_removed_runs(journal)
    found: dict[ExperimentKey, int] = {}
    for directory in journals(settings):
        found.update(removed_runs(directory))
    return found


@contextmanager
def opened(settings: BridgeSettings, run: FoundRun) -> Iterator[Connection]:
    """Open the journal of a run for reading, for the length of the context.

    Raises:
        JournalError: It cannot be read.
    """
    if run.directory is not None:
        with looking(run.directory) as connection:
            yield connection
        return
    with shared_journal(settings) as journal, journal.read() as connection:
        yield connection
