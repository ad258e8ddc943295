"""The kind Trackio: what can be checked before a run."""

import importlib.util
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.kinds.checks import check_writable
from otel_rl.bridge.delivery.tracker_interface import CheckResult, RunInfo, Tracker, TrackerKind
from otel_rl.bridge.delivery.trackio.settings import TrackioSettings
from otel_rl.bridge.delivery.wandb.account import without_key
from otel_rl.errors import ConfigError, MissingExtra
from otel_rl.redaction import redacted

__all__ = ["TRACKIO"]

_CONNECT_TIMEOUT_S: Final = 3.0


def _validate(attributes: Mapping[str, str]) -> None:
    TrackioSettings.parse(attributes)
    if importlib.util.find_spec("trackio") is None:
        raise MissingExtra("tracker: trackio", "the package trackio", "trackio")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    try:
        _validate(attributes)
    except ConfigError as exc:
        return [CheckResult("trackio settings", exc.args[0], ok=False, hint=exc.hint)]
    results = [check_writable("tracker directory", directory)]
    place = TrackioSettings.parse(attributes).place(os.environ)
    if place.startswith("http"):
        results.append(_check_server(place))
    return results


def _check_server(url: str) -> CheckResult:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = redacted(url)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as exc:
        return CheckResult(
            "trackio server",
            f"{shown} cannot be reached ({exc}).",
            ok=False,
            hint="Rows are kept until it can be. Is `trackio show` running there?",
        )
    return CheckResult("trackio server", f"{shown} can be reached.")


def _environment(environ: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
    return without_key(environ)


def _create(_: RunInfo) -> Tracker:
    from otel_rl.bridge.delivery.trackio.tracker import TrackioTracker

    return TrackioTracker()


TRACKIO: Final = TrackerKind(
    "trackio",
    _create,
    _validate,
    _check,
    _environment,
    lacks="consoles, and on a server event times (they are the values of otel_rl/time)",
)
"""The kind, for the table of trackers."""
