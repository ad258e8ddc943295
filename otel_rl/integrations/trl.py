"""TRL and transformers adapter: a ``TrainerCallback``.

trainer = GRPOTrainer(..., callbacks=[otel_rl.integrations.trl.OtelCallback()])

Each optimizer step is a step of otel_rl: its phase is ``train``, but for what TRL's trainers time
by themselves (``ProfilingContext``). Evaluations and checkpoints are phases between steps.
"""

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from transformers import TrainerCallback  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, guard, logging_errors, start

__all__ = ["OtelCallback", "QuietCallback"]

_FLUSH_TIMEOUT_S: Final = 5.0

_UNREACHED_TIMEOUT_S: Final = 0.5
"""Of a checkpoint after one that waited in vain."""

_PREPARE: Final = "_prepare_inputs"

_LOG_PROBS: Final = "_get_per_token_logps_and_entropies"
"""Gives those of the old and the reference policy for inputs, else of the policy in the loss."""

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

_MARK: Final = "_enters_otel_rl"

_OPEN: Final = "_otel_rl_phase"

_timed: ContextVar[str] = ContextVar("otel_rl_trl_timed", default="")
"""Name of TRL's innermost context with a phase."""


class _Steps:
    """Steps of the process's training, with their phases, and those between steps."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._is_within = False

    def begin(self, number: int) -> None:
        self.end()
        self._open.enter_context(otel_rl.step(number))
        self._open.enter_context(otel_rl.phase("train"))
        self._is_within = True

    def between(self, phase: str) -> None:
        """Enter a phase that lasts until the next call of a method."""
        self.end()
        self._open.enter_context(otel_rl.phase(phase))

    def end(self) -> None:
        self._is_within = False
        self._open.close()

    def timed(self, name: str) -> ExitStack | None:
        """Enter the phase of one of TRL's contexts; None for one without."""
        phase = _PHASES.get(name)
        is_training = name == _LOG_PROBS and _timed.get() != _PREPARE
        if phase is None or is_training or not self._is_within:
            return None
        opened = ExitStack()
        opened.callback(_timed.reset, _timed.set(name))
        opened.enter_context(
            otel_rl.phase(phase, phase_class="compute" if phase == "log_probs" else None)
        )
        return opened


_steps: Final = _Steps()


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
        self._logged: int | None = None
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
        _steps.end()  # of a training that failed
        atexit.register(_steps.end)  # nothing else tells of its failure
        with guard:
            _follow_trl()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Begin the step that ``global_step`` counts at its end."""
        if not self._recorder.is_silent:
            _steps.begin(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """End the step; an evaluation, then a checkpoint may follow."""
        _steps.end()
        if self._recorder.is_silent:
            return
        if control.should_evaluate:
            _steps.between("evaluation")
        elif control.should_save:
            _steps.between("checkpoint")

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
        """Record at the trainer's global step; repetitions of a step by their time.

        An evaluation takes longer than a bridge waits for more data of a step, and the step in
        progress is the same.
        """
        if logs and state.is_world_process_zero:
            is_again = state.global_step == self._logged
            self._logged = state.global_step
            self._recorder.record(logs, None if is_again else state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Deliver what a training that resumes from this checkpoint does not log again."""
        _steps.end()
        if state.is_world_process_zero:
            timeout_s = _FLUSH_TIMEOUT_S if self._is_reached else _UNREACHED_TIMEOUT_S
            self._is_reached = otel_rl.flush(timeout_s=timeout_s)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Go on to the checkpoint; wait for the delivery of an evaluation after the training."""
        _steps.end()
        if self._is_over:
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        elif control.should_save and not self._recorder.is_silent:
            _steps.between("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **_named: Any) -> None:
        """Wait for delivery; the process may still record."""
        _steps.end()
        atexit.unregister(_steps.end)
        self._is_over = True
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


class QuietCallback(OtelCallback):
    """Variant for automatic use: a wrong setting is logged, not raised."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Start the worker as ``OtelCallback`` does. Never raises."""
        with logging_errors():
            if not self._recorder.is_silent:
                super().on_train_begin(args, state, control, **named)


def _follow_trl() -> None:
    """Enter a phase with each context of TRL that has one. Idempotent."""
    profiling: Any = sys.modules.get("trl.extras.profiling")
    kind = getattr(profiling, "ProfilingContext", None)
    if kind is None or hasattr(kind.__enter__, _MARK):
        return
    kind.__enter__ = _entering(kind.__enter__)
    kind.__exit__ = _leaving(kind.__exit__)


def _entering(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(original)
    def enter(context: Any) -> Any:
        entered = original(context)
        with guard:
            setattr(context, _OPEN, _steps.timed(context.name.partition(".")[2]))
        return entered

    setattr(enter, _MARK, True)
    return enter


def _leaving(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def leave(context: Any, *error: Any) -> Any:
        with guard:
            opened = getattr(context, _OPEN, None)
            if opened is not None:
                opened.close()
        return original(context, *error)

    return leave
