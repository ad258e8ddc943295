"""``otel-rl replay``: writes stored runs to a tracker, as often as one likes."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.journal.reader import overview
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.bridge.replay.replayed import Replayed
from otel_rl.cli.embedded_bridge import say
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.replay_jobs import ReplayJob, ReplayJobs
from otel_rl.cli.run_lookup import FoundRun, find_runs
from otel_rl.cli.wanted_run import WantedRun, add_run_names, wanted_run
from otel_rl.errors import ConfigError, JournalError
from otel_rl.records import ExperimentKey

__all__ = ["add_parser"]

_EPILOG: Final = """\
examples:
  otel-rl replay grpo-7b --tracker trackio        a run that went elsewhere, live or ended
  otel-rl replay grpo-7b/lr-3e-6 --tracker wandb --name grpo-7b/again
  otel-rl replay /shared/runs --tracker wandb     every run below, from nodes without internet

Called again it goes on where the tracker is, and writes no row twice.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "replay",
        description="Write runs from their journals to a tracker. It may be called again at any "
        "time: it goes on where the tracker is, and writes no row twice.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="EXPERIMENT[/TRIAL]|DIR",
        help="a run, or a directory: every run in the journals below it",
    )
    add_run_names(parser)
    parser.add_argument(
        "--name", metavar="NEW[/TRIAL]", help="name in the tracker (default: the run's own)"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=4,
        metavar="N",
        help="runs written at the same time (%(default)s); fewer meet fewer rate limits",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="also ask for runs that an earlier replay has finished",
    )
    add_bridge_options(parser)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    if not arguments.tracker:
        raise ConfigError("--tracker: name the tracker that the runs go to.")
    if arguments.at_once < 1:
        raise ConfigError(f"--at-once: at least one run (got {arguments.at_once}).")
    settings = settings_of(arguments)
    _check(settings)
    runs = _wanted(settings, arguments)
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
        say(f"{jobs.known} were written by an earlier replay; --again asks their tracker")
    if jobs.failed:
        say(f"{jobs.failed} lack rows; call it again to go on where their tracker is")
    return 1 if jobs.failed else 0


def _check(settings: BridgeSettings) -> None:
    """Raise ConfigError before anything starts if a tracker cannot work with its settings."""
    settings.tracker.check_options()
    for tracker in settings.tracker.trackers:
        backend(tracker).validate(settings.tracker.options_of(tracker))


def _wanted(settings: BridgeSettings, arguments: argparse.Namespace) -> Sequence[FoundRun]:
    """Return the runs to write.

    Raises:
        ConfigError: There are none, or it is unclear which.
    """
    if arguments.run is not None and Path(arguments.run).is_dir():
        return _below(Path(arguments.run))
    wanted = wanted_run(arguments)
    if wanted == WantedRun(None):
        raise ConfigError(
            "Name the run, or a directory with all that are wanted.", hint="See `otel-rl runs`."
        )
    runs, faults = find_runs(settings)
    for fault in faults:
        say(str(fault))
    of_key = {run.key: run for run in runs}
    keys = wanted.of(of_key)
    if not keys:
        raise ConfigError(
            f"There is no run {wanted} in the journals below {str(settings.data)!r}.",
            hint=f"There are: {', '.join(sorted(map(str, of_key))) or 'none'}.",
        )
    return [of_key[key] for key in keys]


def _below(directory: Path) -> Sequence[FoundRun]:
    """Return every run of the journals below a directory, at any depth.

    Raises:
        ConfigError: There are none.
    """
    found: dict[tuple[Path, ExperimentKey], FoundRun] = {}
    for path in sorted(directory.rglob(JOURNAL_FILE)):
        try:
            for run in overview(path.parent):
                found[path.parent, run.key] = FoundRun(run, path.parent)
        except JournalError as exc:
            say(str(exc))
    if not found:
        raise ConfigError(
            f"There is no run in the journals below {str(directory)!r}.",
            hint="Name a directory that `otel-rl run` or `otel-rl bridge` had as --data.",
        )
    return [*found.values()]


def _renamed(key: ExperimentKey, name: str) -> ExperimentKey:
    experiment, _, trial = name.partition("/")
    return ExperimentKey(experiment or key.experiment, trial or key.trial)
