"""Table of trackers: name, factory and checks of each."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_rl.bridge.delivery.jsonl import JsonLinesTracker
from otel_rl.bridge.delivery.tracker_checks import (
    CheckResult,
    check_jsonl,
    check_wandb,
    validate_jsonl,
    validate_wandb,
)
from otel_rl.bridge.delivery.tracker_interface import RunInfo, Tracker
from otel_rl.bridge.delivery.wandb.account import (
    WandbSettings,
    find_account,
    without_key,
    writer_environment,
)
from otel_rl.bridge.delivery.wandb.shared_run import SharedWandbTracker
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.errors import ConfigError

__all__ = ["BACKENDS", "TrackerKind", "WriterTimeouts", "backend"]


@dataclass(frozen=True, slots=True)
class WriterTimeouts:
    """Timeouts after which a silent writer counts as hanging.

    Each is well beyond the tracker's own timeouts, so that the tracker's more precise error comes
    first.

    Attributes:
        open_s: For opening a run.
        close_s: For finishing a run.
    """

    open_s: float = 180.0
    close_s: float = 600.0


@dataclass(frozen=True, slots=True)
class TrackerKind:
    """Kind of tracker.

    Attributes:
        name: Its name in the settings.
        create: Makes the tracker of a run. Called in the writer process; may load heavy libraries.
        validate: Raises ConfigError if a run with these attributes cannot work here.
        check: Runs further checks for a user. Takes at most a few seconds.
        environment: Makes the environment of a writer process from that of the bridge and the run's
            attributes.
        patience: Timeouts of a run with these attributes.
    """

    name: str
    create: Callable[[RunInfo], Tracker]
    validate: Callable[[Mapping[str, str]], None]
    check: Callable[[Mapping[str, str], Path], Sequence[CheckResult]]
    environment: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]]
    patience: Callable[[Mapping[str, str]], WriterTimeouts]


def backend(name: str) -> TrackerKind:
    """Look up a backend.

    Raises:
        ConfigError: The name is unknown.
    """
    try:
        return BACKENDS[name]
    except KeyError:
        raise ConfigError(
            f'tracker: unknown name (got "{name}").', hint=f"Known trackers: {', '.join(BACKENDS)}."
        ) from None


def _wandb_tracker(run: RunInfo) -> Tracker:
    account = find_account(WandbSettings.parse(dict(run.attributes)), os.environ, run.key)
    return SharedWandbTracker() if account.attached_run else WandbTracker()


def _environment_of_wandb(
    environ: Mapping[str, str], attributes: Mapping[str, str]
) -> dict[str, str]:
    environment = writer_environment(environ)
    try:
        is_online = find_account(WandbSettings.parse(attributes), environment).online
    except ConfigError:
        return environment  # the writer reports the error
    return environment if is_online else without_key(environment)


def _patience_with_wandb(attributes: Mapping[str, str]) -> WriterTimeouts:
    settings = WandbSettings.parse(attributes)
    return WriterTimeouts(
        # `init` tries a last time after its timeout.
        open_s=2 * settings.init_timeout_s + settings.settle_s + 90,
        close_s=settings.finish_timeout_s + settings.stall_timeout_s + 60,
    )


BACKENDS: Mapping[str, TrackerKind] = {
    "wandb": TrackerKind(
        "wandb",
        _wandb_tracker,
        validate_wandb,
        check_wandb,
        _environment_of_wandb,
        _patience_with_wandb,
    ),
    "jsonl": TrackerKind(
        "jsonl",
        lambda _: JsonLinesTracker(),
        validate_jsonl,
        check_jsonl,
        lambda environ, _: without_key(environ),
        lambda _: WriterTimeouts(),
    ),
}
"""By name."""
