"""slime adapter: a hook of its ``log`` function, in each process that logs.

    otel_rl.integrations.slime.install()        # in every process, before slime's own modules

A process of the trainer has the role ``trainer``; the one that manages rollouts ``orchestrator``.
slime counts rollouts and training steps; ``--wandb-always-use-train-step`` makes both one axis.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from slime.observability import logging_utils  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    automatically,
    guard,
    is_instrumented,
    logging_errors,
    start,
)

__all__ = ["install"]

_FLUSH_TIMEOUT_S: Final = 5.0

_MARK: Final = "_adds_otel_rl"

_EVALUATION: Final = "eval/step"


class _Process:
    """Worker of a process, which starts with its first metrics."""

    def __init__(self, quietly: bool) -> None:
        self._is_quiet = quietly
        self._recorder: Recorder | None = None
        self._has_failed = False
        self._role = ""

    def begin(self, role: object) -> None:
        """Note the part of this process: slime names it in processes of the trainer."""
        self._role = "trainer" if role else "orchestrator"

    def record(self, args: Any, metrics: Mapping[str, object], step_key: str) -> None:
        recorder = self._recorder_of(args, step_key)
        if recorder is None:
            return
        values = {name: value for name, value in metrics.items() if name != step_key}
        # An evaluation takes longer than the row of its step waits.
        recorder.record(values, None if step_key == _EVALUATION else metrics.get(step_key))

    def flush(self) -> None:
        if self._recorder is not None:
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)

    def _recorder_of(self, args: Any, step_key: str) -> Recorder | None:
        if self._recorder is None and not self._has_failed:
            self._has_failed = True  # until it has started
            names = WorkerNames(
                getattr(args, "wandb_project", None),
                getattr(args, "wandb_group", None),
                self._role or ("trainer" if step_key == "train/step" else "orchestrator"),
            )
            if not self._is_quiet:
                self._begin(args, names)
            elif not is_instrumented():
                with logging_errors(), automatically():
                    self._begin(args, names)
        return self._recorder

    def _begin(self, args: Any, names: WorkerNames) -> None:
        start(names)
        self._recorder = Recorder("slime")
        self._recorder.config(vars(args))
        self._has_failed = False


def install(*, quietly: bool = False) -> None:
    """Make ``log`` record and ``finish_tracking`` deliver. Idempotent.

    Args:
        quietly: True logs a wrong setting instead of raising, and leaves the metrics to a program
            that reports by itself.
    """
    if hasattr(logging_utils.log, _MARK):
        return
    process = _Process(quietly)
    logging_utils.log = _recording(logging_utils.log, process)
    logging_utils.init_tracking = _beginning(logging_utils.init_tracking, process)
    logging_utils.finish_tracking = _finishing(logging_utils.finish_tracking, process)


def _recording(original: Callable[..., None], process: _Process) -> Callable[..., None]:
    @wraps(original)
    def log(args: Any, metrics: Mapping[str, object], step_key: str) -> None:
        process.record(args, metrics, step_key)
        original(args, metrics, step_key)

    setattr(log, _MARK, True)
    return log


def _beginning(original: Callable[..., None], process: _Process) -> Callable[..., None]:
    @wraps(original)
    def init_tracking(args: Any, primary: bool = True, **named: Any) -> None:
        process.begin(named.get("role"))
        original(args, primary, **named)

    return init_tracking


def _finishing(original: Callable[..., None], process: _Process) -> Callable[..., None]:
    @wraps(original)
    def finish_tracking(args: Any) -> None:
        with guard:
            process.flush()
        original(args)

    return finish_tracking
