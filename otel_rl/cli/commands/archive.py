"""``otel-rl archive``: writes waiting values, and shows where each run's files are."""

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal.archive_store import ArchiveStore
from otel_rl.bridge.journal.places import WHERE_RUNS_ARE
from otel_rl.bridge.journal.reader import journals_below
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.cli.find_run import add_run, matching, take_directory
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.replays import archive_place, archive_places
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalError, JournalLocked
from otel_rl.plurals import many
from otel_rl.redaction import printable

if TYPE_CHECKING:
    from otel_rl.bridge.replay.archived_run import ArchiveFiles

__all__ = ["add_parser"]

_EPILOG: Final = """\
examples:
  otel-rl archive                         every run, and where its files are
  otel-rl archive grpo-7b                 those of an experiment
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "archive",
        description="Write the values that a stopped bridge has left for the archive, and show "
        "where the files of each run are (`otel-rl help archive`).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser, "every run")
    add_journal_options(parser)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    take_directory(arguments, may_be_empty=True)  # an archive may be all that there is
    settings = settings_of(arguments)
    is_complete = _write_waiting(settings)
    runs = [*_runs(settings)]
    wanted = matching(arguments.run, [run.key for run in runs])
    runs = [run for run in runs if run.key in wanted]
    if not runs:
        raise ConfigError(
            f"There is no archive of {arguments.run or 'a run'} below {str(settings.data)!r}.",
            hint=f"{WHERE_RUNS_ARE} A bridge writes the archive if pyarrow is installed where the "
            "bridge runs.",
        )
    for run in runs:
        print(printable(f"{run.key}: {many(run.values, 'value')} in {run.directory}"))
    return 0 if is_complete else 1


def _write_waiting(settings: BridgeSettings) -> bool:
    """Write the values that stopped bridges have left. Returns whether all are written."""
    from otel_rl.bridge.archive.archiver import Archiver, ArchiveUnwritable

    if settings.journal.url is not None:
        return True  # a run's values are written by the bridge that has the run
    is_complete = True
    for data in journals_below(settings.data):
        try:
            journal = SqliteJournal(data, max_bytes=settings.journal.max_bytes)
        except JournalLocked:
            say(f"a bridge uses {data}: it writes the rest every {settings.archive.every_s} s")
            continue
        except (ConfigError, JournalError) as exc:  # of another version: it has no archive
            say(f"the journal in {data} cannot be opened: {exc}")
            continue
        with contextlib.closing(journal):
            try:
                Archiver(
                    ArchiveStore(journal),
                    archive_place(settings, data),
                    every_s=settings.archive.every_s,
                    max_waiting_bytes=journal.max_bytes,
                    counters=Counters(),
                ).write_all()
            except (ArchiveUnwritable, JournalError) as exc:
                say(f"the archive cannot be written, values stay in {data}: {exc}")
                is_complete = False
    return is_complete


def _runs(settings: BridgeSettings) -> Iterator["ArchiveFiles"]:
    from otel_rl.bridge.replay.archived_run import archives_below

    for place in archive_places(settings):
        yield from archives_below(place, lambda exc: say(str(exc)))
