"""OpenRLHF adapter: hooks of its PPO trainer's loggers.

    otel_rl.integrations.openrlhf.install()     # in the process of the trainer, a Ray actor

The trainer logs only with ``--logger.tensorboard_dir`` or ``--logger.wandb.key``. Of both, the
metrics of one are recorded.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from openrlhf.utils import logging_utils  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    automatically,
    is_instrumented,
    logging_errors,
    start,
)

__all__ = ["install"]

_FLUSH_TIMEOUT_S: Final = 5.0

_RECORDER: Final = "_otel_rl_recorder"
_MARK: Final = "_adds_otel_rl"

_SAMPLES: Final = "generated_samples"


def install(*, quietly: bool = False) -> None:
    """Make OpenRLHF's loggers record, too. Idempotent.

    Args:
        quietly: True logs a wrong setting instead of raising, and leaves the metrics to a program
            that reports by itself.
    """
    for name in ("TensorboardLogger", "WandbLogger"):
        kind = getattr(logging_utils, name)
        if hasattr(kind.__init__, _MARK):
            continue
        kind.__init__ = _starting(kind.__init__, quietly)
        kind.log_train = _recording(kind.log_train, "train")
        kind.log_eval = _recording(kind.log_eval, "eval")
        kind.close = _closing(kind.close)


def _starting(original: Callable[..., None], quietly: bool) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, args: Any, *more: Any, **named: Any) -> None:  # noqa: N807
        original(self, args, *more, **named)
        wandb = args.logger.wandb
        if type(self).__name__ == "TensorboardLogger" and wandb.key:
            return  # the other logger of the same trainer records
        names = WorkerNames(wandb.project, wandb.run_name, "trainer")
        if not quietly:
            start(names)
            setattr(self, _RECORDER, Recorder("openrlhf"))
        elif not is_instrumented():
            with logging_errors(), automatically():
                start(names)
                setattr(self, _RECORDER, Recorder("openrlhf"))
        recorder = getattr(self, _RECORDER, None)
        if recorder is not None:
            recorder.config(_flat(vars(args)))

    setattr(__init__, _MARK, True)
    return __init__


def _recording(original: Callable[..., None], prefix: str) -> Callable[..., None]:
    @wraps(original)
    def log(self: Any, global_step: int, logs_dict: Mapping[str, Any], *more: Any) -> None:
        recorder = getattr(self, _RECORDER, None)
        if recorder is not None:
            metrics = {f"{prefix}/{key}": logs_dict[key] for key in logs_dict if key != _SAMPLES}
            # An evaluation takes longer than the row of its step waits.
            recorder.record(metrics, global_step if prefix == "train" else None)
            _sample(logs_dict.get(_SAMPLES), global_step)
        original(self, global_step, logs_dict, *more)

    return log


def _closing(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def close(self: Any) -> None:
        if hasattr(self, _RECORDER):
            # Ray ends the process of the trainer without its exit handlers.
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        original(self)

    return close


def _sample(sample: Any, step: int) -> None:
    if sample:
        fields = zip(("text", "reward"), sample, strict=False)
        otel_rl.log_samples([dict(fields)], step, _SAMPLES)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested namespaces as nested dicts."""
    return {
        name: _flat(vars(value)) if hasattr(value, "__dict__") else value
        for name, value in values.items()
    }
