"""OpenTelemetry for distributed RL training: one experiment-tracker run per experiment.

    import otel_rl

    otel_rl.init(experiment="grpo-7b", role="trainer")
    with otel_rl.step(12):
        with otel_rl.phase("train"):
            ...
        otel_rl.log({"loss": 0.42})

Importing is cheap: the first use of a name loads the OpenTelemetry SDK.
"""

from importlib import import_module

TYPE_CHECKING = False  # loading typing takes as long as all else here
if TYPE_CHECKING:
    from otel_rl.version import __version__ as __version__
    from otel_rl.worker.api import lineage as lineage
    from otel_rl.worker.api.experiment import finish as finish
    from otel_rl.worker.api.experiment import log_config as log_config
    from otel_rl.worker.api.experiment import log_samples as log_samples
    from otel_rl.worker.api.log import log as log
    from otel_rl.worker.api.log import mlogger as mlogger
    from otel_rl.worker.api.phases import phase as phase
    from otel_rl.worker.api.phases import step as step
    from otel_rl.worker.api.watch import watch as watch
    from otel_rl.worker.session import flush as flush
    from otel_rl.worker.session import init as init

__all__ = [
    "finish",
    "flush",
    "init",
    "lineage",
    "log",
    "log_config",
    "log_samples",
    "phase",
    "step",
    "watch",
]

_APART = {"__version__", "lineage", "watch"}
"""Each is loaded when it is asked for: most workers have no use for them, and they take 2 MB."""

_HOME = {
    "__version__": "otel_rl.version",
    "finish": "otel_rl.worker.api.experiment",
    "flush": "otel_rl.worker.session",
    "init": "otel_rl.worker.session",
    "lineage": "otel_rl.worker.api.lineage",
    "log": "otel_rl.worker.api.log",
    "log_config": "otel_rl.worker.api.experiment",
    "log_samples": "otel_rl.worker.api.experiment",
    "mlogger": "otel_rl.worker.api.log",
    "phase": "otel_rl.worker.api.phases",
    "step": "otel_rl.worker.api.phases",
    "watch": "otel_rl.worker.api.watch",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All at once, so that a signal handler after `init` finds no half-imported module.
    for each in [name] if name in _APART else [one for one in _HOME if one not in _APART]:
        home = import_module(_HOME[each])
        globals()[each] = home if each == "lineage" else getattr(home, each)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
