"""Options of trackers, and checks whether one works here: at a start and for ``otel-rl doctor``."""

import dataclasses
import os
import shutil
import socket
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.tracker_interface import CheckResult
from otel_rl.errors import ConfigError
from otel_rl.redaction import is_secret_name, redacted

__all__ = ["check_server", "check_settings", "check_writable", "nearly_full", "parse_options"]

_OptionsT = TypeVar("_OptionsT")

_CONNECT_TIMEOUT_S = 3.0
_LEAST_FREE_BYTES = 64 << 20  # of the disk of a data directory


def parse_options(
    kind: str, options: type[_OptionsT], attributes: Mapping[str, str], *, secret_hint: str = ""
) -> _OptionsT:
    """Return the options of a run: a frozen dataclass, read from the texts of the settings.

    Args:
        kind: Name of the tracker, for errors.
        options: A dataclass; its fields are texts, numbers of seconds (``int`` drops
            fractions) or switches.
        attributes: Of the run.
        secret_hint: Where a secret belongs that was given as an option.

    Raises:
        ConfigError: An unknown name or a value of the wrong type.
    """
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(options)  # type: ignore[arg-type]  # a dataclass
    known = [field.name for field in fields]
    types = typing.get_type_hints(options)
    for name in attributes:
        if name not in known:
            hint = f"Known settings: {', '.join(known)}." if known else "There are none."
            if is_secret_name(name) and secret_hint:
                hint = secret_hint
            # Without the value: it may be a secret.
            raise ConfigError(f"{kind}.{name}: unknown setting.", hint=hint)
    return options(
        **{name: _parsed(f"{kind}.{name}", types[name], text) for name, text in attributes.items()}
    )


def _parsed(name: str, wanted: object, text: str) -> object:
    if wanted is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f'{name}: must be true or false (got "{text}").')
        return text.lower() == "true"
    if wanted in (float, int):
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ConfigError(f'{name}: must be a number of seconds (got "{text}").')
        return number if wanted is float else int(number)
    return text


def check_settings(
    name: str, validate: Callable[[Mapping[str, str]], None], attributes: Mapping[str, str]
) -> CheckResult | None:
    """Return the fault of the settings; None if there is none.

    Args:
        name: Of the check.
        validate: Raises ConfigError if something is.
        attributes: Of a run.
    """
    try:
        validate(attributes)
    except ConfigError as exc:
        return CheckResult(name, exc.args[0], ok=False, hint=exc.hint)
    return None


def check_writable(name: str, directory: Path) -> CheckResult:
    """Check that files can be made in the directory, or the directory itself, and find room.

    Makes nothing.
    """
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return CheckResult(
            name, f"{nearest} cannot be written to.", ok=False, hint="Choose another directory."
        )
    if words := nearly_full(nearest):
        hint = "Free some, or choose another directory."
        return CheckResult(name, words, ok=False, hint=hint)
    return CheckResult(name, f"{directory} can be written to.")


def nearly_full(directory: Path) -> str:
    """Return how little room a directory has, as a sentence; empty if it has enough."""
    free = shutil.disk_usage(directory).free
    if free >= _LEAST_FREE_BYTES:
        return ""
    if not free:
        return f"The disk of {directory} is full."
    size = f"{free >> 20} MiB" if free >> 20 else f"{free >> 10} KiB"
    return f"The disk of {directory} is nearly full: {size} free."


def check_server(name: str, url: str, hint: str = "") -> CheckResult:
    """Check that the server of a URL accepts connections.

    Args:
        name: Of the check.
        url: Of the server; its secrets are not shown.
        hint: Further remedy if it is unreachable.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = redacted(url)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as exc:
        return CheckResult(
            name,
            f"{shown} cannot be reached ({exc}).",
            ok=False,
            hint=f"Rows are kept until it can be. {hint}".rstrip(),
        )
    return CheckResult(name, f"{shown} can be reached.")
