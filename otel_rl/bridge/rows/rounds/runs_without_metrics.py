"""Ended runs without any metric of their program, each of which is logged once."""

import logging
from collections.abc import Collection, Iterable

from otel_rl.bridge.rows.loaded_run import LoadedRun
from otel_rl.records import ExperimentKey, ExperimentStatus

__all__ = ["NO_METRIC_HINT", "RunsWithoutMetrics"]

_log = logging.getLogger(__name__)

NO_METRIC_HINT = (
    "Its workers reported liveness, but no metric. Did the program end before it logged, "
    "log to another library only, or log values that are no numbers? "
    "See `otel-rl help quickstart`."
)


class RunsWithoutMetrics:
    """Remembers ended runs without metrics, until they have one or are let go."""

    def __init__(self) -> None:
        self._keys: set[ExperimentKey] = set()

    @property
    def keys(self) -> Collection[ExperimentKey]:
        """Return them, sorted."""
        return sorted(self._keys)

    def look(self, key: ExperimentKey, run: LoadedRun, status: ExperimentStatus | None) -> None:
        """Warn about a run that has ended without metrics."""
        if status in {None, ExperimentStatus.RUNNING} or run.aligner.standing.has_metrics:
            self._keys.discard(key)
        elif key not in self._keys:
            self._keys.add(key)
            _log.warning("%s ended with no metric. %s", key, NO_METRIC_HINT)

    def let_go(self, keys: Iterable[ExperimentKey]) -> None:
        """Forget runs that are not in use. Any thread may call it."""
        for key in keys:
            self._keys.discard(key)
