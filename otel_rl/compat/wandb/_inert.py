"""The rest of W&B's names that programs touch: errors to catch, levels, charts, terminal lines."""

import logging
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Final

from otel_rl.compat.wandb._about import generate_id
from otel_rl.compat.wandb._media import Media, ignored, media

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


class Error(Exception):
    """W&B's base of errors. Never raised here; there for ``except wandb.Error``."""


class CommError(Error):
    """See ``Error``."""


class UsageError(Error):
    """See ``Error``."""


class AlertLevel(Enum):
    """W&B's levels of ``alert``."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class Settings(SimpleNamespace):
    """Takes any setting of W&B; ``init`` says that they are ignored."""


class _Plots:
    """``wandb.plot``: every chart of it is not carried."""

    def __getattr__(self, name: str) -> Callable[..., Media]:
        if name.startswith("__"):
            raise AttributeError(name)
        return media(f"plot.{name}")


plot: Final = _Plots()
util: Final = SimpleNamespace(generate_id=generate_id)

require = ignored("require", "there is one version of the API.")
setup = ignored("setup", "there is nothing to set up.")
teardown = ignored("teardown", "there is nothing to tear down.")


def termlog(string: str = "", **_named: object) -> None:
    """Log for people."""
    _log.info(string)


def termwarn(string: str = "", **_named: object) -> None:
    """Warn people."""
    _log.warning(string)


def termerror(string: str = "", **_named: object) -> None:
    """Tell people of an error."""
    _log.error(string)
