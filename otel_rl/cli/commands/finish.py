"""``otel-rl finish``: writes what a command or a bridge has left, and ends."""

import argparse
import importlib.util
from pathlib import Path
from typing import Final

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import journals_below, looking, overview
from otel_rl.cli.embedded_bridge import of_a_program
from otel_rl.cli.ending.end import write_rest
from otel_rl.cli.ending.files import KeptSettings
from otel_rl.cli.inbox_bridge import LISTENS_NOWHERE, held, of_inboxes
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.signal_handlers import EndRequests, end_requests
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalLocked, OtelRLError
from otel_rl.inbox import INBOX, bytes_in, inboxes_below
from otel_rl.records import ExperimentKey

DESCRIPTION: Final = (
    "Write the rows that `otel-rl run` or a stopped `otel-rl bridge` has left in "
    "its data directory, to the tracker that they were meant for, and the values that its "
    "archive lacks, and end."
)

EPILOG: Final = """
examples:
  otel-rl finish                       every run below .otel_rl
  otel-rl finish .otel_rl/4ixr2aq7     one directory, as the run's last lines name it

Trackers, their directories and projects are those of the command that has left the rows. Exits with
0 if everything is written, with 1 if something is left.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="a data directory, or one with several below it (default: .otel_rl)",
    )
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    below = arguments.directory or settings_of(arguments).data
    inboxes = {path.parent for path in inboxes_below(below)}
    directories = [*dict.fromkeys([*journals_below(below), *sorted(inboxes)])]
    if not directories:
        raise ConfigError(
            f"There is no journal in {str(below)!r} or below, and no inbox.",
            hint="Name a directory that `otel-rl run` or `otel-rl bridge` had as its data "
            "directory: the last lines of its output do.",
        )
    with end_requests() as requests:
        found = [
            _finish(directory, arguments, requests, is_named=directory == below)
            for directory in directories
        ]
    left = [str(one) for one, is_done in zip(directories, found, strict=True) if is_done is False]
    if left:
        say(f"not finished: {', '.join(left)}. Call it again later.")
    elif not any(found):
        say(f"nothing is left to write in {below}")
    return 1 if left else 0


def _finish(
    directory: Path, arguments: argparse.Namespace, requests: EndRequests, *, is_named: bool
) -> bool | None:
    """Write what is left in one directory.

    Returns:
        Whether nothing is left now; None if nothing was.
    """
    try:
        kept = KeptSettings.beside(directory)
        inbox = directory / INBOX
        with kept.in_environment(), held([inbox]):
            settings = _settings(directory, arguments, kept)
            has_rest = bytes_in(inbox) or _has_rest(directory, settings)
            if not (is_named or has_rest):
                return None
            bridge = Bridge(settings, **of_inboxes(settings, [inbox]))
            bridge.start()
            is_written = write_rest(bridge, requests, kept.exit_status)
            return is_written and not _lacks_values(directory, settings)
    except JournalLocked as exc:
        say(f"{exc.args[0]} If that is a bridge, it writes the rest itself.")
        return False
    except OtelRLError as exc:
        say(f"{directory}: {exc}")
        return False


def _has_rest(directory: Path, settings: BridgeSettings) -> bool:
    """Return whether a tracker or the archive lacks something.

    A tracker that was never reached has no record.
    """
    if _lacks_values(directory, settings):
        return True
    asked: dict[ExperimentKey, set[str]] = {}
    for run in overview(directory):
        if run.unconfirmed or run.waiting_bytes:
            return True
        asked.setdefault(run.key, set()).add(run.tracker)
    return any(not names.issuperset(settings.tracker.trackers) for names in asked.values())


def _lacks_values(directory: Path, settings: BridgeSettings) -> bool:
    """Return whether values wait for an archive that can be written here."""
    is_off = settings.archive.enabled is False or importlib.util.find_spec("pyarrow") is None
    if is_off or next(journals_below(directory), None) != directory:
        return False
    with looking(directory) as connection:
        (found,) = connection.execute("SELECT EXISTS (SELECT 1 FROM archive)").fetchone()
    return bool(found)


def _settings(directory: Path, arguments: argparse.Namespace, kept: KeptSettings) -> BridgeSettings:
    arguments.data = directory
    settings = settings_of(arguments, overrides=LISTENS_NOWHERE, defaults=kept.settings)
    kept.check_secrets(settings)
    # Without any that were kept no bridge has come so far: the run of a program.
    return settings if kept.settings else of_a_program(settings)
