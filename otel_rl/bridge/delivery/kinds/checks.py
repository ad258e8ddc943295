"""Checks whether a tracker works here, for the start of a bridge and for ``otel-rl doctor``."""

import importlib.util
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.tracker_interface import CheckResult
from otel_rl.bridge.delivery.wandb.account import (
    OWN_RUN,
    Account,
    WandbSettings,
    find_account,
)
from otel_rl.errors import ConfigError, MissingExtra, TrackerError
from otel_rl.extras import how_to_install
from otel_rl.redaction import redacted

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

__all__ = [
    "check_jsonl",
    "check_server",
    "check_settings",
    "check_wandb",
    "check_writable",
    "nearly_full",
    "validate_jsonl",
    "validate_wandb",
]

_CONNECT_TIMEOUT_S = 3.0
_LEAST_FREE_BYTES = 64 << 20  # of the disk of a data directory
_OFFLINE = "Set WANDB_MODE=offline to write files instead."


def validate_wandb(attributes: Mapping[str, str]) -> None:
    """Raise ConfigError if no W&B run with these attributes can work here."""
    find_account(WandbSettings.parse(attributes), os.environ)
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra("tracker: wandb", "the package wandb", "wandb")


def check_wandb(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    """Check the package, the directory, the key and the server."""
    results = [_check_package(), check_writable("tracker directory", directory)]
    try:
        account = find_account(WandbSettings.parse(attributes), os.environ)
    except ConfigError as exc:
        return [*results, CheckResult("wandb account", exc.args[0], ok=False, hint=exc.hint)]
    if not account.online:
        asked = os.environ.get("WANDB_MODE") or attributes.get("mode", "auto") != "auto"
        reason = "The mode is offline" if asked else "There is no API key"
        return [
            *results,
            CheckResult(
                "wandb account",
                f"{reason}, so runs are written to files for `wandb sync`.",
            ),
        ]
    found = f"Found an API key for {account.base_url}, project {account.project}."
    if account.attached_run:
        own = account.attached_run == OWN_RUN
        path = "that the program makes by wandb.init" if own else account.attached_path
        found = f"Found an API key for {account.base_url}, to join the run {path}."
    results += [
        CheckResult("wandb account", found),
        check_server("wandb server", account.base_url, _OFFLINE),
    ]
    if account.attached_run and "{" not in account.attached_run and results[-1].ok:
        results.append(_check_joined_run(account))
    return results


def validate_jsonl(attributes: Mapping[str, str]) -> None:
    """Raise ConfigError if there are attributes: the JSON-lines tracker has none."""
    for name, value in attributes.items():
        raise ConfigError(f'jsonl.{name}: unknown setting (got "{value}"). There are none.')


def check_jsonl(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    """Check the settings and the directory."""
    wrong = check_settings("jsonl settings", validate_jsonl, attributes)
    return [wrong or check_writable("tracker directory", directory)]


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


def _check_package() -> CheckResult:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("wandb")
    except PackageNotFoundError:
        return CheckResult(
            "wandb package", "wandb is not installed.", ok=False, hint=how_to_install("wandb")
        )
    supported = _supported_wandb()
    if not supported.contains(found, prereleases=True):
        message = f"wandb {found} is installed; {supported} is supported."
        return CheckResult("wandb package", message, ok=False, hint=how_to_install("wandb"))
    return CheckResult("wandb package", f"wandb {found} is installed.")


def _supported_wandb() -> "SpecifierSet":
    """Return the versions that this package's own extra requires."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement  # comes with wandb
    from packaging.specifiers import SpecifierSet

    for text in requires("otel-rl") or ():
        requirement = Requirement(text)
        if requirement.name == "wandb":
            return requirement.specifier
    return SpecifierSet()  # not installed as a package: any


def _check_joined_run(account: Account) -> CheckResult:
    # Not at the top: every writer loads this module, and its HTTP client takes 2 MB.
    from otel_rl.bridge.delivery.wandb.row_marks import SHARE_IT, look_up

    path = account.attached_path
    try:
        run = look_up(account)
    except TrackerError as exc:
        return CheckResult("wandb run", exc.args[0], ok=False, hint=exc.hint)
    if run is None:
        return CheckResult("wandb run", f"{path} is not there yet. It is joined once it is.")
    if not run.is_shared:
        return CheckResult("wandb run", f"{path} is not in shared mode.", ok=False, hint=SHARE_IT)
    return CheckResult("wandb run", f"{path} is there, and in shared mode.")
