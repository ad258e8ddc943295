"""OpenTelemetry for distributed RL training, ending in one experiment-tracker run.

    import otel_rl

    otel_rl.init(experiment="grpo-7b", role="trainer")
    with otel_rl.step(12):
        with otel_rl.phase("train"):
            ...
        otel_rl.mlogger.log({"loss": 0.42}, step=12)

Importing costs nothing: the OpenTelemetry SDK is loaded by the first name that is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_rl.worker import carrier as carrier
    from otel_rl.worker.exact import exact_view as exact_view
    from otel_rl.worker.experiment import finish as finish
    from otel_rl.worker.experiment import log_config as log_config
    from otel_rl.worker.experiment import log_samples as log_samples
    from otel_rl.worker.gpu_owner import gpu_owner as gpu_owner
    from otel_rl.worker.mlogger import mlogger as mlogger
    from otel_rl.worker.phases import phase as phase
    from otel_rl.worker.phases import step as step
    from otel_rl.worker.session import flush as flush
    from otel_rl.worker.session import init as init
    from otel_rl.worker.session import shutdown as shutdown

__all__ = [
    "__version__",
    "carrier",
    "exact_view",
    "finish",
    "flush",
    "gpu_owner",
    "init",
    "log_config",
    "log_samples",
    "mlogger",
    "phase",
    "shutdown",
    "step",
]

__version__ = "0.1.0"

_MODULES = {"carrier"}

_HOME = {
    "carrier": "otel_rl.worker.carrier",
    "exact_view": "otel_rl.worker.exact",
    "finish": "otel_rl.worker.experiment",
    "flush": "otel_rl.worker.session",
    "gpu_owner": "otel_rl.worker.gpu_owner",
    "init": "otel_rl.worker.session",
    "log_config": "otel_rl.worker.experiment",
    "log_samples": "otel_rl.worker.experiment",
    "mlogger": "otel_rl.worker.mlogger",
    "phase": "otel_rl.worker.phases",
    "shutdown": "otel_rl.worker.session",
    "step": "otel_rl.worker.phases",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All names at once: after `init` a signal handler finds none of them half imported.
    for each, path in _HOME.items():
        home = import_module(path)
        globals()[each] = home if each in _MODULES else getattr(home, each)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
