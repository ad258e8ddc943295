"""verl adapter: a backend of ``Tracking``.

    VERL_USE_EXTERNAL_MODULES=otel_rl.integrations.verl
    trainer.logger=["console","otel_rl"]

verl imports this module at its own import.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    automatic,
    before,
    deliver,
    start,
    wrap,
)

__all__ = ["NAME", "OtelLogger", "always", "register"]

NAME: Final = "otel_rl"
"""Name of the backend in ``trainer.logger``."""

_is_always = False


class OtelLogger:
    """Logger backend of ``Tracking``.

    Args:
        project: The experiment, unless the environment names one.
        experiment: The trial, unless the environment names an experiment.
    """

    def __init__(
        self, project: str, experiment: str, config: Mapping[str, object] | None = None
    ) -> None:
        start(WorkerNames(project, experiment, "trainer"), is_alone=True)
        self._recorder = Recorder("verl")
        if config:
            self._recorder.config(config)

    def log(self, data: Mapping[str, object], step: int) -> None:
        self._recorder.record(data, step)

    def finish(self, exit_code: object = 0) -> None:
        """Wait for delivery; after a training that failed, the run has crashed.

        verl calls this only for its own loggers, so ``register`` adds the call for this one. Ray
        ends the process of verl's trainer without its exit handlers.
        """
        if exit_code:
            otel_rl.finish("crashed", timeout_s=5.0)
        else:
            deliver()


def register(tracking: Any, generations: Any = None) -> None:
    """Make ``Tracking`` accept the name ``otel_rl``. A second call does nothing.

    Args:
        tracking: verl's class ``Tracking``.
        generations: verl's ``ValidationGenerationsLogger``, if verl has one: the run then gets the
            generations of each validation as its table ``validation``.
    """
    if NAME in tracking.supported_backend:
        return
    tracking.supported_backend.append(NAME)
    wrap(tracking, "__init__", _joining)
    if hasattr(tracking, "finish"):
        before(tracking, "finish", _finish)
    if generations is not None:
        before(generations, "log", _sample)


def always(module: ModuleType) -> None:
    """Make every ``Tracking`` of ``verl.utils.tracking`` report, whatever ``trainer.logger`` is."""
    global _is_always  # per process: verl has one class
    _is_always = True
    register(module.Tracking, getattr(module, "ValidationGenerationsLogger", None))


def _joining(original: Callable[..., None]) -> Callable[..., None]:
    def init(
        tracking: Any,
        project_name: str,
        experiment_name: str,
        default_backend: str | Iterable[str] = "console",
        config: Mapping[str, object] | None = None,
        *arguments: object,
        **named: object,
    ) -> None:
        original(
            tracking, project_name, experiment_name, default_backend, config, *arguments, **named
        )
        wanted = [default_backend] if isinstance(default_backend, str) else list(default_backend)

        def join() -> None:
            tracking.logger[NAME] = OtelLogger(project_name, experiment_name, config)

        if NAME in wanted:
            join()
        elif _is_always:
            automatic(join)

    return init


def _finish(tracking: Any, exit_code: object = 0) -> None:
    own = getattr(tracking, "logger", {}).get(NAME)  # none if __init__ has failed
    if isinstance(own, OtelLogger):
        own.finish(exit_code)


def _sample(
    _logger: object,
    loggers: Iterable[str],
    samples: Iterable[Sequence[object]],
    step: int,
    *_: object,
    **__: object,
) -> None:
    if NAME in loggers or _is_always:
        fields = ("input", "output", "score")
        rows = (dict(zip(fields, sample, strict=False)) for sample in samples)
        otel_rl.log_samples(rows, step, "validation")


try:
    from verl.utils import tracking as _tracking  # type: ignore[import-not-found]  # no dependency
except ImportError:
    pass  # imported for register() alone
else:
    register(_tracking.Tracking, getattr(_tracking, "ValidationGenerationsLogger", None))
