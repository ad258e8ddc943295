"""Tunix adapter: a backend of its ``MetricsLogger``.

    MetricsLoggerOptions(
        log_dir, backend_kwargs={"custom_backend": [otel_rl.integrations.tunix.OtelBackend]}
    )

Backends given there replace Tunix's own.
"""

from functools import wraps
from typing import Any, Final

from tunix.sft import metrics_logger  # type: ignore[import-not-found]  # no dependency

import otel_rl
from otel_rl.integrations.adapter import (
    Recorder,
    WorkerNames,
    automatically,
    is_instrumented,
    logging_errors,
    start,
)

__all__ = ["OtelBackend", "always"]

_FLUSH_TIMEOUT_S: Final = 5.0

_MARK: Final = "_adds_otel_rl"


class OtelBackend:
    """Records scalars in the first process, the only one with backends.

    Args:
        experiment: Default ``OTEL_RL_EXPERIMENT``.
        trial: One run of it; default ``OTEL_RL_TRIAL``.
        role: Default ``OTEL_RL_ROLE``, else ``trainer``.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """

    def __init__(
        self, experiment: str | None = None, trial: str | None = None, role: str | None = None
    ) -> None:
        start(WorkerNames(role="trainer"), WorkerNames(experiment, trial, role))
        self._recorder = Recorder("tunix")

    def log_scalar(self, event: str, value: object, **named: Any) -> None:
        """Record a value that JAX's monitoring passes on."""
        step = named.get("step")
        # Evaluations repeat the training's step, later than its row waits.
        is_evaluation = "/eval/" in event
        self._recorder.record(
            {event.lstrip("/"): value}, None if is_evaluation or step is None else int(step)
        )

    def close(self) -> None:
        """Wait for delivery; the process may still record."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)


def always() -> None:
    """Add an ``OtelBackend`` to every ``MetricsLogger``. It never raises then. Idempotent."""
    options = metrics_logger.MetricsLoggerOptions
    original = options.create_backends
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def create_backends(self: Any) -> list[Any]:
        backends: list[Any] = original(self)
        has_own = any(isinstance(backend, OtelBackend) for backend in backends)
        # Tunix gives backends to the first process alone.
        if backends and not has_own and not is_instrumented():
            with logging_errors(), automatically():
                start(WorkerNames(self.project_name, self.run_name or None, "trainer"))
                backends = [*backends, OtelBackend()]
        return backends

    setattr(create_backends, _MARK, True)
    options.create_backends = create_backends
