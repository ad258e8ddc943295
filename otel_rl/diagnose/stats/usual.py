"""Usual time of a phase: that of the worker whose median is the longest."""

from statistics import median

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory

__all__ = ["usual_time"]


def usual_time(history: RunHistory, place: PhaseKey) -> float:
    """Return the usual time of a phase, in s; 0 if it has none."""

    def longest() -> float:
        of = history.spans.get(place, {}).values()
        return max((median(track.values) for track in of if track.values), default=0.0)

    return history.once("usual time", place, longest)
