"""SkyRL adapter: wraps the configured tracker.

class Experiment(BasePPOExp):
    def get_tracker(self):
        return otel_rl.integrations.skyrl.OtelTracker(super().get_tracker())
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, start

__all__ = ["OtelTracker"]

_FLUSH_TIMEOUT_S: Final = 5.0


class _Tracking(Protocol):
    """Used part of SkyRL's ``Tracking``."""

    def log(self, data: Any, step: int, commit: bool = False) -> None: ...

    def finish(self) -> None: ...


class OtelTracker:
    """Records metrics, then forwards them. Everything else is delegated to the original.

    Args:
        original: SkyRL's own tracker.
        experiment: Default ``OTEL_RL_EXPERIMENT``.
        trial: One run of it; default ``OTEL_RL_TRIAL``.
        role: Default ``OTEL_RL_ROLE``, else ``trainer``.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """

    def __init__(
        self,
        original: _Tracking,
        experiment: str | None = None,
        trial: str | None = None,
        role: str | None = None,
    ) -> None:
        start(WorkerNames(role="trainer"), WorkerNames(experiment, trial, role))
        self._original = original
        self._recorder = Recorder("skyrl")

    def log(self, data: Mapping[str, object], step: int, commit: bool = False) -> None:
        """Record a step's metrics."""
        self._recorder.record(data, step)
        self._original.log(data, step=step, commit=commit)

    def log_exception(self, e: BaseException, step: int = 0) -> None:
        """Report the crash of the run and wait for delivery, then forward.

        SkyRL raises ``e`` again right after it, in a process that Ray may kill immediately.
        """
        otel_rl.finish("crashed", timeout_s=_FLUSH_TIMEOUT_S)
        original = getattr(self._original, "log_exception", None)
        if original is not None:  # absent in older versions
            original(e, step=step)

    def finish(self) -> None:
        """Wait for delivery, then end the original."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
        self._original.finish()

    def __getattr__(self, name: str) -> Any:  # whatever the original has
        if name.startswith("__") or name == "_original":
            raise AttributeError(name)
        return getattr(self._original, name)
