"""Logs each message once: a training loop repeats its calls, and would flood the log."""

import logging
from typing import Final

__all__ = ["warn_once"]

_MAX_LOGGED: Final = 1000
"""Bounds the memory against messages that contain a step or an id."""

_log = logging.getLogger("otel_rl")
_logged: set[str] = set()


def warn_once(message: str) -> None:
    """Log ``message`` as a warning, once per process."""
    if message not in _logged and len(_logged) < _MAX_LOGGED:
        _logged.add(message)
        _log.warning("otel_rl.integrations.wandb: %s", message)
