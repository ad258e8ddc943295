"""Usual time of a phase: that of the worker with the longest median."""

from statistics import median

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory


def usual_time(history: RunHistory, place: PhaseKey) -> float:
    """Return the usual time of a phase, in s; 0 if the phase has none."""

    def longest() -> float:
        of = history.spans.get(place, {}).values()
        return max((median(track.values) for track in of if track.values), default=0.0)

    return history.once("usual time", place, longest)
