"""Options shared by several commands, and their mapping to the bridge's settings."""

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.bridge.delivery.wandb.account import OWN_RUN
from otel_rl.bridge.keys import KeyNames
from otel_rl.diagnose.result import Kind
from otel_rl.semconv.spec import Tier
from otel_rl.setting_types import OFF, Address, address_of

_ATTACH: Final[Mapping[str, Any]] = {
    "metavar": "RUN",
    "nargs": "?",
    "const": OWN_RUN,
    "help": "join this W&B run of your own process: [[ENTITY/]PROJECT/]RUN_ID; without RUN, the "
    "one that it reports (`otel-rl help wandb`)",
}


def add_bridge_options(
    parser: argparse.ArgumentParser, *, attach: Mapping[str, Any] = _ATTACH
) -> None:
    """Add the options for the tracker and the making of rows, and for the journal.

    Args:
        attach: How the command takes ``--attach``, for argparse; default as a service bridge.
    """
    group = parser.add_argument_group("bridge")
    group.add_argument(
        "--tracker",
        metavar="NAME",
        action="append",
        help="wandb (default), mlflow, trackio, tensorboard, jsonl or another package's; may be "
        "repeated",
    )
    group.add_argument(
        "--detail",
        choices=[*Tier],
        help="values that the tracker gets: the main ones (basic, the default), internals too "
        "(full), or everything",
    )
    group.add_argument(
        "--names",
        choices=[*KeyNames],
        help="names of metrics: the program's own (framework, the default), shared ones "
        "(otel_rl), or both",
    )
    group.add_argument(
        "--project",
        metavar="NAME",
        help="project in W&B or Trackio (default: $WANDB_PROJECT for W&B, else otel_rl)",
    )
    group.add_argument("--attach", **attach)
    group.add_argument(
        "--per-worker",
        action="store_true",
        default=None,
        help="also write each worker's own series",
    )
    add_journal_options(parser)


FOUND: Final = 3
"""Exit status of a command that has found what ``--fail-on`` names."""


def kinds(text: str) -> frozenset[str]:
    """Read kinds of causes, for argparse; ``cause`` stands for all of them.

    Raises:
        ArgumentTypeError: There is no such kind.
    """
    given = frozenset(filter(None, map(str.strip, text.split(","))))
    if not given:
        raise argparse.ArgumentTypeError("name a cause, such as nan")
    for unknown in sorted(given - {"cause", *Kind}):
        near = get_close_matches(unknown, [*Kind], 1)
        hint = f"Did you mean {near[0]}?" if near else "`otel-rl help diagnose` lists the causes."
        raise argparse.ArgumentTypeError(f"{unknown}: no cause of a diagnosis. {hint}")
    return frozenset(Kind) if "cause" in given else given


def add_listen_options(parser: argparse.ArgumentParser) -> None:
    for name, default in (
        ("http", "default: 127.0.0.1:4318; `off` listens nowhere"),
        ("grpc", "default: 127.0.0.1:4317; `off` listens nowhere"),
        (
            "health",
            "answer GET /healthz and /metrics there, without TLS and tokens (default: off)",
        ),
    ):
        parser.add_argument(f"--{name}", metavar="HOST:PORT", type=_address_or_off, help=default)


def listen_settings(arguments: argparse.Namespace) -> Mapping[str, object]:
    given = {name: getattr(arguments, name) for name in ("http", "grpc", "health")}
    listen = {name: value for name, value in given.items() if value is not None}
    return {"listen": listen} if listen else {}


def add_journal_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("journal")
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with settings; see `otel-rl help bridge`",
    )
    group.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data directory with the journals (default: .otel_rl)",
    )


def settings_of(
    arguments: argparse.Namespace,
    *,
    overrides: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> BridgeSettings:
    """Return the settings from the command line, the environment and the file.

    Args:
        arguments: Parsed, with the options of ``add_bridge_options`` or ``add_journal_options``.
        overrides: Further settings of the command line, nested like the file.
        defaults: Defaults of the command, where they differ from a bridge's.

    Raises:
        ConfigError: Names the setting at fault.
    """
    given: dict[str, object] = {**(overrides or {})}
    if "tracker" in arguments:
        given["tracker"] = _tracker(arguments)
        if arguments.per_worker:
            given["rows"] = {"per_worker": True}
    if arguments.data:
        given["data"] = arguments.data
    if "log" in arguments:  # of others, read into a journal in a directory
        given["journal"] = {"url": None}
    return load_settings(arguments.config, given, defaults=defaults)


def _tracker(arguments: argparse.Namespace) -> Mapping[str, object]:
    names = [name for given in arguments.tracker or () for name in given.split(",")]
    chosen = {
        "name": ",".join(names),
        "detail": arguments.detail,
        "names": arguments.names,
    }
    options = {
        name: value
        for option, value, takers in (
            ("project", arguments.project, ("wandb", "trackio")),
            ("attach", arguments.attach, ("wandb",)),
        )
        if value
        for name in _qualified(option, takers, names)
    }
    return {**{name: value for name, value in chosen.items() if value}, "options": options}


def _qualified(option: str, takers: Sequence[str], trackers: Sequence[str]) -> Sequence[str]:
    """Return the names of an option: with several trackers, one for each that has it."""
    if len(trackers) < 2:
        return [option]
    return [f"{tracker}.{option}" for tracker in trackers if tracker in takers]


def host_and_port(text: str) -> Address:
    """Return an address, for argparse.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        return address_of(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{exc} (got {text!r})") from exc


def _address_or_off(text: str) -> Address | str:
    return text if text == OFF else host_and_port(text)
