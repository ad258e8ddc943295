"""Counts unsupported values that a program logs, and warns once per name."""

from typing import Final

from otel_rl.integrations.wandb._logged.values import Skipped
from otel_rl.integrations.wandb._session import guard

__all__ = ["MEDIA_HINT", "report_skipped"]

MEDIA_HINT: Final = "for media and files `import wandb` itself, under `otel-rl run --attach`."

_REMEDY: Final = MEDIA_HINT.capitalize()


def report_skipped(skipped: Skipped) -> None:
    """Count skipped values, and warn of each once."""
    for name, kind in skipped.items():
        guard.not_a_number(name, kind, _REMEDY)
