"""Callback of transformers' trainers, TRL's among them."""

import time
from collections.abc import Mapping
from typing import Any, Final

from transformers import TrainerCallback  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, guard, logging_errors, start
from otel_rl.integrations.trl.steps import Steps, follow_trl

__all__ = ["OtelCallback", "QuietCallback"]

_FLUSH_TIMEOUT_S: Final = 5.0

_OF_STEP_S: Final = 0.5
"""Age of a step's first metrics up to which more of them are the step's; a bridge waits longer."""

_WINDOW_S: Final = 5.0
"""Within it a bridge averages what has a time and no step."""

_UNREACHED_TIMEOUT_S: Final = 0.5
"""Of a checkpoint after one that waited in vain."""


class OtelCallback(TrainerCallback):  # type: ignore[misc]  # Any where it is not installed
    """Records the trainer's metrics in the first process of the world, which has them.

    Each process records its steps and phases.

    Args:
        experiment: Default ``OTEL_RL_EXPERIMENT``, else ``args.run_name``.
        trial: One run of it; default ``OTEL_RL_TRIAL``.
        role: Default ``OTEL_RL_ROLE``, else ``trainer``.
    """

    def __init__(
        self, experiment: str | None = None, trial: str | None = None, role: str | None = None
    ) -> None:
        self._given = WorkerNames(experiment, trial, role)
        self._recorder = Recorder("trl")
        self._steps = Steps()
        self._logged: dict[str, object] = {}
        self._logged_step: int | None = None
        self._logged_s = 0.0
        self._by_time_s = float("-inf")
        self._is_over = False
        self._is_reached = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Start the worker, and set the training arguments as config.

        Raises:
            ConfigError: See ``otel_rl.init``.
        """
        start(WorkerNames(getattr(args, "run_name", None), role="trainer"), self._given)
        if state.is_world_process_zero and hasattr(args, "to_dict"):
            self._recorder.config(args.to_dict())
        self._is_over = False
        self._logged_step = None  # it may count from 0 again
        with guard:
            self._steps.begin_training()
            follow_trl()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Begin the step that ``global_step`` counts at its end."""
        if not self._recorder.is_silent:
            self._steps.begin(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """End the step; an evaluation, then a checkpoint may follow."""
        self._steps.end()
        if self._recorder.is_silent:
            return
        if control.should_evaluate:
            self._steps.between("evaluation")
        elif control.should_save:
            self._steps.between("checkpoint")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """See ``on_step_end``."""
        self.on_step_end(args, state, control, **named)

    def on_log(
        self,
        args: Any,  # transformers' own types
        state: Any,
        control: Any,
        logs: Mapping[str, object] | None = None,
        **_named: Any,
    ) -> None:
        """Record at the trainer's global step; what is late or repeated in it by its time.

        An evaluation may take longer than a bridge waits for more data of a step, and the step in
        progress is the same. Values of one window are averaged, so only what must goes there, and
        of several evaluations within one only the first: others are late samples of their step.
        """
        if not logs or not state.is_world_process_zero:
            return
        now_s = time.monotonic()
        if state.global_step != self._logged_step:
            self._logged, self._logged_step, self._logged_s = {}, state.global_step, now_s
        known = self._logged
        new = {
            name: value
            for name, value in _complete(logs, state).items()
            if not _is_number_of_before(value, known.get(name))
        }
        is_again = not known.keys().isdisjoint(new)
        is_late = now_s - self._logged_s > _OF_STEP_S and now_s - self._by_time_s >= _WINDOW_S
        known.update(new)
        if is_again or is_late:
            self._by_time_s = now_s
        self._recorder.record(new, None if is_again or is_late else state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Deliver what a training that resumes from this checkpoint does not log again."""
        self._steps.end()
        if state.is_world_process_zero:
            timeout_s = _FLUSH_TIMEOUT_S if self._is_reached else _UNREACHED_TIMEOUT_S
            self._is_reached = otel_rl.flush(timeout_s=timeout_s)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Go on to the checkpoint; wait for the delivery of an evaluation after the training."""
        self._steps.end()
        if self._is_over:
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        elif control.should_save and not self._recorder.is_silent:
            self._steps.between("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Wait for delivery; the process may still record."""
        self._steps.end_training()
        self._is_over = True
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


def _complete(logs: Mapping[str, object], state: Any) -> Mapping[str, object]:
    """Return all that the trainer logs: transformers' printers remove some of it before us."""
    history = getattr(state, "log_history", None)
    last: Mapping[str, object] = history[-1] if history else {}
    if all(last.get(name, last) is value for name, value in logs.items()):
        return {name: value for name, value in last.items() if name != "step"}
    return logs


def _is_number_of_before(value: object, before: object) -> bool:
    """Return whether a value is a number, the same as before; arrays are no one truth."""
    return type(value) in (int, float) and type(before) in (int, float) and value == before


class QuietCallback(OtelCallback):
    """Variant for automatic use: a wrong setting is logged, not raised."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Start the worker as ``OtelCallback`` does. Never raises."""
        with logging_errors():
            if not self._recorder.is_silent:
                super().on_train_begin(args, state, control, **named)
