"""Takes a directory with journals where a command wants a run's name."""

import argparse
import os
from itertools import islice
from pathlib import Path
from typing import Final

from otel_rl.bridge.journal.reader import journals_below
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.lookup.run_lookup import find_runs
from otel_rl.cli.lookup.wanted_run import WantedRun
from otel_rl.cli.options import settings_of
from otel_rl.errors import ConfigError

__all__ = ["directory_named", "take_directory"]

_MOST_NAMED: Final = 3
_MOST_LOOKED_AT: Final = 10_000
_PATHS: Final = ("/", "./", "../", "~")


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


_HINT: Final = (
    "Name the data directory of `otel-rl run` or `otel-rl bridge` (default: .otel_rl), or that of "
    "one run in it."
)


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
    runs, _ = find_runs(settings_of(arguments))
    return bool(WantedRun(text).of({run.key: run for run in runs}))
