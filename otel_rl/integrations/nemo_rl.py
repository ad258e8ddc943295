"""NeMo-RL adapter: a ``LoggerInterface``.

logger.loggers.append(otel_rl.integrations.nemo_rl.OtelLogger())     # after setup()
"""

from collections.abc import Mapping
from typing import Final

from nemo_rl.utils.logger import (  # type: ignore[import-not-found]  # no dependency
    LoggerInterface,
)

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, guard, start

__all__ = ["OtelLogger"]

_FLUSH_TIMEOUT_S: Final = 5.0


class OtelLogger(LoggerInterface):  # type: ignore[misc]  # Any where NeMo-RL is not installed
    """Records metrics; histograms and plots stay with the other loggers.

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
        self._recorder = Recorder("nemo_rl")

    def log_metrics(
        self,
        metrics: Mapping[str, object],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Record metrics at ``step``; those with an axis of their own by their time."""
        del step_finished
        with guard:
            has_axis = step_metric is not None and step_metric in metrics
            named = {
                f"{prefix}/{name}" if prefix else name: value
                for name, value in metrics.items()
                if name != step_metric
            }
            self._recorder.record(named, None if has_axis else step)

    def log_hyperparams(self, params: Mapping[str, object]) -> None:
        """See ``Recorder.config``."""
        self._recorder.config(params)

    def log_histogram(self, histogram: list[object], step: int, name: str) -> None:
        """Ignore it: one step's histogram is not a metric."""

    def log_plot(self, figure: object, step: int, name: str) -> None:
        """Ignore it: a run holds numbers."""

    def finish(self) -> None:
        """Wait for delivery; the process may still record."""
        otel_rl.flush(timeout_s=_FLUSH_TIMEOUT_S)
