"""Series of a whole role, the geometric mean over its workers in each step, and its usual time."""

from collections import defaultdict
from collections.abc import Mapping
from math import exp, log
from statistics import fmean, median

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.track import Track


def together(tracks: Mapping[str, Track]) -> Track:
    """Return the geometric mean over the workers, in each step."""
    of_step: dict[int, list[float]] = defaultdict(list)
    for track in tracks.values():
        for step, value in track.pairs():
            if value > 0:
                of_step[step].append(log(value))
    steps = sorted(of_step)
    return Track.of(steps, [0.0] * len(steps), (exp(fmean(of_step[step])) for step in steps))


def pooled(history: RunHistory, place: PhaseKey) -> Track:
    """Return the geometric mean over a phase's workers, in each step."""
    return history.once("pooled", place, lambda: together(history.spans[place]))


def usual_time(history: RunHistory, place: PhaseKey) -> float:
    """Return the usual time of a phase, in s; 0 if the phase has none."""

    def longest() -> float:
        of = history.spans.get(place, {}).values()
        return max((median(track.values) for track in of if track.values), default=0.0)

    return history.once("usual time", place, longest)
