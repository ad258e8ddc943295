"""``otel-rl replay``: writes stored runs to a tracker, as often as one likes, many at a time."""

import argparse
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.manager import DeliverySettings, RunState, RunStatus
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.bridge.replay import ReadOnlyJournal, Replay, StoredRun
from otel_rl.bridge.stages import delivery_settings
from otel_rl.cli.ending.files import write_json
from otel_rl.cli.find_run import Runs, directory_named
from otel_rl.cli.inbox_bridge import join_inboxes
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalError, NoTeam
from otel_rl.inbox import bytes_in, inboxes_below
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey
from otel_rl.view.found import Found

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

_NEWS_S: Final = 5.0  # without the end of a run
_FILE: Final = "replayed.json"

# Variables that say where a tracker is.
_PLACES: Final = ("WANDB_", "MLFLOW_", "TRACKIO_", "HF_")


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
    jobs = _ReplayJobs(
        settings,
        [
            _ReplayJob(run, tracker, _renamed(run.key, arguments.name or ""))
            for run in runs
            for tracker in settings.tracker.trackers
        ],
        arguments.at_once,
        _Replayed(enabled=not arguments.again),
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
    for tracker in settings.tracker_of_teams.values():
        tracker.check_options()
        for name in tracker.trackers:
            backend(name).validate(tracker.options_of(name))


def _wanted(
    settings: BridgeSettings, names: Sequence[str], directories: Sequence[Path]
) -> Sequence[Found]:
    """Return the runs to write: those of some names, or all.

    Args:
        settings: With the place of the journals where no directory is named.

    Raises:
        ConfigError: There are none, or none of a name, or it is unclear which.
    """
    below = {path.parent for one in directories for path in one.rglob(JOURNAL_FILE)}
    with Runs(settings, sorted(below) if directories else None) as runs:
        found = [run for name in names or (None,) for run in runs.look(name)]
        runs.status()
    if not found:
        raise ConfigError(
            f"There is no run in the journals below {', '.join(map(repr, map(str, directories)))}.",
            hint="Name a directory that `otel-rl run` or `otel-rl bridge` had as --data.",
        )
    return [*{(run.directory, run.id): run for run in found}.values()]


def _renamed(key: ExperimentKey, name: str) -> ExperimentKey:
    experiment, _, trial = name.partition("/")
    return ExperimentKey(experiment or key.experiment, trial or key.trial)


class _Replayed:
    """What earlier calls of ``otel-rl replay`` have finished, noted beside each journal.

    A tracker that tells its position need not be asked again. An offline W&B run has none: without
    this note each replay would make a new directory, which ``wandb sync`` uploads a second time.
    Any thread may call any method.

    Args:
        enabled: Whether the files count.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._lock = threading.Lock()  # guards the files

    def has(
        self, directory: Path | None, to: DeliverySettings, key: ExperimentKey, mark: str
    ) -> bool:
        """Return whether the run is finished, with as many rows and the status of ``mark``."""
        if directory is None or not self._enabled:
            return False
        with self._lock:
            return _read(directory).get(_name(to, key)) == mark

    def note(
        self, directory: Path | None, to: DeliverySettings, key: ExperimentKey, mark: str
    ) -> None:
        if directory is None:
            return
        # In a directory that is only read a tracker is asked again, and an offline run of W&B is
        # made anew.
        with self._lock, contextlib.suppress(OSError):
            write_json(directory / _FILE, {**_read(directory), _name(to, key): mark})


def _name(to: DeliverySettings, key: ExperimentKey) -> str:
    """Return the name of a run in a tracker: other options of it are another place."""
    place = [
        sorted(to.attributes.items()),
        sorted((name, v) for name, v in os.environ.items() if name.startswith(_PLACES)),
    ]
    digest = hashlib.sha256(json.dumps(place).encode()).hexdigest()[:16]
    return f"{to.tracker} {digest} {json.dumps([key.experiment, key.trial])}"


def _read(directory: Path) -> dict[str, object]:
    try:
        found = json.loads((directory / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class _ReplayJob:
    """A run on its way to a tracker.

    Attributes:
        key: Name of the run there.
        replay: None before it begins.
        is_known: Whether an earlier replay has finished it.
    """

    found: Found
    tracker: str
    key: ExperimentKey
    replay: Replay | None = None
    is_known: bool = False

    def __str__(self) -> str:
        own = "" if self.key == self.found.key else f" as {self.key}"
        return f"{self.found.key}{own}"


@dataclass(slots=True)
class _ReplayJobs:
    """The jobs of one command.

    Attributes:
        done: Number of jobs that are over.
        known: Those of them that an earlier replay had finished.
        failed: Number of those that lack rows.
    """

    settings: BridgeSettings
    jobs: Sequence[_ReplayJob]
    at_once: int
    replayed: _Replayed
    done: int = 0
    known: int = 0
    failed: int = 0

    def run(self) -> None:
        """Write the runs; after an interruption the writers are ended at once."""
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="otel-rl-replay") as pool:
            going = {pool.submit(self._write, job): job for job in self.jobs}
            try:
                while going:
                    over, _ = wait(going, timeout=_NEWS_S, return_when=FIRST_COMPLETED)
                    for future in over:
                        self._note(going.pop(future), future)
                    if not over:
                        self._report(going.values())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for job in going.values():
                    if job.replay is not None:
                        job.replay.kill()

    def _write(self, job: _ReplayJob) -> RunStatus | None:
        directory, of = job.found.directory, job.found.run
        mark = f"{of.rows} {of.description.status.value}"
        delivery = self._delivery(job)
        if self.replayed.has(directory, delivery, job.key, mark):
            job.is_known = True
            return None
        with contextlib.ExitStack() as stack:
            journal = (
                ReadOnlyJournal(directory)
                if directory is not None
                else stack.enter_context(contextlib.closing(self.settings.journal_place.open()))
            )
            source = StoredRun(RunStore(journal), job.found.key)
            job.replay = Replay(source, job.key, delivery, self.settings.stop_timeout_s)
            status = job.replay.run()
        if status is None or _is_complete(status, source.end):
            self.replayed.note(directory, delivery, job.key, mark)
        return status

    def _delivery(self, job: _ReplayJob) -> DeliverySettings:
        """Return the settings: files are where users of the tracker expect them.

        Raises:
            NoTeam: The run is of none.
        """
        settings = self.settings
        if job.found.directory is not None:  # whose locks keep a bridge and a replay apart
            settings = settings.model_copy(update={"data": job.found.directory})
        tracker = settings.tracker_of(job.found.key)
        settings = settings.model_copy(update={"tracker": tracker, "team": ()})
        given = delivery_settings(settings, job.tracker)
        home = backend(job.tracker).home(os.environ)
        if home is not None and self.settings.tracker.directory is None:
            return replace(given, directory=home)
        return given

    def _note(self, job: _ReplayJob, future: "Future[RunStatus | None]") -> None:
        self.done += 1
        try:
            status = future.result()
        except (JournalError, NoTeam) as exc:
            self.failed += 1
            say(f"run {job}: {exc}")
            return
        if job.is_known:
            self.known += 1
        elif status is None:
            say(f"run {job}: has no rows")
        elif job.replay is not None and _is_complete(status, job.replay.source.end):
            rows = job.replay.source.end
            say(f"run {job}: {many(rows, 'row')} in {job.tracker}: {status.location}")
        else:
            self.failed += 1
            say(f"run {job}: {many(status.safe_row, 'row')} in {job.tracker}. {status.last_error}")

    def _report(self, going: Collection[_ReplayJob]) -> None:
        parts = []
        for job in going:
            status = None if job.replay is None else job.replay.status()
            if status is not None and job.replay is not None:
                why = f" ({status.last_error})" if status.last_error else ""
                parts.append(
                    f"{job}: {status.next_row} of {many(job.replay.source.end, 'row')}{why}"
                )
        say(f"{self.done} of {many(len(self.jobs), 'run')}; {'; '.join(parts)}")


def _is_complete(status: RunStatus, rows: int) -> bool:
    return status.state is RunState.FINISHED and status.next_row >= rows
