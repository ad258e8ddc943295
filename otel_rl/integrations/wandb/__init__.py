"""Drop-in for the W&B API on a worker: each process logs as before, into one common run.

    import otel_rl.integrations.wandb as wandb

    wandb.init(project="grpo", name="experiment-123", job_type="trainer")
    wandb.log({"loss": 0.42}, step=12)

docs/wandb.md has the semantics of each call and the unsupported parts. No logging call raises;
unsupported values are logged once and counted.
"""

import sys as _sys
from typing import TYPE_CHECKING, Any

from otel_rl.integrations.wandb._api import current as _run_in_progress
from otel_rl.integrations.wandb._api import define_metric, finish, init, log, login
from otel_rl.integrations.wandb._config import Config
from otel_rl.integrations.wandb._log_once import warn_once as _warn_once
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
from otel_rl.integrations.wandb._stand_ins.media import MEDIA as _MEDIA
from otel_rl.integrations.wandb._stand_ins.media import READS as _READS
from otel_rl.integrations.wandb._stand_ins.modules import install as _install
from otel_rl.integrations.wandb._stand_ins.stand_in import CARRIED as _CARRIED
from otel_rl.integrations.wandb._stand_ins.stand_in import is_optional as _is_optional
from otel_rl.integrations.wandb._stand_ins.stand_in import stand_in as _stand_in
from otel_rl.integrations.wandb._summary import Summary as _Summary

__all__ = [
    "AlertLevel",
    "CommError",
    "Config",
    "Error",
    "Histogram",
    "Run",
    "Settings",
    "Table",
    "UsageError",
    "alert",
    "define_metric",
    "finish",
    "init",
    "link_model",
    "log",
    "log_artifact",
    "log_code",
    "log_model",
    "login",
    "mark_preempting",
    "pin_config_keys",
    "plot",
    "require",
    "save",
    "setup",
    "teardown",
    "termerror",
    "termlog",
    "termwarn",
    "unwatch",
    "util",
    "watch",
]

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
    run = _run_in_progress()
    if name == "run":
        return run
    if name in ("config", "summary"):
        if run is not None:
            return getattr(run, name)
        _warn_once(f"{name} has no run before init(): writes to it are lost.")
        return Config() if name == "config" else _Summary(lambda _values: None)
    found = _MEDIA.get(name) or _READS.get(name)
    if found is not None:
        return found
    if _is_optional(name):
        raise AttributeError(name)
    return _stand_in(name)


_CARRIED.update({name: globals()[name] for name in __all__ if name[0].isupper()})
_CARRIED.update({name: kind for name, kind in {**_MEDIA, **_READS}.items() if name[0].isupper()})
_CARRIED["generate_id"] = util.generate_id
_install(_sys.modules[__name__])
