"""Finds the runs that a command is asked for, in the journals that there are."""

import argparse
import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import (
    journals_below,
    removed_runs,
)
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.logs.find import log_at
from otel_rl.cli.logs.journal import limits, write_journal
from otel_rl.cli.logs.log import Log
from otel_rl.cli.options import settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalError
from otel_rl.records import ExperimentKey
from otel_rl.view.found import Found, FoundRuns, matching

_PATHS: Final = ("/", "./", "../", "~")
_HINT: Final = (
    "Name the data directory of `otel-rl run` or `otel-rl bridge` (default: .otel_rl), or that of "
    "one run in it."
)


def add_run(
    parser: argparse.ArgumentParser,
    default: str = "the most recently active run",
    *,
    takes_logs: bool = True,
) -> None:
    """Add the argument for a run, or a directory with runs; ``default`` is in its help."""
    what = "a run by EXPERIMENT[/TRIAL] or id, or a data directory"
    if takes_logs:
        what += ", or a log of others (`otel-rl help read-a-log`)"
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN|DIR|LOG" if takes_logs else "RUN|DIR",
        help=f"{what} (default: {default})",
    )


def steps(text: str) -> tuple[int, int]:
    """Parse ``N`` or ``FIRST:LAST``, for argparse.

    Raises:
        ArgumentTypeError: It is neither.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"write N or FIRST:LAST (got {text!r})")
    return int(found[1]), int(found[2] or found[1])


class Runs(FoundRuns):
    """The runs of every journal in reach. Use it as a context, which closes a shared database.

    Args:
        settings: With the place of the journals.
        directories: Of journals to look into in place of those; None for those.

    Raises:
        OtelRLError: The database of ``journal.url`` cannot be used.
    """

    def __init__(self, settings: BridgeSettings, directories: Sequence[Path] | None = None) -> None:
        super().__init__(settings.journal_place, directories)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self, name: str | None = None) -> Sequence[Found]:
        """Return the runs of a name, or all, the most recently active one first.

        Raises:
            ConfigError: There is none of this name. Says which there are, or when it was removed.
        """
        runs = self.all()
        keys = [run.key for run in runs]
        wanted = {*matching(name, keys)}
        if name is not None and not wanted:
            raise self._not_found(name, keys)
        return [run for run in runs if run.key in wanted]

    def named(self, name: str | None) -> Sequence[Found]:
        """Return the runs of a name, or all, of which there is one; say what cannot be read.

        Raises:
            ConfigError: There is none.
        """
        try:
            runs = self.look(name)
        finally:
            self.status()
        if not runs:
            raise self._place.no_run()
        return runs

    def status(self) -> int:
        """Say which journals could not be read at the last look, and return the exit status."""
        for fault in self.faults:
            say(fault)
        return 1 if self.faults else 0

    def _not_found(self, name: str, keys: Sequence[ExperimentKey]) -> ConfigError:
        gone = self._removed()
        for key in matching(name, gone)[-1:]:
            when = datetime.fromtimestamp(gone[key] / 1e9, UTC)
            return ConfigError(
                f"{key} ended and was removed from the journal on {when:%Y-%m-%d}. Its rows are in "
                "the tracker.",
                hint="journal.keep_ended and journal.max_bytes set how long ended runs stay.",
            )
        return self.no_run(name, keys)

    def _removed(self) -> Mapping[ExperimentKey, int]:
        """Return runs that ended and were removed from the journals, and when (ns)."""
        if self._shared is not None:
            return removed_runs(self._shared)
        found: dict[ExperimentKey, int] = {}
        for directory in (of for of, _ in self._journals() if of is not None):
            with contextlib.suppress(JournalError):  # it is among the faults
                found.update(removed_runs(directory))
        return found


# Directories in place of runs


def take_directory(
    arguments: argparse.Namespace,
    *,
    may_be_empty: bool = False,
    takes_logs: bool = True,
    is_one_of_several: bool = False,
) -> None:
    """Move a directory in ``arguments.run`` to ``arguments.data``, unless a run has the name.

    It may be a data directory, that of one run, or the file of a journal; or the log of a run that
    others have written, which is read into a journal that is there as long as ``arguments``.

    Args:
        arguments: With ``run`` and the options of ``add_journal_options``.
        may_be_empty: Whether journals may come later.
        takes_logs: Whether it may be a log.
        is_one_of_several: Whether ``arguments.data`` may be that of other runs.

    Raises:
        ConfigError: It has no journal, does not exist, is named twice, or is a log without numbers.
    """
    text: str | None = arguments.run
    if text is None or _is_run(arguments, text):
        return
    path = directory_named(text)
    has_journal = path is not None and next(journals_below(path), None) is not None
    log = log_at(text) if takes_logs and not has_journal else None
    if log is None and path is None:
        if text.startswith(_PATHS):
            raise ConfigError(f"There is no directory {text!r}.", hint=_HINT)
        return
    if arguments.data is not None and not is_one_of_several:
        if log is not None:
            raise ConfigError("--data: a log has no data directory.", hint="Leave out --data.")
        raise ConfigError("Name the directory once, as DIR or by --data.")
    if log is not None:
        _take_log(arguments, log)
        return
    if not (has_journal or may_be_empty):
        hint = f"{_HINT} Of a log of others, name its own directory." if takes_logs else _HINT
        raise ConfigError(f"There is no journal in {text!r}, nor directly below.", hint=hint)
    arguments.data, arguments.run = path, None


def _take_log(arguments: argparse.Namespace, log: Log) -> None:
    """Write a journal of the log, and say what the log does not tell."""
    directory = TemporaryDirectory(prefix="otel-rl-log-")  # removed with ``arguments``, or at exit
    if log.source != arguments.run:
        say(f"{arguments.run!r} has {log.kind}: {log.source!r}")
    write_journal(log, Path(directory.name))
    for sentence in limits(log):
        say(sentence)
    arguments.log, arguments.data, arguments.run = directory, Path(directory.name), None


def directory_named(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        path = path.parent if path.name == JOURNAL_FILE and path.is_file() else path
        return path if path.is_dir() else None
    except (OSError, RuntimeError):  # too long, not to be read, or of a user that does not exist
        return None


def _is_run(arguments: argparse.Namespace, text: str) -> bool:
    with Runs(settings_of(arguments)) as runs:
        return bool(matching(text, [run.key for run in runs.look()]))
