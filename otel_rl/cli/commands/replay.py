"""``otel-rl replay``: writes stored runs to a tracker, as often as one likes."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.find_run import FoundRun, Runs, directory_named, matching
from otel_rl.cli.inbox_bridge import join_inboxes
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.replayed import Replayed
from otel_rl.cli.replays import ReplayJob, ReplayJobs
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError
from otel_rl.inbox import bytes_in, inboxes_below
from otel_rl.records import ExperimentKey

__all__ = ["DESCRIPTION", "EPILOG", "add_options", "command"]

DESCRIPTION: Final = (
    "Write runs from their journals to a tracker. When called "
    "again, it continues after the last row that the tracker has, so no row is written twice."
)

EPILOG: Final = """\
examples:
  otel-rl replay grpo-7b --tracker trackio        a run that went elsewhere
  otel-rl replay grpo-7b/lr-3e-6 --tracker wandb --name grpo-7b/again
  otel-rl replay /shared/runs --tracker wandb     every run below, from nodes without internet
  otel-rl replay node-0 node-1 --tracker wandb    one run of what two hosts have left in inboxes
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="*",
        metavar="RUN|DIR",
        help="EXPERIMENT[/TRIAL] or id of a run; and directories, for the runs in the journals "
        "below them, every one unless runs are named, too. What the hosts of a job have "
        "left in inboxes there becomes one run",
    )
    parser.add_argument(
        "--name", metavar="NEW[/TRIAL]", help="name in the tracker (default: the run's own)"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=4,
        metavar="N",
        help="runs written at the same time (%(default)s); lower it if the tracker limits rates",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="also write runs that an earlier replay has finished",
    )
    add_bridge_options(parser)


def command(arguments: argparse.Namespace) -> int:
    if not arguments.tracker:
        raise ConfigError("--tracker: name the tracker that the runs go to.")
    if arguments.at_once < 1:
        raise ConfigError(f"--at-once: at least one run (got {arguments.at_once}).")
    settings = settings_of(arguments)
    _check(settings)
    given = [(text, directory_named(text)) for text in arguments.run]
    directories = [directory for _, directory in given if directory is not None]
    names = [text for text, directory in given if directory is None]
    if not given:
        raise ConfigError(
            "Name the run, or a directory with all that are wanted.", hint="See `otel-rl runs`."
        )
    if inboxes := [path for one in directories for path in inboxes_below(one) if bytes_in(path)]:
        return _join(inboxes, arguments)
    runs = _wanted(settings, names, directories)
    if arguments.name and len(runs) > 1:
        raise ConfigError(
            f"--name: it is one name, and there are {len(runs)} runs.", hint="Name one run."
        )
    jobs = ReplayJobs(
        settings,
        [
            ReplayJob(run, tracker, _renamed(run.key, arguments.name or ""))
            for run in runs
            for tracker in settings.tracker.trackers
        ],
        arguments.at_once,
        Replayed(settings.tracker.options, enabled=not arguments.again),
    )
    jobs.run()
    if jobs.known:
        were = "was" if jobs.known == 1 else "were"
        say(f"{jobs.known} {were} written by an earlier replay; --again asks the tracker")
    if jobs.failed:
        say(
            f"{jobs.failed} {'lacks' if jobs.failed == 1 else 'lack'} rows; if the tracker was "
            "away, call it again to continue after the last row that the tracker has"
        )
    return 1 if jobs.failed else 0


def _join(inboxes: Sequence[Path], arguments: argparse.Namespace) -> int:
    """Write the runs of some inboxes; those of one run have directories of the same name."""
    of_runs: dict[str, list[Path]] = {}
    for inbox in inboxes:
        of_runs.setdefault(inbox.parent.name, []).append(inbox)
    are_complete = [join_inboxes(of_run, arguments) for of_run in of_runs.values()]
    return 0 if all(are_complete) else 1


def _check(settings: BridgeSettings) -> None:
    """Raise ConfigError before anything starts if a tracker cannot work with its settings."""
    settings.tracker.check_options()
    for tracker in settings.tracker.trackers:
        backend(tracker).validate(settings.tracker.options_of(tracker))


def _wanted(
    settings: BridgeSettings, names: Sequence[str], directories: Sequence[Path]
) -> Sequence[FoundRun]:
    """Return the runs to write: those of some names, or all.

    Args:
        settings: With the place of the journals where no directory is named.
        names: Of runs.
        directories: Above journals.

    Raises:
        ConfigError: There are none, or it is unclear which.
    """
    with Runs(settings) as runs:
        if directories:
            below = (path.parent for one in directories for path in one.rglob(JOURNAL_FILE))
            found = runs.below(sorted(below))
        else:
            found = runs.look()
        runs.status()
        keys = [one.key for one in found]
        wanted = {key for name in names or (None,) for key in matching(name, keys)}
        chosen = [one for one in found if one.key in wanted]
        if chosen:
            return chosen
        if not directories:
            raise runs.not_found(names[0], keys)
    raise ConfigError(
        f"There is no run {f'{names[0]!r} ' if names else ''}in the journals below "
        f"{', '.join(map(repr, map(str, directories)))}.",
        hint="Name a directory that `otel-rl run` or `otel-rl bridge` had as --data.",
    )


def _renamed(key: ExperimentKey, name: str) -> ExperimentKey:
    experiment, _, trial = name.partition("/")
    return ExperimentKey(experiment or key.experiment, trial or key.trial)
