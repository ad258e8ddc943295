"""torchforge adapter: a ``LoggerBackend``.

    import otel_rl.integrations.forge

    otel_rl.integrations.forge.register()     # in every process, before the loggers are set up

and ``metric_logging: {otel_rl: {logging_mode: per_rank_no_reduce}}``: each rank then reports every
value that it records, and the bridge reduces them.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from forge.observability.metrics import (  # type: ignore[import-not-found]  # no dependency
    LoggerBackend,
)

from otel_rl.integrations.adapter import (
    Recorder,
    Reduction,
    WorkerNames,
    automatic,
    deliver,
    guard,
    start,
    wrap,
)

__all__ = ["NAME", "OtelBackend", "always", "register"]

NAME: Final = "otel_rl"
"""Name of the backend in ``metric_logging``."""

_ROLES: Final = {
    "trainer": "trainer",
    "generator": "generator",
    "policy": "generator",
    "buffer": "replay_buffer",
    "reward": "reward",
    "reference": "reference",
    "controller": "orchestrator",
    "client": "orchestrator",
}
"""Maps a word in the process name to the role."""

_MODULES: Final = ("forge.observability.metrics", "forge.observability.metric_actors")
"""Both look up backends by name, the second through its own import of the function."""

_AUTOMATIC: Final = "is_automatic"
"""Argument of a backend that nobody has asked for."""


class OtelBackend(LoggerBackend):  # type: ignore[misc]  # Any where torchforge is not installed
    """Reports as a worker, whose role is in the process name."""

    async def init(
        self,
        role: object,
        controller_logger_metadata: dict[str, object] | None = None,
        process_name: str | None = None,
    ) -> None:
        """Start the worker.

        Raises:
            ConfigError: See ``otel_rl.init``.
        """
        del role, controller_logger_metadata

        def begin() -> Recorder:
            start(WorkerNames(self.backend_kwargs.get("project"), role=role_of(process_name)))
            return Recorder("forge")

        is_automatic = self.backend_kwargs.get(_AUTOMATIC)
        self._recorder: Recorder | None = automatic(begin) if is_automatic else begin()

    async def log_batch(
        self, metrics: list[Any], global_step: int, *_arguments: object, **_named: object
    ) -> None:
        for metric in metrics:
            # The spread of all values cannot be computed from per-rank spreads.
            self._record(metric, global_step, spread="mean")

    def log_stream(
        self, metric: Any, global_step: int, *_arguments: object, **_named: object
    ) -> None:
        self._record(metric, global_step, spread="std")

    async def finish(self) -> None:
        """Wait for delivery; the process may still record."""
        deliver()

    def _record(self, metric: Any, step: int, *, spread: str) -> None:
        if self._recorder is None:
            return
        with guard:
            given = getattr(metric, "reduction", None)
            reduction = str(getattr(given, "value", given))
            reduce = spread if reduction == "std" else reduction
            known = reduce if reduce in tuple(Reduction) else None
            self._recorder.record({metric.key: metric.value}, step, known)


def register() -> None:
    """Register the name ``otel_rl`` with torchforge. A second call does nothing."""
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            wrap(module, "get_logger_backend_class", _knowing)


def always(module: ModuleType) -> None:
    """Make every rank report, independent of ``metric_logging``. The adapter then never raises."""
    own = {"logging_mode": module.LoggingMode.PER_RANK_NO_REDUCE, _AUTOMATIC: True}
    register()

    def by(original: Callable[..., Any]) -> Callable[..., Any]:
        async def init_backends(
            collector: Any, metadata: Any, config: Any, *arguments: Any, **named: Any
        ) -> None:
            await original(collector, metadata, {NAME: own, **config}, *arguments, **named)

        return init_backends

    wrap(module.MetricCollector, "init_backends", by)


def role_of(process_name: str | None) -> str:
    """Return the role in a process name, e.g. ``RLTrainer_1abc2def_r0``."""
    words = (process_name or "client").split("_", 1)[0].lower()
    return next((role for word, role in _ROLES.items() if word in words), words or "worker")


def _knowing(original: Callable[[str], type]) -> Callable[[str], type]:
    return lambda cls_name: OtelBackend if cls_name == NAME else original(cls_name)
