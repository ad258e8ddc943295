"""The kind TensorBoard: its checks before a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_rl.bridge.delivery.kinds.checks import check_settings, check_writable
from otel_rl.bridge.delivery.tensorboard.settings import validate
from otel_rl.bridge.delivery.tracker_interface import CheckResult, RunInfo, Tracker, TrackerKind
from otel_rl.bridge.delivery.wandb.account import without_key

__all__ = ["TENSORBOARD"]


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("tensorboard settings", validate, attributes)
    return [wrong or check_writable("tracker directory", directory)]


def _environment(environ: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
    return without_key(environ)


def _create(_: RunInfo) -> Tracker:
    from otel_rl.bridge.delivery.tensorboard.tracker import TensorBoardTracker

    return TensorBoardTracker()


TENSORBOARD: Final = TrackerKind(
    "tensorboard",
    _create,
    validate,
    _check,
    _environment,
    home=lambda _: Path(),
    lacks="consoles, a status, numbers of 64 bits (they have 32)",
    shares_process=True,
)
"""The kind, for the table of trackers."""
