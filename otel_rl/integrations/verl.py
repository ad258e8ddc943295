"""verl: a backend of ``Tracking``.

    VERL_USE_EXTERNAL_MODULES=otel_rl.integrations.verl
    trainer.logger=["console","otel_rl"]

verl imports this module when it is imported itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Final, Protocol

import otel_rl
from otel_rl.integrations.recorder import Recorder, automatically, is_instrumented, saying, start
from otel_rl.worker.naming import Who

__all__ = ["NAME", "OtelLogger", "always", "register"]

NAME: Final = "otel_rl"
"""The backend's name in ``trainer.logger``."""

_FLUSH_TIMEOUT_S: Final = 5.0

_ALWAYS: Final = "_always_reports"

_is_always = False


class _Tracking(Protocol):
    """verl's ``Tracking``, as far as it is needed."""

    logger: dict[str, object]


class OtelLogger:
    """One of the loggers that ``Tracking`` hands its data to.

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
        start(Who(project, experiment, "trainer"))
        self._recorder = Recorder("verl")
        if config:
            self._recorder.config(config)

        self._has_news = True

    def log(self, data: Mapping[str, object], step: int) -> None:
        """Record a step's metrics."""
        self._recorder.record(data, step)
        self._has_news = True

    def finish(self, exit_code: object = 0) -> None:
        """Wait for delivery of what was logged since the last call.

        verl calls it for the loggers that it knows, so ``register`` does it for this one. Ray ends
        the process of verl's trainer without its exit handlers.

        Args:
            exit_code: Other than 0 if the training failed: the run has crashed.
        """
        if exit_code:
            otel_rl.finish("crashed")
            self._has_news = True
        if self._has_news:
            self._has_news = False
            otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


def register(tracking: type, generations: type | None = None) -> None:
    """Make ``Tracking`` take the name ``otel_rl``. Idempotent.

    Args:
        tracking: verl's class.
        generations: verl's ``ValidationGenerationsLogger``, if it has one: the run then gets the
            generations of each validation as its table ``validation``.
    """
    supported: list[str] = tracking.supported_backend  # type: ignore[attr-defined]  # verl's
    if NAME not in supported:
        supported.append(NAME)
        tracking.__init__ = _joining(tracking.__init__)  # type: ignore[misc]  # that is the point
        for last in ("finish", "__del__"):  # older ones have the second only
            if last in vars(tracking):
                setattr(tracking, last, _finishing(getattr(tracking, last)))
                break
        if generations is not None:
            generations.log = _sampling(generations.log)  # type: ignore[attr-defined]  # verl's


def always(tracking: type) -> None:
    """Have every ``Tracking`` report, whatever ``trainer.logger`` names. Nothing is raised then.

    Args:
        tracking: verl's class, registered.
    """
    global _is_always  # of verl, which has one class
    _is_always = True
    setattr(tracking, _ALWAYS, True)


def _joining(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(  # noqa: N807  # it becomes one
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
            with saying(), automatically():
                self.logger[NAME] = OtelLogger(project_name, experiment_name, config)

    return __init__


def _finishing(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def finish(self: _Tracking, *arguments: object, **named: object) -> None:
        # One whose __init__ has failed has none.
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
