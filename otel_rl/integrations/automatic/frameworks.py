"""Adapters that are added to frameworks as soon as their modules are imported."""

import logging
import os
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.automatic.sweeps import SWEEPS
from otel_rl.worker.plugins.import_hook import when_imported

__all__ = ["add_when_imported"]

_log = logging.getLogger("otel_rl")

_MARK: Final = "_adds_otel_rl"


def add_when_imported() -> None:
    """Add the adapters once their frameworks are imported. Imports none of them."""
    for name, add in (_MODULES | SWEEPS).items():
        when_imported(name, partial(_add, add))


def _add(add: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        add(module)
    except (AttributeError, ImportError) as error:  # a version with other names
        _log.warning("Metrics of %s are not recorded: %s.", module.__name__, error)


def _areal(module: ModuleType) -> None:
    import_module("otel_rl.integrations.areal").always(module.StatsLogger)


def _verl(module: ModuleType) -> None:
    adapter = import_module("otel_rl.integrations.verl")  # registers with verl
    adapter.always(module.Tracking)


def _transformers(module: ModuleType) -> None:
    def add(trainer: Any, *_arguments: object, **_named: object) -> None:
        adapter = import_module("otel_rl.integrations.trl")
        callbacks = trainer.callback_handler.callbacks
        if not any(isinstance(callback, adapter.OtelCallback) for callback in callbacks):
            trainer.add_callback(adapter.QuietCallback())

    _after(module.Trainer, "__init__", add)


def _nemo_rl(module: ModuleType) -> None:
    def add(logger: Any, *_arguments: object, **_named: object) -> None:
        logger.loggers.append(import_module("otel_rl.integrations.nemo_rl").OtelLogger())

    _after(module.Logger, "__init__", add)


def _prime_rl(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.prime_rl").install(quietly=True)


def _skyrl(module: ModuleType) -> None:
    kind = module.BasePPOExp
    original = kind.get_tracker
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def get_tracker(*arguments: Any, **named: Any) -> Any:  # SkyRL's own
        tracker = original(*arguments, **named)
        found = _guarded(lambda: import_module("otel_rl.integrations.skyrl").OtelTracker(tracker))
        return tracker if found is None else found

    setattr(get_tracker, _MARK, True)
    kind.get_tracker = get_tracker


def _forge(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.forge").register_always()


def _openrlhf(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.openrlhf").install(quietly=True)


def _rllib(module: ModuleType) -> None:
    def add(algorithm: Any, *_arguments: object, **_named: object) -> None:
        import_module("otel_rl.integrations.rllib").follow(algorithm=algorithm)

    _after(module.Algorithm, "setup", add)


def _roll(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.roll").always()


def _slime(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.slime").install(quietly=True)


def _stable_baselines3(module: ModuleType) -> None:
    def add(event: str, callback: Any, *_arguments: object, **_named: object) -> None:
        import_module("otel_rl.integrations.stable_baselines3").follow(callback, event)

    for event in ("training_start", "rollout_start", "rollout_end", "training_end"):
        _after(module.BaseCallback, f"on_{event}", partial(add, f"on_{event}"))


def _stable_baselines3_algorithms(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.stable_baselines3")  # sees trainings that fail


def _tunix(_module: ModuleType) -> None:
    import_module("otel_rl.integrations.tunix").always()


def _wandb(_module: ModuleType) -> None:
    wanted = os.environ.get("OTEL_RL_ATTACH")
    if wanted in ("share", "hint"):
        getattr(import_module("otel_rl.integrations.wandb_run.own_run"), wanted)()


_MODULES: Final[dict[str, Callable[[ModuleType], None]]] = {
    "areal.utils.stats_logger": _areal,
    "forge.observability.metrics": _forge,
    "nemo_rl.utils.logger": _nemo_rl,
    "openrlhf.utils.logging_utils": _openrlhf,
    "prime_rl.monitors": _prime_rl,
    "ray.rllib.algorithms.algorithm": _rllib,
    "roll.utils.tracking": _roll,
    "skyrl.train.entrypoints.main_base": _skyrl,
    "skyrl_train.entrypoints.main_base": _skyrl,
    "slime.observability.logging_utils": _slime,
    "stable_baselines3.common.callbacks": _stable_baselines3,
    "stable_baselines3.common.on_policy_algorithm": _stable_baselines3_algorithms,
    "transformers.trainer": _transformers,
    "tunix.sft.metrics_logger": _tunix,
    "verl.utils.tracking": _verl,
    "wandb": _wandb,
}


def _after(kind: type, name: str, add: Callable[..., None]) -> None:
    """Call ``add`` after each call of a method, with its arguments."""
    original = getattr(kind, name)
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def method(*arguments: Any, **named: Any) -> Any:  # any method's
        result = original(*arguments, **named)
        _guarded(lambda: add(*arguments, **named))
        return result

    setattr(method, _MARK, True)
    setattr(kind, name, method)


def _guarded(make: Callable[[], Any]) -> Any:
    """Return the result of ``make``; None if it fails, or the program uses the W&B drop-in."""
    try:
        # Imported here, so that a process that trains nothing loads no worker.
        from otel_rl.integrations.adapter import automatically, is_instrumented, logging_errors
    except Exception as error:  # noqa: BLE001  # a broken installation is logged; training goes on
        _log.warning("An adapter is not switched on: %s", error)
        return None
    if is_instrumented():
        return None
    found: list[Any] = []
    with logging_errors(), automatically():
        found.append(make())
    return found[0] if found else None
