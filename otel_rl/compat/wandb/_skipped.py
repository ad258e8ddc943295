"""Counts what a program logs and no worker carries, and says each name once."""

from typing import Final

from otel_rl.compat.wandb._say import say_once
from otel_rl.compat.wandb._session import DropReason, guard
from otel_rl.compat.wandb._values import Skipped

__all__ = ["MEDIA_HINT", "say_skipped"]

MEDIA_HINT: Final = "log numbers; use the wandb package beside otel_rl for media and files."


def say_skipped(skipped: Skipped) -> None:
    """Count them, and say each once."""
    if skipped:
        guard.drops.add(DropReason.NOT_A_NUMBER, len(skipped))
    for name, kind in skipped.items():
        say_once(f"{name!r} is not carried ({kind}): {MEDIA_HINT}")
