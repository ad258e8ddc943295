"""Other W&B names that programs use: errors to catch, levels, charts, terminal lines."""

import logging
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

from otel_rl.integrations.wandb._run_metadata import generate_id
from otel_rl.integrations.wandb._stand_ins.media import Media, ignored, media
from otel_rl.integrations.wandb._stand_ins.stand_in import Error, is_optional, stand_in

__all__ = [
    "AlertLevel",
    "CommError",
    "Error",
    "Settings",
    "UsageError",
    "plot",
    "require",
    "setup",
    "teardown",
    "termerror",
    "termlog",
    "termwarn",
    "util",
]

_log = logging.getLogger("otel_rl")


class CommError(Error):
    """W&B's error of communication."""


class UsageError(Error):
    """W&B's error of usage."""


class AlertLevel(Enum):
    """W&B's levels of ``alert``."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class Settings(SimpleNamespace):
    """Accepts any setting of W&B; ``init`` logs that they are ignored."""


class _Plots:
    """``wandb.plot``: no chart is supported."""

    def __getattr__(self, name: str) -> Callable[..., Media]:
        if is_optional(name):
            raise AttributeError(name)
        return media(f"plot.{name}")


class _Utilities:
    """``wandb.util``: generates ids; everything else does nothing."""

    generate_id = staticmethod(generate_id)

    def __getattr__(self, name: str) -> Any:
        if is_optional(name):
            raise AttributeError(name)
        return stand_in(f"util.{name}")


plot: Final = _Plots()
util: Final = _Utilities()

require = ignored("require", "there is one version of the API.")
setup = ignored("setup", "there is nothing to set up.")
teardown = ignored("teardown", "there is nothing to tear down.")


def termlog(string: str = "", **_named: object) -> None:
    """Log at level INFO."""
    _log.info(string)


def termwarn(string: str = "", **_named: object) -> None:
    """Log a warning."""
    _log.warning(string)


def termerror(string: str = "", **_named: object) -> None:
    """Log an error."""
    _log.error(string)
