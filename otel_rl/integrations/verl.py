"""verl adapter: a backend of ``Tracking``.

    VERL_USE_EXTERNAL_MODULES=otel_rl.integrations.verl
    trainer.logger=["console","otel_rl"]

verl imports this module at its own import.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Final, Protocol

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    automatically,
    is_instrumented,
    logging_errors,
    start,
)

__all__ = ["NAME", "OtelLogger", "always", "register"]

NAME: Final = "otel_rl"
"""Name of the backend in ``trainer.logger``."""

_FLUSH_TIMEOUT_S: Final = 5.0

_ALWAYS: Final = "_always_reports"

_is_always = False


class _Tracking(Protocol):
    """Used part of verl's ``Tracking``."""

    logger: dict[str, object]


class OtelLogger:
    """Logger backend of ``Tracking``.

    Args:
        project: The experiment, if the environment names none.
        experiment: The trial, if the environment names no experiment.
        config: Hyper-parameters.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """

    def __init__(
        self, project: str, experiment: str, config: Mapping[str, object] | None = None
    ) -> None:
        start(WorkerNames(project, experiment, "trainer"), is_alone=True)
        self._recorder = Recorder("verl")
        if config:
            self._recorder.config(config)

        self._has_unsent = True

    def log(self, data: Mapping[str, object], step: int) -> None:
        """Record a step's metrics."""
        self._recorder.record(data, step)
        self._has_unsent = True

    def finish(self, exit_code: object = 0) -> None:
        """Wait for delivery of metrics since the last call.

        verl calls it only for its own loggers, so ``register`` adds the call for this one. Ray ends
        the process of verl's trainer without its exit handlers.

        Args:
            exit_code: Non-zero if the training failed: the run has crashed.
        """
        if exit_code:
            otel_rl.finish("crashed", timeout_s=_FLUSH_TIMEOUT_S)
        elif self._has_unsent:
            self._has_unsent = False
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


def register(tracking: type, generations: type | None = None) -> None:
    """Make ``Tracking`` accept the name ``otel_rl``. Idempotent.

    Args:
        tracking: verl's class.
        generations: verl's ``ValidationGenerationsLogger``, if it has one: the run then gets the
            generations of each validation as its table ``validation``.
    """
    supported: list[str] = tracking.supported_backend  # type: ignore[attr-defined]  # verl's
    if NAME not in supported:
        supported.append(NAME)
        tracking.__init__ = _joining(tracking.__init__)  # type: ignore[misc]  # intended
        for last in ("finish", "__del__"):  # older versions have the second only
            if last in vars(tracking):
                setattr(tracking, last, _finishing(getattr(tracking, last)))
                break
        if generations is not None:
            generations.log = _sampling(generations.log)  # type: ignore[attr-defined]  # verl's


def always(tracking: type) -> None:
    """Make every ``Tracking`` report, independent of ``trainer.logger``. It never raises then.

    Args:
        tracking: verl's class, registered.
    """
    global _is_always  # per process: verl has one class
    _is_always = True
    setattr(tracking, _ALWAYS, True)


def _joining(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(  # noqa: N807  # replaces one
        self: _Tracking,
        project_name: str,
        experiment_name: str,
        default_backend: str | Iterable[str] = "console",
        config: Mapping[str, object] | None = None,
        *arguments: object,
        **named: object,
    ) -> None:
        original(self, project_name, experiment_name, default_backend, config, *arguments, **named)
        wanted = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        if NAME in wanted:
            self.logger[NAME] = OtelLogger(project_name, experiment_name, config)
        elif getattr(type(self), _ALWAYS, False) and not is_instrumented():
            with logging_errors(), automatically():
                self.logger[NAME] = OtelLogger(project_name, experiment_name, config)

    return __init__


def _finishing(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def finish(self: _Tracking, *arguments: object, **named: object) -> None:
        # Missing if __init__ has failed.
        own = getattr(self, "logger", {}).get(NAME)
        if isinstance(own, OtelLogger):
            own.finish(named.get("exit_code", arguments[0] if arguments else 0))
        original(self, *arguments, **named)

    return finish


def _sampling(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def log(
        self: object,
        loggers: Iterable[str],
        samples: Iterable[Sequence[object]],
        step: int,
        *arguments: object,
        **named: object,
    ) -> None:
        original(self, loggers, samples, step, *arguments, **named)
        if NAME in loggers or _is_always:
            fields = ("input", "output", "score")
            otel_rl.log_samples(
                (dict(zip(fields, sample, strict=False)) for sample in samples), step, "validation"
            )

    return log


def _register_with_verl() -> None:
    try:
        from verl.utils import tracking  # type: ignore[import-not-found]  # no dependency
    except ImportError:
        return  # imported for register() alone
    register(tracking.Tracking, getattr(tracking, "ValidationGenerationsLogger", None))


_register_with_verl()
