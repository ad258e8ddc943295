"""Says each thing once: a training loop repeats its calls, and a log full of one line hides it."""

import logging
from typing import Final

__all__ = ["say_once"]

_MAX_SAID: Final = 1000
"""Bounds the memory against messages that hold a step or an id."""

_log = logging.getLogger("otel_rl")
_said: set[str] = set()


def say_once(message: str) -> None:
    """Log ``message`` as a warning unless this process has said it."""
    if message not in _said and len(_said) < _MAX_SAID:
        _said.add(message)
        _log.warning("otel_rl.compat.wandb: %s", message)
