"""RLlib adapter: a callback for an ``Algorithm`` in the process that trains, or Tune's actor.

    config.callbacks(on_algorithm_init=otel_rl.integrations.rllib.follow)

Each iteration is a step, with the phases that RLlib times; RLlib's own timers are moving averages.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from types import ModuleType
from typing import Any, Final

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    after,
    before,
    deliver,
    flat,
    guard,
    start,
    wrap,
)

__all__ = ["always", "follow"]

_FOLLOWED: Final = "_otel_rl_follows"

_PHASES: Final[Mapping[str, str]] = {
    "env_runner_sampling_timer": "generate",
    "evaluation_iteration": "evaluation",
    "learner_update_timer": "train",
    "replay_buffer_add_data_timer": "replay",
    "replay_buffer_sampling_timer": "batch_create",
    "sample": "collector_wait",
    "synch_env_connectors": "sync_coordination",
    "synch_weights": "weight_sync",
}
"""By the key of RLlib's timer."""

_NO_METRICS: Final = frozenset({"config", "pid", "timestamp"})


def follow(*, algorithm: Any, **_named: Any) -> None:
    """Record the iterations of an algorithm. RLlib passes more arguments than are needed.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    if hasattr(algorithm, _FOLLOWED):
        return
    start(WorkerNames(role="trainer"))
    recorder = Recorder("rllib")
    recorder.config(algorithm.config.to_dict())

    def stepping(original: Callable[[], Any]) -> Callable[[], Any]:
        def step() -> Any:
            if recorder.is_silent:
                return original()
            with otel_rl.step(algorithm.training_iteration + 1):
                return original()

        return step

    def recording(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def log_result(result: Any) -> None:
            original(result)  # its callbacks may change the result
            with guard:
                metrics = {name: value for name, value in flat(result) if _is_metric(name, value)}
                recorder.record(metrics, result.get("training_iteration"))

        return log_result

    def timing(original: Callable[..., Any]) -> Callable[..., Any]:
        def log_time(key: str | tuple[str, ...], *arguments: Any, **named: Any) -> Any:
            timer = original(key, *arguments, **named)
            phase = _PHASES.get(key if isinstance(key, str) else key[-1])
            return timer if phase is None or recorder.is_silent else _both(timer, phase)

        return log_time

    # Of the object, because Ray copies the methods of an actor's class before it is made.
    wrap(algorithm, "step", stepping)
    wrap(algorithm, "log_result", recording)
    before(algorithm, "cleanup", deliver)  # Ray ends a trial's process without exit handlers
    wrap(algorithm.metrics, "log_time", timing)
    setattr(algorithm, _FOLLOWED, True)


def always(module: ModuleType) -> None:
    """Follow every ``Algorithm`` of ``ray.rllib.algorithms.algorithm``, never raising."""
    after(module.Algorithm, "setup", lambda algorithm: follow(algorithm=algorithm))


@contextmanager
def _both(timer: Any, phase: str) -> Iterator[Any]:
    with otel_rl.phase(phase), timer as timed:
        yield timed


def _is_metric(name: str, value: object) -> bool:
    if name.partition("/")[0] in _NO_METRICS or isinstance(value, str | bool):
        return False
    return not _is_missing(name, value)


def _is_missing(name: str, value: object) -> bool:
    """Return whether a NaN is the mean of no values; a learner may have computed its NaN."""
    is_computed = name.startswith("learners/") and "/num_" not in name
    return isinstance(value, Real) and value != value and not is_computed
