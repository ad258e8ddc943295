"""torchforge adapter: a ``LoggerBackend``.

    import otel_rl.integrations.forge

    otel_rl.integrations.forge.register()     # in every process, before the loggers are set up

and ``metric_logging: {otel_rl: {logging_mode: per_rank_no_reduce}}``: each rank then reports every
value that it records, and the bridge reduces them.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, Protocol

from forge.observability.metrics import (  # type: ignore[import-not-found]  # no dependency
    LoggerBackend,
)

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    Reduction,
    WorkerNames,
    automatically,
    guard,
    logging_errors,
    start,
)

__all__ = ["NAME", "OtelBackend", "register", "register_always"]

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

_FLUSH_TIMEOUT_S: Final = 5.0

_MODULES: Final = ("forge.observability.metrics", "forge.observability.metric_actors")
"""Both look up backends by name, the second through its own import of the function."""

_MARK: Final = "_knows_otel_rl"


class _Metric(Protocol):
    """Used part of torchforge's ``Metric``."""

    key: str
    value: object
    reduction: Any  # an enum of the framework


class OtelBackend(LoggerBackend):  # type: ignore[misc]  # Any where torchforge is not installed
    """Reports as a worker; the process name contains its role."""

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
        start(WorkerNames(self.backend_kwargs.get("project"), role=role_of(process_name)))
        self._recorder = Recorder("forge")

    async def log_batch(
        self, metrics: list[_Metric], global_step: int, *_arguments: object, **_named: object
    ) -> None:
        """Record metrics reduced by torchforge."""
        for metric in metrics:
            # The spread of all values cannot be computed from per-rank spreads.
            self._record(metric, global_step, spread="mean")

    def log_stream(
        self, metric: _Metric, global_step: int, *_arguments: object, **_named: object
    ) -> None:
        """Record one value immediately."""
        self._record(metric, global_step, spread="std")

    async def finish(self) -> None:
        """Wait for delivery; the process may still record."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)

    def _record(self, metric: _Metric, step: int, *, spread: str) -> None:
        with guard:
            given = getattr(metric, "reduction", None)
            reduction = str(getattr(given, "value", given))
            reduce = spread if reduction == "std" else reduction
            known = reduce if reduce in tuple(Reduction) else None
            self._recorder.record({metric.key: metric.value}, step, known)


def register() -> None:
    """Register the name ``otel_rl`` with torchforge. Idempotent."""
    for name in _MODULES:
        module: Any = sys.modules.get(name)
        if module is not None and not hasattr(module.get_logger_backend_class, _MARK):
            module.get_logger_backend_class = _knowing(module.get_logger_backend_class)


def register_always() -> None:
    """Make every rank report, independent of ``metric_logging``. Idempotent; never raises.

    A torchforge without ``LoggingMode`` creates its backends differently and is left unchanged.
    """
    register()
    module: Any = sys.modules[_MODULES[0]]
    collector, modes = (
        getattr(module, "MetricCollector", None),
        getattr(module, "LoggingMode", None),
    )
    if collector is None or modes is None or hasattr(collector.init_backends, _MARK):
        return
    original = collector.init_backends

    @wraps(original)
    async def init_backends(
        self: Any, metadata: Any, config: Any, *arguments: Any, **named: Any
    ) -> None:
        with logging_errors():
            if NAME not in config:
                mode = {"logging_mode": modes.PER_RANK_NO_REDUCE}
                config = {**config, NAME: mode}
        with automatically():
            await original(self, metadata, config, *arguments, **named)

    setattr(init_backends, _MARK, True)
    collector.init_backends = init_backends


def role_of(process_name: str | None) -> str:
    """Return the role in a process name, e.g. ``RLTrainer_1abc2def_r0``."""
    words = (process_name or "client").split("_", 1)[0].lower()
    return next((role for word, role in _ROLES.items() if word in words), words or "worker")


def _knowing(original: Callable[[str], type]) -> Callable[[str], type]:
    @wraps(original)
    def get_logger_backend_class(cls_name: str) -> type:
        return OtelBackend if cls_name == NAME else original(cls_name)

    setattr(get_logger_backend_class, _MARK, True)
    return get_logger_backend_class
