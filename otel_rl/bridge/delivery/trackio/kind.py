"""The kind Trackio: its checks before a run."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_rl.bridge.delivery.kinds.checks import check_server, check_settings, check_writable
from otel_rl.bridge.delivery.tracker_interface import CheckResult, RunInfo, Tracker, TrackerKind
from otel_rl.bridge.delivery.trackio.settings import TrackioSettings
from otel_rl.bridge.delivery.wandb.account import without_key
from otel_rl.errors import MissingExtra

__all__ = ["TRACKIO"]


def _validate(attributes: Mapping[str, str]) -> None:
    TrackioSettings.parse(attributes)
    if importlib.util.find_spec("trackio") is None:
        raise MissingExtra("tracker: trackio", "the package trackio", "trackio")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("trackio settings", _validate, attributes)
    if wrong is not None:
        return [wrong]
    results = [check_writable("tracker directory", directory)]
    place = TrackioSettings.parse(attributes).place(os.environ)
    if place.startswith("http"):
        results.append(check_server("trackio server", place, "Is `trackio show` running there?"))
    return results


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
    of_the_program=("project",),
)
"""The kind, for the table of trackers."""
