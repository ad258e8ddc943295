"""Usual time of a phase: that of the worker whose median is the longest."""

from collections.abc import Mapping
from statistics import median

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.stats.growth import Growth

__all__ = ["usual_time"]

_BYTES = 64


class _Longest:
    """Longest median of series that grow: many rules ask for it at each look."""

    def __init__(self) -> None:
        self._growth = Growth()
        self._usual_s = 0.0

    def of(self, tracks: Mapping[str, Track]) -> float:
        """Return it, in the unit of the series; 0 without values."""
        if self._growth.first_new(tracks) is not None:
            medians = (median(track.values) for track in tracks.values() if track.values)
            self._usual_s = max(medians, default=0.0)
        return self._usual_s

    def memory_bytes(self) -> int:
        """Return the memory of what is kept."""
        return _BYTES


def usual_time(history: RunHistory, place: PhaseKey) -> float:
    """Return the usual time of a phase, in s, as far as it is known from earlier looks."""
    return history.derived(_Longest, place).of(history.spans.get(place, {}))
