"""Series of a whole role: the geometric mean over its workers in each step."""

from collections import defaultdict
from collections.abc import Mapping
from math import exp, log
from statistics import fmean

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.track import Track


def together(tracks: Mapping[str, Track]) -> Track:
    """Return the geometric mean over the workers, in each step."""
    of_step: dict[int, list[float]] = defaultdict(list)
    for track in tracks.values():
        for step, value in zip(track.steps, track.values, strict=True):
            if value > 0:
                of_step[step].append(log(value))
    steps = sorted(of_step)
    return Track.of(steps, [0.0] * len(steps), (exp(fmean(of_step[step])) for step in steps))


def pooled(history: RunHistory, place: PhaseKey) -> Track:
    """Return the geometric mean over a phase's workers, in each step."""
    return history.once("pooled", place, lambda: together(history.spans[place]))
