"""Bridge inside a command, and its final report."""

import importlib.util
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
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.delivery.wandb.account import Account, WandbSettings, find_account
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.bridge.journal.run_reader import read_standing
from otel_rl.bridge.page import Page
from otel_rl.bridge.rows.rounds.runs_without_metrics import NO_METRIC_HINT
from otel_rl.cli.liveness_text import failures, listed, troubles
from otel_rl.cli.standard_streams import print_error
from otel_rl.errors import ConfigError, JournalError
from otel_rl.records import ExperimentKey
from otel_rl.redaction import shown
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Tier

__all__ = [
    "embedded",
    "embedded_defaults",
    "finish",
    "has_lost",
    "left_in_words",
    "page_link",
    "recovery_command",
    "report",
    "say",
    "started",
    "wandb_account",
]

# Losses that the user must know about, by counter and reason.
_LOSSES = (
    Counter.POINTS_REFUSED,
    Counter.EXEMPLARS_REFUSED,
    Counter.LOGS_REFUSED,
    Counter.SAMPLES_DROPPED,
    Counter.EXCEPTIONS,
)


_PROGRAM = "otel-rl"

_CLEAR_LINE = "\r\x1b[K"

# While the rest is written.
_FIRST_NEWS_S = 3.0
_NEWS_S = 10.0


def say(text: str, *, token: str = "") -> None:
    """Print one line for the user on standard error; standard output belongs to the command.

    Args:
        text: Shown without secrets.
        token: Shown behind it: a secret of this command that its user needs.
    """
    # On a terminal it takes the place of a live line.
    begin = _CLEAR_LINE if sys.stderr.isatty() else ""
    print_error(begin + shown(f"otel-rl: {text}") + token)


def embedded_defaults(key: ExperimentKey) -> dict[str, object]:
    """Return the defaults of an embedded bridge.

    Free loopback ports, so that many fit on one machine, and a journal for each run, so that runs
    do not wait for each other.
    """
    return {
        "http": {"host": "127.0.0.1", "port": 0},
        "grpc": {"host": "127.0.0.1", "port": 0},
        "data": Path(".otel_rl") / run_id(key.experiment, key.trial),
    }


def started(settings: BridgeSettings, key: ExperimentKey | None = None) -> Bridge:
    """Start a bridge.

    Args:
        settings: Its settings.
        key: The expected run, whose page the command names; None for a bridge of any runs.

    Raises:
        ConfigError: A setting is wrong.
        JournalLocked: Another process writes the same run.
    """
    named = {key}

    def opened(run: ExperimentKey, location: str) -> None:
        say(f"run {run}: {location}")
        if key is not None and run not in named and (link := page_link(bridge, run)):
            named.add(run)
            say(f"page of run {run}: {link}")

    bridge = Bridge(settings, opened=opened, page=_page(settings))
    bridge.start()
    for name in settings.tracker.trackers:
        if lacks := backend(name).lacks:
            say(f"{name} does not store: {lacks}")
    return bridge


def _page(settings: BridgeSettings) -> Page | None:
    """Return the page with the runs, where its extra is installed."""
    if not settings.view.enabled or importlib.util.find_spec("plotly") is None:
        return None
    from otel_rl.view.page_process import BridgePage  # of no use to a bridge without it

    return BridgePage(settings)


def page_link(bridge: Bridge, key: ExperimentKey) -> str:
    """Return the link to the page of a run; empty if the bridge serves none."""
    if not bridge.has_page:
        return ""
    return f"http://{bridge.http}/#/run/{run_id(key.experiment, key.trial)}/overview"


def embedded(settings: BridgeSettings, key: ExperimentKey) -> Bridge:
    """Start a bridge inside a command; the tracker's files are where its users expect them.

    Args:
        settings: Its settings.
        key: See ``started``.

    Raises:
        ConfigError: A setting is wrong, or the bridge would not listen on HTTP.
        JournalLocked: Another process writes the same run.
    """
    if not settings.http.enabled:
        raise ConfigError(
            "http.enabled: an embedded bridge listens on HTTP (got false).",
            hint="Remove the setting.",
        )
    if settings.journal.url is not None:
        raise ConfigError(
            "journal.url: an embedded bridge has a journal of its own, which ends with it.",
            hint="Remove the setting, or start `otel-rl bridge` and set "
            "OTEL_EXPORTER_OTLP_ENDPOINT.",
        )
    if settings.tls.cert is not None:
        raise ConfigError(
            f"tls.cert: an embedded bridge is on loopback, without TLS (got {settings.tls.cert}).",
            hint="Remove the setting, or start `otel-rl bridge`.",
        )
    homes = (backend(name).home(os.environ) for name in settings.tracker.trackers)
    home = next((home for home in homes if home is not None), None)
    if home is not None and settings.tracker.directory is None:
        tracker = settings.tracker.model_copy(update={"directory": home})
        settings = settings.model_copy(update={"tracker": tracker})
    return started(settings, key)


def wandb_account(settings: BridgeSettings, key: ExperimentKey | None = None) -> Account | None:
    """Return the bridge's W&B account, for one run or any; None without this tracker."""
    if "wandb" not in settings.tracker.trackers:
        return None
    options = settings.tracker.options_of("wandb")
    return find_account(WandbSettings.parse(options), os.environ, key)


def report(bridge: Bridge, statuses: Iterable[RunStatus]) -> bool:
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
        say("other bridges write the remaining rows")
    if not complete:
        say(f"write the rest with: {recovery_command(bridge.settings)}")
    for (name, reason), count in bridge.counters.snapshot().items():
        if count and any(name == counter for counter in _LOSSES):
            say(f"  {count} counted as {name}{{{reason}}}; see docs/operations.md")
    late = bridge.counters.value(Counter.SAMPLES_LATE)
    if late:
        say(f"  {_many(late, 'sample')} arrived late and are in extra rows")
    for key in bridge.without_metrics:
        say(f"{key} ended with no metric. {NO_METRIC_HINT}")
    return complete


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


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
        return report(bridge, statuses)


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

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
