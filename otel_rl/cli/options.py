"""Options that several commands share, and what they become in the bridge's settings."""

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.records import ExperimentKey
from otel_rl.worker.naming import checked_name

__all__ = ["add_bridge_options", "experiment_key", "host_and_port", "settings_of"]


def add_bridge_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where rows go and how they are made."""
    group = parser.add_argument_group("bridge")
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with settings; see docs/bridge.md"
    )
    group.add_argument(
        "--tracker", metavar="NAME", help="where runs are written: wandb (default) or jsonl"
    )
    group.add_argument(
        "--project", metavar="NAME", help="W&B project (default: $WANDB_PROJECT, else otel_rl)"
    )
    group.add_argument(
        "--attach",
        metavar="RUN",
        help="join this W&B run, [[ENTITY/]PROJECT/]RUN_ID, which a process of yours begins with "
        "wandb.init, instead of making one",
    )
    group.add_argument("--data", type=Path, metavar="DIR", help="directory of the journal")
    group.add_argument(
        "--per-worker",
        action="store_true",
        default=None,
        help="write every worker's own series too, with every single measurement",
    )


def settings_of(
    arguments: argparse.Namespace,
    *,
    overrides: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> BridgeSettings:
    """The settings that the command line, the environment and the file add up to.

    Args:
        arguments: Parsed, with the options of ``add_bridge_options``.
        overrides: Further settings of the command line, nested like the file.
        defaults: Of the command, where they are not those of a bridge.

    Raises:
        ConfigError: Names the setting at fault.
    """
    tracker: dict[str, object] = {}
    if arguments.tracker:
        tracker["name"] = arguments.tracker
    options = {"project": arguments.project, "attach": arguments.attach}
    tracker["options"] = {name: value for name, value in options.items() if value}
    given: dict[str, object] = {"tracker": tracker, **(overrides or {})}
    if arguments.data:
        given["data"] = arguments.data
    if arguments.per_worker:
        given["align"] = {"per_worker": True}
    return load_settings(arguments.config, given, defaults=defaults)


def experiment_key(arguments: argparse.Namespace, *, default_experiment: str) -> ExperimentKey:
    """The run that the command line, else the environment names.

    A trial that nobody names is the time, so that each command makes a run of its own. Going on
    with one is a wish that has to be said: another machine or directory lacks its journal.

    Args:
        arguments: With ``experiment`` and ``trial``.
        default_experiment: If nobody names one.

    Raises:
        ConfigError: A name cannot be used.
    """

    def name(option: str, given: str | None, variable: str, default: str) -> str:
        # An empty option is a mistake in a script; an empty variable is one that is not set.
        if given is not None:
            return checked_name(option, given)
        return checked_name(variable, os.environ.get(variable) or default)

    return ExperimentKey(
        name("--experiment", arguments.experiment, "OTEL_RL_EXPERIMENT", default_experiment),
        name("--trial", arguments.trial, "OTEL_RL_TRIAL", time.strftime("%Y%m%d-%H%M%S")),
    )


def host_and_port(text: str) -> dict[str, object]:
    """``HOST:PORT``, ``[HOST]:PORT`` or ``PORT`` as settings, for argparse.

    Raises:
        ArgumentTypeError: It is none of these.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(
            f'"{text}" is no address. Write HOST:PORT, e.g. 127.0.0.1:4318; port 0 is free.'
        )
    return {"host": host.strip("[]") or "127.0.0.1", "port": int(port)}
