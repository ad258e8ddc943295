"""Counts unsupported values that a program logs, and warns once per name."""

from typing import Final

from otel_rl.integrations.wandb._log_once import warn_once
from otel_rl.integrations.wandb._logged.values import Skipped
from otel_rl.integrations.wandb._session import DropReason, guard

__all__ = ["MEDIA_HINT", "report_skipped"]

MEDIA_HINT: Final = "log numbers; use the wandb package beside otel_rl for media and files."


def report_skipped(skipped: Skipped) -> None:
    """Count skipped values, and warn of each once."""
    if skipped:
        guard.drops.add(DropReason.NOT_A_NUMBER, len(skipped))
    for name, kind in skipped.items():
        warn_once(f"{name!r} is not supported ({kind}): {MEDIA_HINT}")
