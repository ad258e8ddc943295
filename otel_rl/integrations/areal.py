"""AReaL adapter: follows the trainer's ``StatsLogger``.

trainer = PPOTrainer(config, ...)
otel_rl.integrations.areal.attach(trainer)
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, Final

from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    after,
    before,
    deliver,
    guard,
    start,
)

__all__ = ["always", "attach"]

_COUNT: Final = "__count"  # AReaL's suffix of the number of summands of a mean

_FOLLOWED: Final = "_otel_rl_follows"


def attach(trainer: Any) -> None:
    """Record everything that a trainer commits to its ``stats_logger``. A second call does nothing.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    _follow(trainer.stats_logger)


def always(module: ModuleType) -> None:
    """Follow every ``StatsLogger`` of ``areal.utils.stats_logger``.

    The adapter then never raises.
    """
    after(module.StatsLogger, "__init__", _follow)


def _follow(logger: Any) -> None:
    if hasattr(logger, _FOLLOWED):
        return
    config = getattr(logger, "config", None)
    experiment = getattr(config, "experiment_name", None)
    start(WorkerNames(experiment, getattr(config, "trial_name", None), "trainer"))
    recorder = Recorder("areal")
    settings = getattr(logger, "exp_config", None)
    if is_dataclass(settings) and not isinstance(settings, type):
        recorder.config({f.name: getattr(settings, f.name) for f in fields(settings)})

    def commit(epoch: int, step: int, global_step: int, data: Any) -> None:
        del epoch, step
        _record(recorder, _first_step(logger, global_step), data)

    before(logger, "commit", commit)
    if hasattr(logger, "close"):
        before(logger, "close", deliver)
    setattr(logger, _FOLLOWED, True)


def _record(
    recorder: Recorder, first: int, data: Mapping[str, object] | Sequence[Mapping[str, object]]
) -> None:
    if _is_first_rank():
        items = [data] if isinstance(data, Mapping) else data
        for place, item in enumerate(items, first):
            metrics = {name: v for name, v in item.items() if not name.endswith(_COUNT)}
            recorder.record(metrics, place)


def _first_step(logger: Any, global_step: int) -> int:
    """Return the step after the last one that AReaL has logged, if AReaL reports it."""
    last: object = None
    with guard:
        last = logger.state_dict().get("last_commit_step")
    return max(global_step, last + 1) if isinstance(last, int) else global_step


def _is_first_rank() -> bool:
    """Return whether AReaL logs in this process; all ranks have the same metrics when it does."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not hasattr(distributed, "is_initialized"):  # a torch without it
        return True
    return not distributed.is_initialized() or distributed.get_rank() == 0
