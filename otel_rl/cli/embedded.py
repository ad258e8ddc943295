"""A bridge inside the command that needs it, and what it says at the end."""

import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from otel_rl.bridge.config import ENV_PREFIX, BridgeSettings
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.drain import NO_METRIC_HINT
from otel_rl.bridge.overview import overview
from otel_rl.bridge.pipeline import Bridge
from otel_rl.bridge.track.delivery import RunState, RunStatus
from otel_rl.bridge.track.wandb_account import Account, WandbSettings, find_account
from otel_rl.cli.standing import troubles
from otel_rl.errors import ConfigError, JournalError
from otel_rl.records import ExperimentKey, RoleStanding
from otel_rl.semconv.run_id import run_id
from otel_rl.shown import shown

__all__ = [
    "embedded",
    "embedded_defaults",
    "finish",
    "recovery_command",
    "report",
    "say",
    "started",
    "wandb_account",
]

# What a person has to know about, with the reason that stands beside the count.
_LOSSES = (
    Counter.POINTS_REFUSED,
    Counter.EXEMPLARS_REFUSED,
    Counter.LOGS_REFUSED,
    Counter.SAMPLES_DROPPED,
    Counter.EXCEPTIONS,
)


def say(text: str) -> None:
    """One line to the person at the terminal; standard output belongs to the command."""
    print(shown(f"otel-rl: {text}"), file=sys.stderr, flush=True)


def embedded_defaults(key: ExperimentKey) -> dict[str, object]:
    """Settings of an embedded bridge where the user gave none.

    Free loopback ports, so that many fit on one machine, and a journal of its own for each run, so
    that they do not wait for each other.
    """
    return {
        "http": {"host": "127.0.0.1", "port": 0},
        "grpc": {"host": "127.0.0.1", "port": 0},
        "data": Path(".otel_rl") / run_id(key.experiment, key.trial),
    }


def started(settings: BridgeSettings) -> Bridge:
    """A bridge that runs.

    Raises:
        ConfigError: A setting is wrong.
        JournalLocked: The same run is being written by another process.
    """
    bridge = Bridge(settings)
    bridge.start()
    return bridge


def embedded(settings: BridgeSettings) -> Bridge:
    """A bridge that runs inside a command and keeps offline runs where W&B's users look for them.

    Raises:
        ConfigError: A setting is wrong, or the bridge would not listen on HTTP.
        JournalLocked: The same run is being written by another process.
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
    if settings.tracker.name == "wandb" and settings.tracker.directory is None:
        directory = Path(os.environ.get("WANDB_DIR") or ".")
        tracker = settings.tracker.model_copy(update={"directory": directory})
        settings = settings.model_copy(update={"tracker": tracker})
    return started(settings)


def wandb_account(settings: BridgeSettings, key: ExperimentKey | None = None) -> Account | None:
    """Where the bridge writes in W&B, for one run or any; None if it writes elsewhere."""
    if settings.tracker.name != "wandb":
        return None
    return find_account(WandbSettings.parse(settings.tracker.options), os.environ, key)


def report(bridge: Bridge, statuses: Iterable[RunStatus]) -> bool:
    """Say where the runs are and what is missing in them. Returns whether all rows are written."""
    is_shared = bridge.settings.journal.url is not None
    complete = not _has_left_over(bridge)
    roles = _roles(bridge)
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
        for words in troubles(roles.get(status.key, {})):
            say(f"  {words}")
    if is_shared:
        say("other bridges go on with what is left")
    if not complete:
        say(f"write the rest with: {recovery_command(bridge.settings)}")
    for (name, reason), count in bridge.counters.snapshot().items():
        if count and any(name == counter for counter in _LOSSES):
            say(f"  {count} counted as {name}{{{reason}}}; see docs/operations.md")
    late = bridge.counters.value(Counter.SAMPLES_LATE)
    if late:
        say(f"  {_many(late, 'sample')} late, in rows of their own")
    for key in bridge.without_metrics:
        say(f"{key} ended with no metric. {NO_METRIC_HINT}")
    return complete


def _has_left_over(bridge: Bridge) -> bool:
    """Say what could not be made into rows. Returns whether anything could not."""
    if bridge.problem:
        say(bridge.problem)
    if bridge.waiting:
        say(f"{bridge.waiting} acknowledged requests wait in the journal: it has no room for rows")
    return bool(bridge.problem or bridge.waiting)


def _roles(bridge: Bridge) -> Mapping[ExperimentKey, Mapping[str, RoleStanding]]:
    """How the workers of each run of a bridge that has stopped stood at the end."""
    try:
        return {run.key: run.roles for run in overview(bridge.settings.data)}
    except JournalError:
        return {}  # what is wrong with the journal is said elsewhere


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def recovery_command(settings: BridgeSettings) -> str:
    """The shell command that writes what is left, to where the run was to be."""
    words = ["otel-rl", "bridge", "--data", str(settings.data), "--tracker", settings.tracker.name]
    account = wandb_account(settings)
    if account is not None and account.attached_run:
        words += ["--attach", account.attached_path]
    elif "project" in settings.tracker.options:
        words += ["--project", settings.tracker.options["project"]]
    if settings.align.per_worker:
        words.append("--per-worker")
    command = shlex.join(words)
    if settings.tracker.directory is not None:
        directory = shlex.quote(str(settings.tracker.directory))
        command = f"{ENV_PREFIX}TRACKER__DIRECTORY={directory} {command}"
    return command


def finish(bridge: Bridge, *, exit_code: int, is_over: bool) -> bool:
    """Stop the bridge and say what became of the runs. Returns whether all rows are written.

    Args:
        bridge: To be stopped.
        exit_code: See ``Bridge.stop``.
        is_over: See ``Bridge.stop``.
    """
    with _impatience(bridge.settings):
        say("writing what was reported (Ctrl-C leaves it in the journal)")
        return report(bridge, bridge.stop(exit_code=exit_code, is_over=is_over))


@contextmanager
def _impatience(settings: BridgeSettings) -> Iterator[None]:
    """While rows are being written, Ctrl-C or SIGTERM leaves at once: the journal keeps them."""

    def leave(number: int, _frame: FrameType | None) -> None:
        try:
            say("left; the rows that were not written yet are in the journal")
            say(f"write the rest with: {recovery_command(settings)}")
        finally:  # printing raises if the signal came while something was being printed
            os._exit(128 + number)  # as a shell reports a death by signal

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
