"""W&B account of a command's bridge, and CMD's own W&B run, which ``--attach`` joins."""

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Final

from otel_rl.bridge.config import BridgeSettings, TrackerSettings
from otel_rl.bridge.delivery.wandb.account import (
    OWN_RUN,
    Account,
    WandbSettings,
    find_account,
)
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError
from otel_rl.records import Description, ExperimentKey

_VARIABLE: Final = "OTEL_RL_ATTACH"


def wandb_account(tracker: TrackerSettings, key: ExperimentKey | None = None) -> Account | None:
    """Return the account of a run, or of any; None if they are not in W&B."""
    if "wandb" not in tracker.trackers:
        return None
    return find_account(WandbSettings.parse(tracker.options_of("wandb")), os.environ, key)


def check_attach(arguments: argparse.Namespace, settings: BridgeSettings) -> None:
    """Raise ConfigError if what ``--attach`` needs is missing."""
    if not arguments.attach:
        return
    trackers = settings.tracker.trackers
    if "wandb" not in trackers:
        raise ConfigError(
            f"--attach: joins a W&B run, and the tracker is {', '.join(trackers)}.",
            hint="Remove one of the two, or add --tracker wandb.",
        )
    if not arguments.adapters or os.environ.get("OTEL_RL_ADAPTERS", "auto") != "auto":
        raise ConfigError(
            "--attach: CMD's W&B run is found by an adapter, and the adapters are switched off.",
            hint="Remove --no-adapters or OTEL_RL_ADAPTERS.",
        )


def attach_environment(settings: BridgeSettings) -> Mapping[str, str]:
    """Return the variables by which CMD shares its W&B run, and say what becomes of that."""
    account = wandb_account(settings.tracker)
    if account is None:
        return {_VARIABLE: "off"}
    if account.attached_run == OWN_RUN:
        say("rows wait for the W&B run that CMD makes by wandb.init")
        return {_VARIABLE: "share"}
    if settings.tracker.options_of("wandb").get("attach") == OWN_RUN:
        say(
            "--attach: W&B is offline here (no API key, or WANDB_MODE), and only a run that is "
            "online can be joined. CMD's W&B run stays as it is; otel_rl writes one beside it."
        )
        return {_VARIABLE: "off"}
    return {_VARIABLE: "hint" if account.online and not account.attached_run else "off"}


def not_joined(settings: BridgeSettings, description: Description) -> Iterator[str]:
    account = wandb_account(settings.tracker)
    if account is not None and account.attached_run == OWN_RUN and not description.own_run:
        yield (
            "CMD has made no W&B run that could be joined, so these rows are in a run of "
            "otel_rl's own. See `otel-rl help wandb`"
        )
