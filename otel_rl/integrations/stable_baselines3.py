"""Stable-Baselines3 adapter: a callback.

    model.learn(100_000, callback=otel_rl.integrations.stable_baselines3.OtelCallback())

The step is the number of timesteps at which the logger dumps. The time up to the next dump belongs
to that step.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from stable_baselines3.common.callbacks import (  # type: ignore[import-not-found]  # no dependency
    BaseCallback,
)
from stable_baselines3.common.logger import (  # type: ignore[import-not-found]  # no dependency
    KVWriter,
)

from otel_rl.integrations.adapter import (
    Recorder,
    Steps,
    WorkerNames,
    automatic,
    deliver,
    ends_steps,
    when_imported,
    wrap,
)

__all__ = ["OtelCallback", "always"]

_NO_NAMES: Final = WorkerNames()

_PHASES: Final = {"on_rollout_start": "generate", "on_rollout_end": "train"}
"""Each lasts until the next one."""


class OtelCallback(BaseCallback):  # type: ignore[misc]  # Any where it is not installed
    """Records what the algorithm's logger dumps, with the phases ``generate`` and ``train``.

    Args:
        experiment: Name of the experiment; default ``OTEL_RL_EXPERIMENT``.
        trial: Name of one run of the experiment; default ``OTEL_RL_TRIAL``.
        role: Role of the worker; default ``OTEL_RL_ROLE``, else ``trainer``.
    """

    def __init__(
        self, experiment: str | None = None, trial: str | None = None, role: str | None = None
    ) -> None:
        super().__init__()
        self._given = WorkerNames(experiment, trial, role)

    def _on_training_start(self) -> None:
        _follow(self, "on_training_start", self._given)

    def _on_rollout_start(self) -> None:
        _follow(self, "on_rollout_start")

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        _follow(self, "on_rollout_end")

    def _on_training_end(self) -> None:
        _follow(self, "on_training_end")


def always(module: ModuleType) -> None:
    """Follow every callback of a training, whatever its kind. The adapter then never raises.

    Args:
        module: A module with ``BaseCallback`` that is imported after all that it needs.
    """

    def following(event: str, original: Callable[..., None]) -> Callable[..., None]:
        def method(callback: Any, *arguments: Any, **named: Any) -> None:
            original(callback, *arguments, **named)
            automatic(lambda: _follow(callback, event))

        return method

    for event in ("on_training_start", "on_rollout_start", "on_rollout_end", "on_training_end"):
        wrap(module.BaseCallback, event, partial(following, event))


class _Writer(KVWriter):  # type: ignore[misc]  # Any where it is not installed
    """Output of SB3's logger. A copied model keeps a copy, with a step of its own."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._steps = Steps()
        self._number: int | None = None
        self._phase = ""
        self._has_spans = True

    def __reduce__(self) -> tuple[type["_Writer"], tuple[Recorder]]:
        return _Writer, (self.recorder,)

    def begin_training(self, model: Any) -> None:
        if not self._steps.is_open:
            self._number, self._phase = None, ""
            self._steps.begin_training()
            # An algorithm with a replay buffer may take turns thousands of times in a step.
            self._has_spans = not hasattr(model, "train_freq")
            self._begin(model.num_timesteps)

    def enter(self, phase: str) -> None:
        if phase != self._phase and self._steps.is_open:
            self._phase = phase
            self._steps.enter(phase, has_span=self._has_spans)

    def write(self, key_values: Mapping[str, object], key_excluded: object, step: int = 0) -> None:
        """Record dumped values; in a training, the next step then begins, in the same phase."""
        self.recorder.record(key_values, step)
        if self._steps.is_open and step != self._number:
            self._begin(step)

    def end_training(self) -> None:
        if self._steps.is_open:
            self._steps.end()
            deliver()

    def close(self) -> None:
        self._steps.end()

    def _begin(self, number: int) -> None:
        if not self.recorder.is_silent:
            self._number = number
            self._steps.begin(number, self._phase, has_span=self._has_spans)


def _follow(callback: Any, event: str, given: WorkerNames = _NO_NAMES) -> None:
    """Follow an event of a training that each of its callbacks receives."""
    formats = callback.logger.output_formats
    writer = next((one for one in formats if isinstance(one, _Writer)), None)
    if event == "on_training_start":
        recorder = Recorder("stable_baselines3") if writer is None else writer.recorder
        recorder.start(WorkerNames(role="trainer"), given)
        if writer is None:
            writer = _Writer(recorder)
            formats.append(writer)
        writer.begin_training(callback.model)
    elif writer is not None and event == "on_training_end":
        writer.end_training()
    elif writer is not None:
        writer.enter(_PHASES[event])


def _end_with_failures(module: ModuleType) -> None:
    for kind in [*vars(module).values()]:
        if isinstance(kind, type) and kind.__module__ == module.__name__ and "learn" in vars(kind):
            wrap(kind, "learn", ends_steps)


for _kind in ("on", "off"):
    when_imported(f"stable_baselines3.common.{_kind}_policy_algorithm", _end_with_failures)
