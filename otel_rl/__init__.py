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

_APART = {"__version__", "exact_view", "lineage"}
"""Each is loaded when it is asked for: most workers have no use for them, and they take 2 MB."""

_HOME = {
    "__version__": "otel_rl.version",
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

_FORMER = {"carrier", "finish", "log_config", "log_samples"}


def __getattr__(name: str) -> object:
    if name in _FORMER:
        from otel_rl.former_names import renamed  # importing otel_rl loads as little as it can

        return renamed(name, lambda now: globals()[now] if now in globals() else __getattr__(now))
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All at once, so that a signal handler after `init` finds no half-imported module.
    for each in [name] if name in _APART else [one for one in _HOME if one not in _APART]:
        home = import_module(_HOME[each])
        globals()[each] = home if each == "lineage" else getattr(home, each)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
