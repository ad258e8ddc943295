"""AReaL adapter: wraps the trainer's ``StatsLogger``.

trainer = PPOTrainer(config, ...)
otel_rl.integrations.areal.attach(trainer)
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Final, Protocol

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

__all__ = ["OtelStatsLogger", "always", "attach"]

_FLUSH_TIMEOUT_S: Final = 5.0

_COUNT = "__count"  # AReaL's suffix of the number of summands of a mean

_OWN: Final = "_otel_rl_commits"

Data = Mapping[str, object] | Sequence[Mapping[str, object]]


class _StatsLogger(Protocol):
    """Used part of AReaL's ``StatsLogger``."""

    def commit(self, epoch: int, step: int, global_step: int, data: Any) -> None: ...

    def state_dict(self) -> dict[str, int]: ...

    def close(self) -> None: ...


class _Trainer(Protocol):
    stats_logger: Any


class _Commits:
    """Records the commits of a ``StatsLogger``.

    Args:
        original: AReaL's own.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """

    def __init__(self, original: _StatsLogger) -> None:
        config = getattr(original, "config", None)
        known = WorkerNames(
            getattr(config, "experiment_name", None),
            getattr(config, "trial_name", None),
            "trainer",
        )
        start(known)
        self._original = original
        self._recorder = Recorder("areal")
        settings = getattr(original, "exp_config", None)
        if is_dataclass(settings) and not isinstance(settings, type):
            self._recorder.config({f.name: getattr(settings, f.name) for f in fields(settings)})

    def record(self, global_step: int, data: Data) -> None:
        """Record ``data`` at the steps at which AReaL is about to log it."""
        with guard:
            if _is_first_rank():
                items = [data] if isinstance(data, Mapping) else data
                for place, item in enumerate(items, self._first_step(global_step)):
                    metrics = {name: v for name, v in item.items() if not name.endswith(_COUNT)}
                    self._recorder.record(metrics, place)

    def _first_step(self, global_step: int) -> int:
        """Return the step after the last one that AReaL has logged, if it reports it."""
        last: object = None
        with guard:
            last = self._original.state_dict().get("last_commit_step")
        return max(global_step, last + 1) if isinstance(last, int) else global_step


class OtelStatsLogger:
    """Records commits, then forwards them. Everything else is delegated to the original.

    Args:
        original: The trainer's own.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """

    def __init__(self, original: _StatsLogger) -> None:
        self._commits = _Commits(original)
        self._original = original

    def commit(self, epoch: int, step: int, global_step: int, data: Data) -> None:
        """Record ``data`` at the steps at which AReaL itself logs it."""
        self._commits.record(global_step, data)
        self._original.commit(epoch, step, global_step, data)

    def close(self) -> None:
        """Wait for delivery, then close the original."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        self._original.close()

    def __getattr__(self, name: str) -> Any:  # whatever the original has
        if name.startswith("__") or name == "_original":
            raise AttributeError(name)
        return getattr(self._original, name)


def always(stats_logger: Any) -> None:  # AReaL's class
    """Make every ``StatsLogger`` report. It never raises then. Idempotent."""
    if hasattr(stats_logger, _OWN):
        return
    setattr(stats_logger, _OWN, None)  # of loggers made before
    stats_logger.__init__ = _starting(stats_logger.__init__)
    stats_logger.commit = _recording(stats_logger.commit)
    stats_logger.close = _delivering(stats_logger.close)


def _starting(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807  # replaces one
        original(self, *arguments, **named)
        if not is_instrumented():
            with logging_errors(), automatically():
                setattr(self, _OWN, _Commits(self))

    return __init__


def _recording(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def commit(self: Any, epoch: int, step: int, global_step: int, data: Data) -> None:
        own = getattr(self, _OWN)
        if own is not None:
            own.record(global_step, data)
        original(self, epoch, step, global_step, data)

    return commit


def _delivering(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def close(self: Any) -> None:
        if getattr(self, _OWN) is not None:
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        original(self)

    return close


def attach(trainer: _Trainer) -> None:
    """Put an ``OtelStatsLogger`` around the trainer's ``StatsLogger``. Idempotent."""
    if not isinstance(trainer.stats_logger, OtelStatsLogger):
        trainer.stats_logger = OtelStatsLogger(trainer.stats_logger)


def _is_first_rank() -> bool:
    """Report whether AReaL logs in this process: all ranks have the same metrics by then."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not hasattr(distributed, "is_initialized"):  # a torch without it
        return True
    return not distributed.is_initialized() or distributed.get_rank() == 0
