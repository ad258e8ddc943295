"""Drop-in for the W&B API on a worker: each process logs as before, into one common run.

    import otel_rl.integrations.wandb as wandb

    wandb.init(project="grpo", name="experiment-123", job_type="trainer")
    wandb.log({"loss": 0.42}, step=12)

`otel-rl help wandb` has the semantics of each call and the unsupported parts. No logging call
raises; unsupported values are logged once and counted.
"""

import sys as _sys
from typing import TYPE_CHECKING, Any

from otel_rl.integrations.wandb._api import define_metric, finish, init, log, login
from otel_rl.integrations.wandb._config import Config
from otel_rl.integrations.wandb._late_names import carry as _carry
from otel_rl.integrations.wandb._late_names import found as _found
from otel_rl.integrations.wandb._logged.histogram import Histogram
from otel_rl.integrations.wandb._logged.table import Table
from otel_rl.integrations.wandb._run import Run
from otel_rl.integrations.wandb._stand_ins.inert import (
    AlertLevel,
    CommError,
    Error,
    Settings,
    UsageError,
    plot,
    require,
    setup,
    teardown,
    termerror,
    termlog,
    termwarn,
    util,
)
from otel_rl.integrations.wandb._stand_ins.modules import install as _install
from otel_rl.integrations.wandb._summary import Summary as _Summary

__all__ = [
    "AlertLevel", "CommError", "Config", "Error", "Histogram", "Run", "Settings", "Table",
    "UsageError", "alert", "define_metric", "finish", "init", "link_model", "log",
    "log_artifact", "log_code", "log_model", "login", "mark_preempting", "pin_config_keys",
    "plot", "require", "save", "setup", "teardown", "termerror", "termlog", "termwarn",
    "unwatch", "util", "watch",
]  # fmt: skip

__version__ = "0.31.0"
"""Version of W&B with this API."""

alert, save, watch, unwatch = Run.alert, Run.save, Run.watch, Run.unwatch
log_artifact, log_code, log_model = Run.log_artifact, Run.log_code, Run.log_model
link_model, mark_preempting = Run.link_model, Run.mark_preempting
pin_config_keys = Run.pin_config_keys


if TYPE_CHECKING:
    run: Run | None
    config: Config
    summary: _Summary


def __getattr__(name: str) -> Any:  # the type depends on the name
    return _found(name)


_carry({name: globals()[name] for name in __all__}, util.generate_id)
_install(_sys.modules[__name__])
