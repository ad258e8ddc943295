"""Public names of ``otel_rl`` from before a rename: they warn, and work."""

import warnings
from collections.abc import Callable
from typing import Final

__all__ = ["renamed"]

_NOW: Final = {
    "carrier": "lineage",
    "finish": "end_experiment",
    "log_config": "mlogger.log_config",
    "log_samples": "mlogger.log_samples",
}


def renamed(former: str, find: Callable[[str], object]) -> object:
    """Return what a former name means today, with a warning at the caller's caller.

    Args:
        former: One of those of the package.
        find: Returns a public name of today.
    """
    now = _NOW[former]
    warnings.warn(f"otel_rl.{former} is now otel_rl.{now}.", DeprecationWarning, stacklevel=3)
    name, _, member = now.partition(".")
    found = find(name)
    return getattr(found, member) if member else found
