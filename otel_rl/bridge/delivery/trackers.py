"""Table of trackers: name, factory and checks of each."""

import os
from collections.abc import Mapping
from pathlib import Path

from otel_rl.bridge.delivery.jsonl import JsonLinesTracker
from otel_rl.bridge.delivery.kinds.checks import (
    check_jsonl,
    check_wandb,
    validate_jsonl,
    validate_wandb,
)
from otel_rl.bridge.delivery.kinds.plugins import installed, load
from otel_rl.bridge.delivery.mlflow.kind import MLFLOW
from otel_rl.bridge.delivery.tensorboard.kind import TENSORBOARD
from otel_rl.bridge.delivery.tracker_interface import (
    RunInfo,
    Tracker,
    TrackerKind,
    WriterTimeouts,
    writer_file,
)
from otel_rl.bridge.delivery.trackio.kind import TRACKIO
from otel_rl.bridge.delivery.wandb.account import (
    OWN_RUN,
    WandbSettings,
    find_account,
    without_key,
    writer_environment,
)
from otel_rl.errors import ConfigError
from otel_rl.records import Description

__all__ = ["BACKENDS", "backend"]


def backend(name: str) -> TrackerKind:
    """Look up a backend: one of ours, else one of another package.

    Raises:
        ConfigError: The name is unknown, or its package cannot be loaded.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    kind = load(name)
    if kind is None:
        known = ", ".join((*BACKENDS, *installed()))
        raise ConfigError(
            f'tracker: unknown name (got "{name}").', hint=f"Known trackers: {known}."
        )
    return kind


def _wandb_tracker(run: RunInfo) -> Tracker:
    settings = WandbSettings.parse(dict(run.attributes))
    own_run = run.description.own_run or ""
    if settings.attach == OWN_RUN:
        # Once rows are in a run beside the program's, they go on there.
        beside = writer_file(run, "beside")
        if beside.exists():
            own_run = ""
        elif not own_run:
            beside.touch(mode=0o600)
    if find_account(settings, os.environ, run.key, own_run).attached_run:
        from otel_rl.bridge.delivery.wandb.shared_run import SharedWandbTracker

        return SharedWandbTracker()
    from otel_rl.bridge.delivery.wandb.tracker import WandbTracker

    return WandbTracker()


def _environment_of_wandb(
    environ: Mapping[str, str], attributes: Mapping[str, str]
) -> dict[str, str]:
    environment = writer_environment(environ)
    try:
        is_online = find_account(WandbSettings.parse(attributes), environment).online
    except ConfigError:
        return environment  # the writer reports the error
    return environment if is_online else without_key(environment)


def _knows_wandb_run(attributes: Mapping[str, str], description: Description) -> bool:
    settings = WandbSettings.parse(attributes)
    if settings.attach != OWN_RUN or description.own_run is not None:
        return True
    return find_account(settings, os.environ).attached_run != OWN_RUN


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
        home=lambda environ: Path(environ.get("WANDB_DIR") or "."),
        of_the_program=("project", "entity", "mode"),
        knows_run=_knows_wandb_run,
    ),
    "jsonl": TrackerKind(
        "jsonl",
        lambda _: JsonLinesTracker(),
        validate_jsonl,
        check_jsonl,
        lambda environ, _: without_key(environ),
        shares_process=True,
    ),
    "mlflow": MLFLOW,
    "trackio": TRACKIO,
    "tensorboard": TENSORBOARD,
}
"""By name."""
