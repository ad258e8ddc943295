"""OpenTelemetry for distributed RL training: one experiment-tracker run per experiment.

    import otel_rl

    otel_rl.init(experiment="grpo-7b", role="trainer")
    with otel_rl.step(12):
        with otel_rl.phase("train"):
            ...
        otel_rl.mlogger.log({"loss": 0.42}, step=12)

Importing is cheap: the first use of a name loads the OpenTelemetry SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_rl.version import __version__ as __version__
    from otel_rl.worker.api import lineage as lineage
    from otel_rl.worker.api.experiment import end_experiment as end_experiment
    from otel_rl.worker.api.gpu_owner import gpu_owner as gpu_owner
    from otel_rl.worker.api.mlogger import mlogger as mlogger
    from otel_rl.worker.api.phases import phase as phase
    from otel_rl.worker.api.phases import step as step
    from otel_rl.worker.metrics.exemplar_view import exact_view as exact_view
    from otel_rl.worker.session import flush as flush
    from otel_rl.worker.session import init as init
    from otel_rl.worker.session import shutdown as shutdown

__all__ = [
    "__version__",
    "end_experiment",
    "exact_view",
    "flush",
    "gpu_owner",
    "init",
    "lineage",
    "mlogger",
    "phase",
    "shutdown",
    "step",
]

_MODULES = {"lineage"}

_APART = {"exact_view", "lineage"}
"""Loaded when they are asked for: most workers have no use for them, and they take 2 MB."""

_HOME = {
    "end_experiment": "otel_rl.worker.api.experiment",
    "exact_view": "otel_rl.worker.metrics.exemplar_view",
    "flush": "otel_rl.worker.session",
    "gpu_owner": "otel_rl.worker.api.gpu_owner",
    "init": "otel_rl.worker.session",
    "lineage": "otel_rl.worker.api.lineage",
    "mlogger": "otel_rl.worker.api.mlogger",
    "phase": "otel_rl.worker.api.phases",
    "shutdown": "otel_rl.worker.session",
    "step": "otel_rl.worker.api.phases",
}

_FORMER = {
    "carrier": "lineage",
    "finish": "end_experiment",
    "log_config": "mlogger.log_config",
    "log_samples": "mlogger.log_samples",
}


def __getattr__(name: str) -> object:
    if name == "__version__":  # alone: it needs no other module
        return import_module("otel_rl.version").__version__
    if name in _FORMER:
        return _renamed(name, _FORMER[name])
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _APART:
        home = import_module(_HOME[name])
        found: object = home if name in _MODULES else getattr(home, name)
        globals()[name] = found
        return found
    # All names at once, so that a signal handler after `init` finds no half-imported module.
    for each, path in _HOME.items():
        if each in _APART:
            continue
        home = import_module(path)
        globals()[each] = home if each in _MODULES else getattr(home, each)
    return globals()[name]


def _renamed(former: str, now: str) -> object:
    import warnings  # importing otel_rl loads as little as it can

    warnings.warn(f"otel_rl.{former} is now otel_rl.{now}.", DeprecationWarning, stacklevel=3)
    home, _, member = now.partition(".")
    found: object = globals()[home] if home in globals() else __getattr__(home)
    return getattr(found, member) if member else found


def __dir__() -> list[str]:
    return __all__
