"""Adapter for libraries that log to W&B by themselves: a hook of the real ``wandb.Run.log``.

    otel_rl.integrations.wandb_run.log.install(step_keys=["train/step", "rollout/step"])

For a framework without an adapter of its own, before its ``wandb.init``. W&B's run goes on as
before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final

from otel_rl.integrations.adapter import (
    Dialect,
    Recorder,
    WorkerNames,
    current_step,
    guard,
    logging_errors,
    start,
)

__all__ = ["install"]

_MARK: Final = "__otel_rl_step_keys__"


def install(step_keys: Sequence[str] = (), role: str = "trainer") -> None:
    """Record everything that is logged to W&B in this process, too. Does nothing a second time.

    The names of the run are those of W&B's: its project is the experiment, its name the trial.
    Nested dicts have names with dots, as in W&B; other values than numbers are counted.

    Args:
        step_keys: Metrics that hold the step of what is logged with them, the first one counts;
            then those that the library has declared as an axis by ``define_metric``, if it is the
            axis of all or its name ends with "step". Without any it is the step at the call, that
            of the ``otel_rl.step`` block around it, or W&B's own.
        role: Default of the worker's role.
    """
    import wandb  # only W&B's users have it

    kind: Any = getattr(wandb, "Run", None) or wandb.sdk.wandb_run.Run  # older ones
    log = kind.log
    if hasattr(log, _MARK) or wandb.__name__ != "wandb":  # else it is the drop-in
        return
    recorder = Recorder("wandb_log", Dialect(()))
    keys = [*step_keys]
    kind.define_metric = _noting_axes(kind.define_metric, keys)

    @wraps(log)
    def recorded(
        run: Any, data: dict[str, Any], step: int | None = None, *args: Any, **named: Any
    ) -> None:
        with guard:
            at = _step_of(run, data, step, keys)
            with logging_errors():
                start(WorkerNames(run.project, run.name, role))
            recorder.record(dict(_flat(data)), at)
        log(run, data, step, *args, **named)

    setattr(recorded, _MARK, tuple(step_keys))
    kind.log = recorded


def _noting_axes(define_metric: Callable[..., Any], keys: list[str]) -> Callable[..., Any]:
    """Return ``define_metric``, which appends axes of steps to ``keys``."""

    @wraps(define_metric)
    def noted(run: Any, name: str, step_metric: Any = None, *args: Any, **named: Any) -> Any:
        with guard:
            axis = getattr(step_metric, "name", step_metric)
            if axis and axis not in keys and (name == "*" or axis.endswith("step")):
                keys.append(axis)
        return define_metric(run, name, step_metric, *args, **named)

    return noted


def _step_of(
    run: Any, data: Mapping[str, Any], step: int | None, step_keys: Sequence[str]
) -> int | None:
    for key in step_keys:
        if key in data:
            return int(data[key])
    if step is None:
        step = current_step()
    return run.step if step is None else step


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
