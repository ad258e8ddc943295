"""Keys of a W&B run: its x-axes, and the spelling that W&B accepts of a tracker key.

A tracker key is made of role, metric and attributes in ``otel_rl.bridge.tracker_keys``.
"""

from functools import lru_cache

from otel_rl.bridge.delivery.texts import storable_text

__all__ = ["ATTEMPT", "HOURS", "MAX_AXES", "STEP", "attempt_axis", "wandb_key"]

STEP = "step"
"""Key of the axis of charts over training steps."""

HOURS = "hours"
"""Key of the axis of other charts: hours since the first row."""

ATTEMPT = "attempt"
"""Key of the attempt of a row."""

MAX_AXES = 100
"""Attempts with an axis of their own; later ones go on with the last."""


def attempt_axis(attempt: int) -> str:
    """Return the key of the x-axis of an attempt; the first attempt has the common ``STEP``."""
    return STEP if attempt == 1 else f"{STEP}/attempt_{min(attempt, MAX_AXES)}"


@lru_cache(maxsize=16_384)
def wandb_key(name: str) -> str:
    """Return a key that W&B accepts. A refused row would be a gap in the run.

    W&B raises on a lone surrogate, and overwrites or ignores empty keys and those that start with
    an underscore.
    """
    name = storable_text(name)
    return name if name and not name.startswith("_") else f"metric{name}"
