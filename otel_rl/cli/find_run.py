"""Finds the run that a command is asked for, in the journals that there are."""

import argparse
import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.interface import Connection, Journal
from otel_rl.bridge.journal.places import names_there_are
from otel_rl.bridge.journal.reader import (
    RunOverview,
    journals_below,
    looking,
    overview,
    removed_runs,
)
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.options import settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = [
    "FoundRun",
    "WantedRun",
    "add_run",
    "add_run_names",
    "directory_named",
    "find_run",
    "find_runs",
    "journals",
    "opened",
    "runs_below",
    "shared_journal",
    "steps",
    "take_directory",
    "wanted_run",
]

_MOST_NAMED: Final = 3
_MOST_LOOKED_AT: Final = 10_000
_PATHS: Final = ("/", "./", "../", "~")
_HINT: Final = (
    "Name the data directory of `otel-rl run` or `otel-rl bridge` (default: .otel_rl), or that of "
    "one run in it."
)

# The command line


def add_run(parser: argparse.ArgumentParser, default: str = "the most recently active run") -> None:
    """Add the argument for a run, or a directory with runs; ``default`` is in its help."""
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN|DIR",
        help=f"a run by EXPERIMENT[/TRIAL] or id, or a data directory (default: {default})",
    )


def add_run_names(parser: argparse.ArgumentParser) -> None:
    """Add the options for the exact names of a run."""
    for name in ("experiment", "trial"):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"exact {name} of the run")


def steps(text: str) -> tuple[int, int]:
    """Parse ``N`` or ``FIRST:LAST``, for argparse.

    Raises:
        ArgumentTypeError: It is neither.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"write N or FIRST:LAST (got {text!r})")
    return int(found[1]), int(found[2] or found[1])


class WantedRun(NamedTuple):
    """Run named on the command line.

    Attributes:
        text: Name as typed; it may contain slashes, so several runs may match.
        experiment: Exact experiment name; None for any.
        trial: Exact trial name; None for any.
    """

    text: str | None
    experiment: str | None = None
    trial: str | None = None

    @property
    def key(self) -> ExperimentKey | None:
        """Return the run if both of its names are given."""
        if self.experiment is None or self.trial is None:
            return None
        return ExperimentKey(self.experiment, self.trial)

    @property
    def is_exact(self) -> bool:
        """Return whether exact names are given."""
        return self.experiment is not None or self.trial is not None

    def of(self, keys: Iterable[ExperimentKey]) -> Sequence[ExperimentKey]:
        """Return the runs that match, in their order.

        Raises:
            ConfigError: The same text matches several runs.
        """
        keys = [
            key
            for key in keys
            if self.experiment in {None, key.experiment} and self.trial in {None, key.trial}
        ]
        if self.text is None:
            return keys
        whole = [key for key in keys if self.text == str(key)]
        if len(whole) > 1:
            runs = " or ".join(
                f"--experiment={shlex.quote(key.experiment)} --trial={shlex.quote(key.trial)}"
                for key in whole
            )
            raise ConfigError(f"{self.text!r} matches several runs.", hint=f"Write {runs}.")
        return whole or [
            key
            for key in keys
            if self.text in {key.experiment, key.trial, run_id(key.experiment, key.trial)}
        ]

    def not_found(self, names: Iterable[ExperimentKey], place: str) -> ConfigError:
        """Return the error that ``place`` has other runs."""
        name = self.text or "/".join(filter(None, (self.experiment, self.trial)))
        return ConfigError(
            f"There is no run {self} {place}.", hint=names_there_are(name, map(str, names))
        )

    def __str__(self) -> str:
        if self.text is not None:
            return repr(self.text)
        given = (("experiment", self.experiment), ("trial", self.trial))
        return " and ".join(f"{name} {value!r}" for name, value in given if value is not None)


def wanted_run(arguments: argparse.Namespace) -> WantedRun:
    """Return the run that is named.

    Args:
        arguments: With ``run`` and the options of ``add_run_names``.

    Raises:
        ConfigError: It is named twice.
    """
    wanted = WantedRun(arguments.run, arguments.experiment, arguments.trial)
    if wanted.text is not None and wanted.is_exact:
        raise ConfigError(
            "Name the run either by --experiment and --trial, or by EXPERIMENT[/TRIAL]."
        )
    return wanted


def take_directory(arguments: argparse.Namespace, *, may_be_empty: bool = False) -> None:
    """Move a directory in ``arguments.run`` to ``arguments.data``, unless a run has the name.

    It may be a data directory, that of one run, or the file of a journal.

    Args:
        arguments: With ``run`` and the options of ``add_journal_options``.
        may_be_empty: Whether journals may come later.

    Raises:
        ConfigError: It has no journal, does not exist, or is named twice.
    """
    text: str | None = arguments.run
    if text is None:
        return
    path = directory_named(text)
    if path is None:
        if text.startswith(_PATHS):
            raise ConfigError(f"There is no directory {text!r}.", hint=_HINT)
        return
    if _is_run(arguments, text):
        return
    if arguments.data is not None:
        raise ConfigError("Name the directory once, as DIR or by --data.")
    if not may_be_empty and next(journals_below(path), None) is None:
        raise ConfigError(f"There is no journal in {text!r}, nor directly below.", hint=_near(path))
    arguments.data, arguments.run = path, None


def directory_named(text: str) -> Path | None:
    """Return the directory that is named; None if it is none, or cannot be one."""
    try:
        path = Path(text).expanduser()
        path = path.parent if path.name == JOURNAL_FILE and path.is_file() else path
        return path if path.is_dir() else None
    except (OSError, RuntimeError):  # too long, not to be read, or of a user that does not exist
        return None


def _near(path: Path) -> str:
    found: dict[str, None] = {}
    for directory, _, files in islice(os.walk(path), _MOST_LOOKED_AT):  # it may be a whole disk
        if JOURNAL_FILE in files:
            found[str(Path(directory).parent)] = None
        if len(found) == _MOST_NAMED:
            break
    places = ", ".join(found)
    return f"There are some below {places}." if places else _HINT


def _is_run(arguments: argparse.Namespace, text: str) -> bool:
    """Return whether a run has the name, which is that of a directory, too."""
    runs = find_runs(settings_of(arguments), tell=lambda _: None)
    return bool(WantedRun(text).of({run.key: run for run in runs}))


# The journals


@contextlib.contextmanager
def shared_journal(settings: BridgeSettings) -> Iterator[Journal]:
    """Open the database of ``journal.url`` for the length of the context.

    Raises:
        OtelRLError: The database cannot be used.
    """
    with contextlib.closing(settings.journal_place.open()) as journal:
        yield journal


def journals(settings: BridgeSettings) -> Iterator[Path]:
    """Return the paths of journals; `otel-rl run` has one for each run, below that of a bridge."""
    return journals_below(settings.data)


@dataclass(frozen=True, slots=True)
class FoundRun:
    """Run of a journal.

    Attributes:
        overview: As the journal has it.
        directory: Of the journal; None for the database of ``journal.url``.
        status: Exit status of a command that has done its work for the run: 1 if another journal in
            reach, which may have the run too, or a later one, cannot be read.
    """

    overview: RunOverview
    directory: Path | None
    status: int = 0

    @property
    def key(self) -> ExperimentKey:
        """Return its names."""
        return self.overview.key


def find_runs(settings: BridgeSettings, *, tell: Callable[[str], None] = say) -> Sequence[FoundRun]:
    """Return every run in reach, the most recently active one last.

    Args:
        settings: With the place of the journals.
        tell: Called with the reason for each journal that cannot be read.
    """
    if settings.journal.url is None:
        return _runs_of(journals(settings), tell)
    with shared_journal(settings) as journal:
        return _by_activity([FoundRun(run, None) for run in overview(journal)])


def runs_below(directory: Path) -> Sequence[FoundRun]:
    """Return the same of the journals below a directory, at any depth."""
    return _runs_of(sorted(path.parent for path in directory.rglob(JOURNAL_FILE)), say)


def find_run(settings: BridgeSettings, wanted: WantedRun) -> FoundRun:
    """Return the run that is wanted; of several, the most recently active one.

    The journal of a bridge comes before those below it, where exact names are given.

    Raises:
        ConfigError: There is no such run. Says which there are, or when it was removed.
    """
    runs = find_runs(settings)
    if wanted.is_exact:
        own = [run for run in runs if run.directory == settings.data]
        runs = own if wanted.of(run.key for run in own) else runs
    of_key = {run.key: run for run in runs}
    matching = {*wanted.of(of_key)}
    if matching:
        return next(run for run in reversed(runs) if run.key in matching)
    gone = _removed(settings)
    for key in wanted.of(gone)[-1:]:
        when = datetime.fromtimestamp(gone[key] / 1e9, UTC)
        raise ConfigError(
            f"{key} ended and was removed from the journal on {when:%Y-%m-%d}. Its rows are in "
            "the tracker.",
            hint="journal.keep_ended and journal.max_bytes set how long ended runs stay.",
        )
    place = settings.journal_place
    raise wanted.not_found(of_key, place.words) if runs else place.no_run()


@contextlib.contextmanager
def opened(settings: BridgeSettings, run: FoundRun) -> Iterator[Connection]:
    """Open the journal of a run for reading, for the length of the context.

    Raises:
        JournalError: The journal cannot be read.
    """
    if run.directory is not None:
        with looking(run.directory) as connection:
            yield connection
        return
    with shared_journal(settings) as journal, journal.read() as connection:
        yield connection


def _runs_of(directories: Iterable[Path], tell: Callable[[str], None]) -> Sequence[FoundRun]:
    found: list[FoundRun] = []
    status = 0
    for directory in directories:
        try:
            # A run with several trackers comes once for each.
            of_key = {run.key: run for run in overview(directory)}
            found += [FoundRun(run, directory) for run in of_key.values()]
        except JournalError as exc:
            tell(str(exc))
            status = 1
    return _by_activity(replace(run, status=status) for run in found)


def _by_activity(found: Iterable[FoundRun]) -> Sequence[FoundRun]:
    return sorted(found, key=lambda one: one.overview.changed_ns)


def _removed(settings: BridgeSettings) -> Mapping[ExperimentKey, int]:
    """Return runs that ended and were removed from the journals, and when (ns)."""
    if settings.journal.url is not None:
        with shared_journal(settings) as journal:
            return removed_runs(journal)
    found: dict[ExperimentKey, int] = {}
    for directory in journals(settings):
        found.update(removed_runs(directory))
    return found
