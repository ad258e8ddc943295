"""Switches adapters on in processes below ``otel-rl run``, and records what programs log.

Frameworks start processes of their own, from scripts of their own. So each Python process below
``otel-rl run`` waits for the import of a framework's module (``start_up/sitecustomize.py``) and
adds the adapter to the module; in a process without an adapter the hook of W&B and TensorBoard
records. The program takes precedence: where it starts its worker, uses the W&B drop-in or switches
an adapter on, the adapters added here record nothing. Nothing here raises.
"""

import logging
import os
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from otel_rl.integrations.import_hook import when_imported
from otel_rl.integrations.sweeps import PARAMETERS, SWEEPS, parameters
from otel_rl.worker.identity import names_an_experiment
from otel_rl.worker.launch import is_within, sweep_environment

__all__ = ["DIRECTORY", "begin", "join_sweep", "wait"]

DIRECTORY: Final = Path(__file__).with_name("start_up")
"""Must be on ``PYTHONPATH``, with ``OTEL_RL_ADAPTERS=auto`` in the environment."""

_ADAPTERS: Final = {
    "areal.utils.stats_logger": "areal",
    "forge.observability.metrics": "forge",
    "ray.rllib.algorithms.algorithm": "rllib",
    "stable_baselines3.common.on_policy_algorithm": "stable_baselines3",
    "transformers.trainer": "trl",
    "verl.utils.tracking": "verl",
}
"""By the module to whose classes the function ``always`` of an adapter adds it."""

_log = logging.getLogger("otel_rl")


def begin() -> None:
    """Wait for frameworks if the environment enables that.

    ``opentelemetry-instrument`` calls it.
    """
    if os.environ.get("OTEL_RL_ADAPTERS") == "auto" and names_an_experiment(os.environ):
        join_sweep()
        wait()


def join_sweep() -> None:
    """Make this process and its children a trial if an agent of W&B has started the process."""
    run = os.environ.get("WANDB_RUN_ID")
    if run and os.environ.get("WANDB_SWEEP_ID") and not is_within(os.environ, run):
        if os.environ.get(PARAMETERS):
            from otel_rl.integrations.adapter import begin_trial  # loads the worker

            begin_trial(run, parameters(os.environ))
        else:
            os.environ.update(sweep_environment(os.environ, run))


def wait() -> None:
    """Add the adapters once their frameworks are imported. Imports none of them itself."""
    followed: dict[str, Callable[[ModuleType], None]] = {
        **{name: partial(_adapter, adapter) for name, adapter in _ADAPTERS.items()},
        **SWEEPS,
        "wandb": _wandb,
        "tensorboardX.writer": _tensorboard,
        "torch.utils.tensorboard.writer": _tensorboard,
    }
    for name, follow in followed.items():
        when_imported(name, partial(_follow, follow))


def _follow(follow: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        follow(module)
    except (AttributeError, ImportError) as error:  # a version with other names
        _log.warning("Metrics of %s are not recorded: %s.", module.__name__, error)


def _adapter(name: str, module: ModuleType) -> None:
    import_module(f"otel_rl.integrations.{name}").always(module)


def _wandb(_module: ModuleType) -> None:
    wanted = os.environ.get("OTEL_RL_ATTACH")
    if wanted in ("share", "hint"):
        getattr(import_module("otel_rl.integrations.own_run"), wanted)()
    if wanted != "share":  # what the program logs is in the run that is shared
        _hook("record_wandb")


def _tensorboard(_module: ModuleType) -> None:
    _hook("record_tensorboard")


@cache  # there are two modules with a writer
def _hook(name: str) -> None:
    from otel_rl.integrations import adapter, hook  # here, because they load the worker

    with adapter.automatically():
        getattr(hook, name)()
