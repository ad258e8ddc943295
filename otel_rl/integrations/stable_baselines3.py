"""Stable-Baselines3 adapter: a callback.

    model.learn(100_000, callback=otel_rl.integrations.stable_baselines3.OtelCallback())

The step is the number of timesteps at which the logger dumps. What follows, up to the next dump, is
timed as that step.
"""

import atexit
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from types import ModuleType
from typing import Any, Final

from stable_baselines3.common.callbacks import (  # type: ignore[import-not-found]  # no dependency
    BaseCallback,
)
from stable_baselines3.common.logger import (  # type: ignore[import-not-found]  # no dependency
    KVWriter,
)

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, guard, start, when_imported

__all__ = ["OtelCallback", "follow"]

_FLUSH_TIMEOUT_S: Final = 5.0

_MARK: Final = "_ends_otel_rl"

_PHASES: Final = {"on_rollout_start": "generate", "on_rollout_end": "train"}
"""Each lasts until the next one."""


class OtelCallback(BaseCallback):  # type: ignore[misc]  # Any where it is not installed
    """Records what the algorithm's logger dumps, with the phases ``generate`` and ``train``.

    Args:
        experiment: Default ``OTEL_RL_EXPERIMENT``.
        trial: One run of it; default ``OTEL_RL_TRIAL``.
        role: Default ``OTEL_RL_ROLE``, else ``trainer``.
    """

    def __init__(
        self, experiment: str | None = None, trial: str | None = None, role: str | None = None
    ) -> None:
        super().__init__()
        self._given = WorkerNames(experiment, trial, role)

    def _on_training_start(self) -> None:
        follow(self, "on_training_start", self._given)

    def _on_rollout_start(self) -> None:
        follow(self, "on_rollout_start")

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        follow(self, "on_rollout_end")

    def _on_training_end(self) -> None:
        follow(self, "on_training_end")


class _Writer(KVWriter):  # type: ignore[misc]  # Any where it is not installed
    """Output of the logger."""

    def __init__(self) -> None:
        self._recorder = Recorder("stable_baselines3")
        self._open_step, self._open_phase = ExitStack(), ExitStack()
        self._number: int | None = None
        self._phase = ""
        self.has_spans = True

    def begin(self, number: int) -> None:
        """End the step, and begin the next one, in the same phase."""
        if number != self._number and not self._recorder.is_silent:
            phase = self._phase
            self.close()
            self._number = number
            self._open_step.enter_context(otel_rl.step(number))
            self.enter(phase)

    def enter(self, phase: str) -> None:
        """Enter a phase of the step; an empty text is none."""
        if phase != self._phase and self._number is not None:
            self._phase = phase
            self._open_phase.close()
            if phase:
                self._open_phase.enter_context(otel_rl.phase(phase, span=self.has_spans))

    def write(self, key_values: Mapping[str, object], key_excluded: object, step: int = 0) -> None:
        """Record what is dumped; in a training, the next step begins."""
        self._recorder.record(key_values, step)
        if self._number is not None:
            self.begin(step)

    def end(self) -> None:
        """End the training, once: each callback tells of it. Wait for delivery."""
        if self._number is not None:
            self.close()
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """End the step in progress."""
        self.fail(None)

    def fail(self, error: BaseException | None) -> None:
        """End the step in progress, if any, with what has interrupted it."""
        atexit.unregister(self.close)
        self._phase, self._number = "", None
        for opened in (self._open_phase, self._open_step):
            opened.__exit__(None if error is None else type(error), error, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave no output in a copy of the model: its training adds its own."""
        return _NoWriter, ()


class _NoWriter(KVWriter):  # type: ignore[misc]  # Any where it is not installed
    """Output of a copied logger that has recorded."""

    def write(self, key_values: object, key_excluded: object, step: int = 0) -> None:
        """Record nothing."""

    def close(self) -> None:
        """Close nothing."""


def follow(callback: Any, event: str, given: WorkerNames | None = None) -> None:
    """Follow an event of any callback of a training; several tell the same.

    Args:
        callback: Of Stable-Baselines3.
        event: Name of its method.
        given: Names of the worker.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    formats = callback.logger.output_formats
    writer = _writer(callback.logger)
    if writer is None:
        if event != "on_training_start":
            return
        start(WorkerNames(role="trainer"), given or WorkerNames())
        writer = _Writer()
        formats.append(writer)
    if event == "on_training_start":
        # An algorithm with a replay buffer may take turns thousands of times in a step.
        writer.has_spans = not hasattr(callback.model, "train_freq")
        writer.begin(callback.model.num_timesteps)
        # Nothing else tells of the failure of a ``learn`` of its own, such as sb3_contrib's.
        atexit.register(writer.close)
    elif event == "on_training_end":
        writer.end()
    else:
        writer.enter(_PHASES[event])


def _writer(logger: Any) -> _Writer | None:
    formats = getattr(logger, "output_formats", ())
    return next((one for one in formats if isinstance(one, _Writer)), None)


def _end_with_failures(module: ModuleType) -> None:
    """End the step of a training that raises: no callback is told of it."""
    for kind in vars(module).values():
        learn = vars(kind).get("learn") if isinstance(kind, type) else None
        if learn is not None and kind.__module__ == module.__name__ and not hasattr(learn, _MARK):
            kind.learn = _ending(learn)


def _ending(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def learn(model: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return original(model, *arguments, **named)
        except BaseException as error:
            with guard:
                writer = _writer(getattr(model, "logger", None))  # there is none before the first
                if writer is not None:
                    writer.fail(error)
            raise

    setattr(learn, _MARK, True)
    return learn


for _kind in ("on", "off"):
    when_imported(f"stable_baselines3.common.{_kind}_policy_algorithm", _end_with_failures)
