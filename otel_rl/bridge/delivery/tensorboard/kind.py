"""The kind TensorBoard: what can be checked before a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_rl.bridge.delivery.kinds.checks import check_writable
from otel_rl.bridge.delivery.tensorboard.settings import validate
from otel_rl.bridge.delivery.tracker_interface import CheckResult, RunInfo, Tracker, TrackerKind
from otel_rl.bridge.delivery.wandb.account import without_key
from otel_rl.errors import ConfigError

__all__ = ["TENSORBOARD"]


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    try:
        validate(attributes)
    except ConfigError as exc:
        return [CheckResult("tensorboard settings", exc.args[0], ok=False, hint=exc.hint)]
    return [check_writable("tracker directory", directory)]


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
)
"""The kind, for the table of trackers."""
