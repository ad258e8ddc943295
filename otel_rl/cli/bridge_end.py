"""End of a bridge inside a command: what is left to write, and the final report."""

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from otel_rl.bridge.bridge import Bridge, Left
from otel_rl.bridge.config import ENV_PREFIX, BridgeSettings
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.manager import RunState, RunStatus
from otel_rl.bridge.delivery.selection.key_selection import KeyNames
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.bridge.journal.run_reader import read_standing
from otel_rl.bridge.rows.rounds.runs_without_metrics import NO_METRIC_HINT
from otel_rl.cli.embedded_bridge import wandb_account
from otel_rl.cli.liveness_text import failures, listed, troubles
from otel_rl.cli.signal_handlers import handled
from otel_rl.cli.standard_streams import say
from otel_rl.errors import JournalError
from otel_rl.plurals import many as _many
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Tier

__all__ = ["finish", "has_lost", "left_in_words", "recovery_command"]

# Losses that the user must know about, by counter and reason.
_LOSSES = (
    Counter.POINTS_REFUSED,
    Counter.EXEMPLARS_REFUSED,
    Counter.LOGS_REFUSED,
    Counter.SAMPLES_DROPPED,
    Counter.EXCEPTIONS,
)

_PROGRAM = "otel-rl"

# While the rest is written.
_FIRST_NEWS_S = 3.0
_NEWS_S = 10.0


def finish(bridge: Bridge, *, exit_code: int, is_over: bool, by: str | None = None) -> bool:
    """Stop the bridge and report the runs. Returns whether all rows are written.

    Args:
        bridge: To be stopped.
        exit_code: See ``Bridge.stop``.
        is_over: See ``Bridge.stop``.
        by: See ``Bridge.stop``.
    """
    with _impatience(bridge.settings):
        left = "what was reported"
        with suppress(JournalError):  # reported at the end
            left = left_in_words(bridge.left(), bridge.settings.stop_timeout_s)
        say(f"writing the rest: {left} (Ctrl-C leaves it in the journal)")
        with _news(bridge):
            statuses = bridge.stop(exit_code=exit_code, is_over=is_over, by=by)
        if bridge.has_page and statuses:
            say(f"show the run again with: {_command('view', str(bridge.settings.data))}")
        return _report(bridge, statuses)


def _report(bridge: Bridge, statuses: Iterable[RunStatus]) -> bool:
    """Report the location of each run and its losses. Returns whether all rows are written."""
    is_shared = bridge.settings.journal.url is not None
    complete = not _has_left_over(bridge)
    faults = _faults(bridge)
    for status in statuses:
        where = status.location or "(not opened)"
        say(f"run {status.key}: {_many(status.next_row, 'row')} in {status.tracker}: {where}")
        is_file = bool(status.location) and "://" not in status.location
        if status.tracker == "wandb" and is_file and status.state is RunState.FINISHED:
            say(f"  upload it with: wandb sync {status.location}")
        if status.state is not RunState.FINISHED and not is_shared:
            complete = False
            error = f" Last error: {status.last_error}" if status.last_error else ""
            say(f"  {_many(status.pending, 'row')} still in the journal.{error}")
        for words in faults.get(status.key, ()):
            say(f"  {words}")
    if is_shared:
        say(_who_goes_on(bridge.other_bridges))
    if not complete:
        say(f"write the rest with: {recovery_command(bridge.settings)}")
    for (name, reason), count in bridge.counters.snapshot().items():
        if count and any(name == counter for counter in _LOSSES):
            say(f"  {count} counted as {name}{{{reason}}}; see `otel-rl help operations`")
    late = bridge.counters.value(Counter.SAMPLES_LATE)
    if late:
        say(f"  {_many(late, 'sample')} arrived late and are in extra rows")
    for key in bridge.without_metrics:
        say(f"{key} ended with no metric. {NO_METRIC_HINT}")
    return complete


def _who_goes_on(others: int | None) -> str:
    if others:
        return f"{_many(others, 'other bridge')} on this database may write the remaining rows"
    if others is None:
        return "the database does not answer: a bridge on it writes the remaining rows later"
    return "no other bridge uses this database: remaining rows wait there until one is started"


def _has_left_over(bridge: Bridge) -> bool:
    """Report batches that could not be made into rows. Returns whether there are any."""
    if bridge.problem:
        say(bridge.problem)
    if bridge.waiting:
        say(
            f"{bridge.waiting} acknowledged requests wait in the journal: it has no room for rows, "
            "or stop_timeout_s was over"
        )
    return bool(bridge.problem or bridge.waiting)


def has_lost(bridge: Bridge) -> bool:
    """Report what could not be stored, once all senders have ended. Returns whether there is any.

    Args:
        bridge: Has stopped.
    """
    n = bridge.unstored.count
    if n:
        say(
            f"at least {_many(n, 'request')} could not be stored and did not come again, so "
            f"measurements are missing. {bridge.unstored.reason}"
        )
    return n > 0


def _faults(bridge: Bridge) -> Mapping[ExperimentKey, Sequence[str]]:
    """Return what was wrong with each run, in words, after the bridge has stopped."""
    data = bridge.settings.data
    with suppress(JournalError), looking(data) as connection:
        return {
            run.key: [
                *failures(run.description),
                *troubles(run.roles, listed(run.description)),
                *_diagnosis(connection, run.key, data),
            ]
            for run in read_runs(connection)
        }
    return {}  # errors of the journal are reported elsewhere


def _diagnosis(connection: Connection, key: ExperimentKey, data: Path) -> Iterator[str]:
    """Yield the first cause that the bridge has found in a run, and how to see its evidence."""
    cause = read_standing(connection, run_id(key.experiment, key.trial)).cause
    if cause and not cause.startswith("crash "):  # which the failures tell
        command = _command("diagnose", str(key), "--data", str(data))
        yield f"diagnosis: {cause}; evidence: {command}"


def recovery_command(settings: BridgeSettings) -> str:
    """Return the shell command that writes the remaining rows to the same place."""
    words = ["bridge", "--data", str(settings.data)]
    for name in settings.tracker.trackers:
        words += ["--tracker", name]
    account = wandb_account(settings)
    if account is not None and account.attached_run:
        words += ["--attach", account.attached_path]
    elif project := next(_projects(settings), ""):
        words += ["--project", project]
    if settings.align.per_worker:
        words.append("--per-worker")
    if settings.tracker.detail is not Tier.BASIC:
        words += ["--detail", settings.tracker.detail]
    if settings.tracker.names is not KeyNames.FRAMEWORK:
        words += ["--names", settings.tracker.names]
    command = _command(*words)
    if settings.tracker.directory is not None:
        directory = shlex.quote(str(settings.tracker.directory))
        command = f"{ENV_PREFIX}TRACKER__DIRECTORY={directory} {command}"
    return command


def _command(*words: str) -> str:
    """Return a command of this program, as the user's shell finds it."""
    own = Path(sys.argv[0])
    is_elsewhere = own.name == _PROGRAM and shutil.which(_PROGRAM) is None  # as for `make demo`
    return shlex.join([str(own) if is_elsewhere else _PROGRAM, *words])


def _projects(settings: BridgeSettings) -> Iterator[str]:
    for name in settings.tracker.trackers:
        yield from filter(None, [settings.tracker.options_of(name).get("project")])


@contextmanager
def _news(bridge: Bridge) -> Iterator[None]:
    """Print the remaining work and time from time to time."""
    until_s = time.monotonic() + bridge.settings.stop_timeout_s
    is_done = threading.Event()

    def tell() -> None:
        pause_s = _FIRST_NEWS_S
        while not is_done.wait(pause_s):
            pause_s = _NEWS_S
            with suppress(JournalError):  # reported at the end
                say(f"  {left_in_words(bridge.left(), until_s - time.monotonic())}")

    teller = threading.Thread(target=tell, name="otel-rl-news", daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_done.set()
        teller.join()


def left_in_words(left: Left, seconds: float) -> str:
    """Return the remaining work and time, in words."""
    parts = [_many(left.requests, "request")] if left.requests else []
    if left.rows:
        parts.append(_many(left.rows, "row"))
    minutes, rest = divmod(max(0, round(seconds)), 60)
    time_left = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    what = f"{' and '.join(parts)} left" if parts else "closing the runs"
    return f"{what}, for at most {time_left}{f': {left.error}' * bool(left.error)}"


@contextmanager
def _impatience(settings: BridgeSettings) -> Iterator[None]:
    """Exit at once on Ctrl-C or SIGTERM while rows are being written: the journal keeps them."""

    def leave(number: int, _frame: FrameType | None) -> None:
        try:
            say("stopped; unwritten rows stay in the journal")
            say(f"write the rest with: {recovery_command(settings)}")
        finally:  # printing raises if the signal interrupted a print
            os._exit(128 + number)  # as a shell reports a death by signal

    with handled((signal.SIGINT, signal.SIGTERM), leave):
        yield
