"""Drop-in for the W&B API on a worker: each process logs as before, into one common run.

    import otel_rl.integrations.wandb as wandb

    wandb.init(project="grpo", name="experiment-123", job_type="trainer")
    wandb.log({"loss": 0.42}, step=12)

`otel-rl help wandb` says what reaches the run. No logging call raises: a value that does not is
logged once as a warning, and counted.
"""

from typing import TYPE_CHECKING, Any

from otel_rl.integrations.wandb._absent import Error, errors
from otel_rl.integrations.wandb._absent import attribute as _attribute
from otel_rl.integrations.wandb._absent import warn_once as _warn_once
from otel_rl.integrations.wandb._run import (
    Config,
    Run,
    Settings,
    define_metric,
    finish,
    init,
    log,
    login,
    util,
)
from otel_rl.integrations.wandb._run import Summary as _Summary
from otel_rl.integrations.wandb._run import current as _current
from otel_rl.integrations.wandb._values import Table

__all__ = [
    "Config", "Error", "Run", "Settings", "Table",
    "define_metric", "errors", "finish", "init", "join", "log", "login", "util",
]  # fmt: skip

__version__ = "0.31.0"
"""Version of W&B with this API."""

join = finish
"""W&B's former word."""

if TYPE_CHECKING:
    run: Run | None
    config: Config
    summary: _Summary


def __getattr__(name: str) -> Any:  # the type depends on the name
    """Return what depends on the run in progress, or a stand-in for the rest of W&B."""
    run = _current()
    if name == "run":
        return run
    if name in ("config", "summary"):
        if run is not None:
            return getattr(run, name)
        _warn_once(f"{name} has no run before init(): writes to it are lost.")
        return Config() if name == "config" else _Summary()
    return _attribute("wandb", name)
