"""Steps of trainings and their phases, from transformers' events and what TRL times."""

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any, Final, cast

import otel_rl
from otel_rl.integrations.adapter import guard, when_imported

__all__ = ["Steps", "follow_trl"]

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


class Steps:
    """Steps of one training, with their phases, and those between steps.

    Its calls must come from the thread that trains.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._is_within = False

    def __reduce__(self) -> tuple[type["Steps"], tuple[()]]:
        """Make a copy without the open step: a copied callback follows another training."""
        return Steps, ()

    def begin_training(self) -> None:
        """Let what TRL times in this thread belong to these steps."""
        earlier = _training.get()
        if earlier is not None:
            earlier.end_training()  # a training that failed unnoticed
        _training.set(self)
        # Nothing else tells of the failure of a loop of its own, such as TRL's of PPO.
        atexit.register(self.end)

    def end_training(self, error: BaseException | None = None) -> None:
        """End what is open, if any, and the training. See ``end``."""
        self.end(error)
        atexit.unregister(self.end)

    def begin(self, number: int) -> None:
        """End what is open, and begin a step."""
        self.end()
        self._open.enter_context(otel_rl.step(number))
        self._open.enter_context(otel_rl.phase("train"))
        self._is_within = True

    def between(self, phase: str) -> None:
        """Enter a phase that lasts until the next call of a method."""
        self.end()
        self._open.enter_context(otel_rl.phase(phase))

    def end(self, error: BaseException | None = None) -> None:
        """End what is open, if any.

        Args:
            error: What has interrupted it.
        """
        self._is_within = False
        if error is None:
            self._open.close()
        else:
            self._open.__exit__(type(error), error, error.__traceback__)

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


_training: ContextVar[Steps | None] = ContextVar("otel_rl_trl_training", default=None)
"""Steps of the training of this thread."""


def follow_trl() -> None:
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
            steps = _training.get()
            name = context.name.partition(".")[2]
            setattr(context, _OPEN, None if steps is None else steps.timed(name))
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


def _end_with_failures(module: ModuleType) -> None:
    """End the step of a training that raises: no event of transformers tells of it."""
    kind = cast("Any", module).Trainer
    if not hasattr(kind.train, _MARK):
        kind.train = _ending(kind.train)


def _ending(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def train(*arguments: Any, **named: Any) -> Any:
        outer = _training.get()
        try:
            return original(*arguments, **named)
        except BaseException as error:
            with guard:
                steps = _training.get()
                if steps is not None and steps is not outer:
                    steps.end_training(error)
            raise
        finally:
            with guard:
                _training.set(outer)

    setattr(train, _MARK, True)
    return train


when_imported("transformers.trainer", _end_with_failures)
