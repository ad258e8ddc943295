"""The table of trackers: name, how to make one, how to tell whether it would work."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_rl.bridge.track import RunInfo, Tracker
from otel_rl.bridge.track.checks import (
    CheckResult,
    check_jsonl,
    check_wandb,
    validate_jsonl,
    validate_wandb,
)
from otel_rl.bridge.track.jsonl import JsonLinesTracker
from otel_rl.bridge.track.wandb import WandbTracker
from otel_rl.bridge.track.wandb_account import (
    WandbSettings,
    find_account,
    without_key,
    writer_environment,
)
from otel_rl.bridge.track.wandb_shared import SharedWandbTracker
from otel_rl.errors import ConfigError

__all__ = ["BACKENDS", "Backend", "Patience", "backend"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a writer may be silent before it is taken for one that hangs.

    Each is well beyond what the tracker allows itself, so that its own error, which says more,
    comes first.

    Attributes:
        open_s: While it opens a run.
        close_s: While it finishes a run.
    """

    open_s: float = 180.0
    close_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of tracker.

    Attributes:
        name: As the settings call it.
        create: Makes the tracker of a run. Called in the writer process; may load heavy libraries.
        validate: Raises ConfigError if a run with these attributes cannot work here.
        check: The same for a person, further checks included. Takes at most a few seconds.
        environment: The environment of a writer process, made from that of the bridge and the
            run's attributes.
        patience: With a run of these attributes.
    """

    name: str
    create: Callable[[RunInfo], Tracker]
    validate: Callable[[Mapping[str, str]], None]
    check: Callable[[Mapping[str, str], Path], Sequence[CheckResult]]
    environment: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]]
    patience: Callable[[Mapping[str, str]], Patience]


def backend(name: str) -> Backend:
    """Look up a backend.

    Raises:
        ConfigError: There is none of this name.
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
        return environment  # the writer will say so
    return environment if is_online else without_key(environment)


def _patience_with_wandb(attributes: Mapping[str, str]) -> Patience:
    settings = WandbSettings.parse(attributes)
    return Patience(
        # `init` tries a last time after its timeout.
        open_s=2 * settings.init_timeout_s + settings.settle_s + 90,
        close_s=settings.finish_timeout_s + settings.stall_timeout_s + 60,
    )


BACKENDS: Mapping[str, Backend] = {
    "wandb": Backend(
        "wandb",
        _wandb_tracker,
        validate_wandb,
        check_wandb,
        _environment_of_wandb,
        _patience_with_wandb,
    ),
    "jsonl": Backend(
        "jsonl",
        lambda _: JsonLinesTracker(),
        validate_jsonl,
        check_jsonl,
        lambda environ, _: without_key(environ),
        lambda _: Patience(),
    ),
}
"""By name."""
