"""The rest of W&B's names that programs touch: errors to catch, levels, charts, terminal lines."""

import logging
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

from otel_rl.compat.wandb._about import generate_id
from otel_rl.compat.wandb._media import Media, ignored, media
from otel_rl.compat.wandb._stand_in import Error, is_asked_by_python, stand_in

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
        if is_asked_by_python(name):
            raise AttributeError(name)
        return media(f"plot.{name}")


class _Utilities:
    """``wandb.util``: ids are made; all else of it does nothing."""

    generate_id = staticmethod(generate_id)

    def __getattr__(self, name: str) -> Any:
        if is_asked_by_python(name):
            raise AttributeError(name)
        return stand_in(f"util.{name}")


plot: Final = _Plots()
util: Final = _Utilities()

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
