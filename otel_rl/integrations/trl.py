"""TRL and transformers adapter: a ``TrainerCallback``.

trainer = GRPOTrainer(..., callbacks=[otel_rl.integrations.trl.OtelCallback()])

Each optimizer step is a step of otel_rl, and its phase is ``train``, except for the parts that
TRL's trainers time by themselves (``ProfilingContext``). Evaluations and checkpoints are phases
between steps.
"""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from transformers import TrainerCallback  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    Steps,
    WorkerNames,
    after,
    deliver,
    ends_steps,
    guard,
    when_imported,
    wrap,
)

__all__ = ["OtelCallback", "always"]

_OF_STEP_S: Final = 0.5
"""Age of a step's first metrics up to which more of them are the step's; a bridge waits longer."""

_WINDOW_S: Final = 5.0
"""Within it a bridge averages what has a time and no step."""

_UNREACHED_TIMEOUT_S: Final = 0.5
"""Of a checkpoint after one that waited in vain."""

_PREPARE: Final = "_prepare_inputs"

_LOG_PROBS: Final = "_get_per_token_logps_and_entropies"
"""Of the old and the reference policy while inputs are prepared, else of the policy in the loss."""

_PHASES: Final[Mapping[str, str]] = {
    _PREPARE: "batch_create",
    _LOG_PROBS: "log_probs",
    "_calculate_rewards": "reward",
    "compute_loss": "train",
    "sync_weights": "weight_sync",
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "vLLM.generate": "generate",
}
"""By the name of TRL's context without its class. The time of others is that of what is open."""

_timed: ContextVar[str] = ContextVar("otel_rl_trl_timed", default="")
"""Name of TRL's innermost context with a phase."""


class OtelCallback(TrainerCallback):  # type: ignore[misc]  # Any where it is not installed
    """Records the trainer's metrics in the first process of the world, which has them.

    Each process records its own steps and phases.

    Args:
        experiment: Name of the experiment; default ``OTEL_RL_EXPERIMENT``, else ``args.run_name``.
        trial: Name of one run of the experiment; default ``OTEL_RL_TRIAL``.
        role: Role of the worker; default ``OTEL_RL_ROLE``, else ``trainer``.
        watch: Whether to measure gradients and updates by group of parameters, see
            ``otel_rl.watch``. They are measured after TRL has clipped the gradient, whose earlier
            norm TRL logs.
    """

    def __init__(
        self,
        experiment: str | None = None,
        trial: str | None = None,
        role: str | None = None,
        *,
        watch: bool = False,
    ) -> None:
        self._watches = watch
        self._watched: Any = None
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
        if self._recorder.is_silent:
            return
        known = WorkerNames(getattr(args, "run_name", None), role="trainer")
        self._recorder.start(known, self._given)
        if state.is_world_process_zero and hasattr(args, "to_dict"):
            self._recorder.config(args.to_dict())
        self._is_over = False
        self._logged_step = None  # it may count from 0 again
        with guard:
            self._steps.begin_training()
            _follow_trl()
        if self._watches:
            if self._watched is not None:  # a second training makes another optimizer
                self._watched.close()
            self._watched = otel_rl.watch(_named["model"], _named["optimizer"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Begin the step that ``global_step`` counts at its end."""
        if not self._recorder.is_silent:
            self._steps.begin(state.global_step + 1, "train")

    def on_step_end(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """End the step; an evaluation and then a checkpoint may follow."""
        self._steps.end()
        if self._recorder.is_silent:
            return
        if control.should_evaluate:
            self._steps.enter("evaluation")
        elif control.should_save:
            self._steps.enter("checkpoint")

    on_epoch_end = on_step_end

    def on_log(
        self,
        args: Any,  # transformers' own types
        state: Any,
        control: Any,
        logs: Mapping[str, object] | None = None,
        **_named: Any,
    ) -> None:
        """Record metrics at the trainer's global step; late or repeated ones only by their time.

        An evaluation may take longer than a bridge waits for more data of a step. A bridge averages
        the values of one window of time, so only what must be recorded by time is: of several
        evaluations within a window only the first, and the others as late samples of their step.
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
            self._is_reached = deliver(None if self._is_reached else _UNREACHED_TIMEOUT_S)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Go on to the checkpoint; wait for the delivery of an evaluation after the training."""
        self._steps.end()
        if self._is_over:
            deliver()
        elif control.should_save and not self._recorder.is_silent:
            self._steps.enter("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Wait for delivery; the process may still record afterwards."""
        self._steps.end()
        self._is_over = True
        deliver()


def always(module: ModuleType) -> None:
    """Give every ``Trainer`` of ``transformers.trainer`` the callback, unless it has one."""

    def add(trainer: Any) -> None:
        callbacks = trainer.callback_handler.callbacks
        if not any(isinstance(callback, OtelCallback) for callback in callbacks):
            trainer.add_callback(OtelCallback())

    after(module.Trainer, "__init__", add)


def _complete(logs: Mapping[str, object], state: Any) -> Mapping[str, object]:
    """Return all that the trainer logs: transformers' printers remove some entries before us."""
    history = getattr(state, "log_history", None)
    last: Mapping[str, object] = history[-1] if history else {}
    if all(last.get(name, last) is value for name, value in logs.items()):
        return {name: value for name, value in last.items() if name != "step"}
    return logs


def _is_number_of_before(value: object, before: object) -> bool:
    """Return whether both values are equal numbers; arrays do not compare to a single truth."""
    return type(value) in (int, float) and type(before) in (int, float) and value == before


def _follow_trl() -> None:
    kind = getattr(sys.modules.get("trl.extras.profiling"), "ProfilingContext", None)
    if kind is not None:
        wrap(kind, "__enter__", _entering)
        wrap(kind, "__exit__", _leaving)


def _timed_phase(name: str) -> ExitStack:
    opened = ExitStack()
    steps, phase = Steps.of_thread(), _PHASES.get(name)
    is_training = name == _LOG_PROBS and _timed.get() != _PREPARE
    if steps is not None and steps.is_open and phase is not None and not is_training:
        opened.callback(_timed.reset, _timed.set(name))
        kind = "compute" if phase == "log_probs" else None
        opened.enter_context(otel_rl.phase(phase, phase_class=kind))
    return opened


def _entering(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def enter(context: Any) -> Any:
        entered = original(context)
        with guard:
            context.otel_rl_phase = _timed_phase(context.name.partition(".")[2])
        return entered

    return enter


def _leaving(original: Callable[..., Any]) -> Callable[..., Any]:
    def leave(context: Any, *error: Any) -> Any:
        with guard, vars(context).pop("otel_rl_phase", ExitStack()):
            pass
        return original(context, *error)

    return leave


when_imported("transformers.trainer", lambda module: wrap(module.Trainer, "train", ends_steps))
