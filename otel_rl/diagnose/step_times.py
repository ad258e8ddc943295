"""Times of steps: by their critical paths, by what the program reports, or by spans alone.

Spans come some seconds after their end, and those of several steps at once. So the time from the
news of one step to that of the next is off by as much, but the spans' own durations are not.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Final

from otel_rl.diagnose.classify import only_waits
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.history.timings import as_seconds, is_step, is_step_time
from otel_rl.diagnose.stats.pooled import pooled
from otel_rl.diagnose.thresholds import A_FEW, HALF

_ALL: Final = (0.8, 1.25)  # range of the sum over the time from step to step, if it is all of it


def step_time(history: RunHistory) -> Track:
    of_paths = history.once("time of paths", None, lambda: _of_paths(history))
    if of_paths.values:
        return of_paths
    for key, rows in history.rows.items():
        if key.endswith("/iteration/duration"):
            return rows
    named = (as_seconds(*one) for one in sorted(history.rows.items()) if is_step_time(one[0]))
    found = next(named, None)
    if found is not None:
        return found
    return _of_spans(history) if history.is_told_by_spans else _of_whole_steps(history)


def _of_paths(history: RunHistory) -> Track:
    track = Track()
    for step in history.steps:
        track.add(step.step, 0.0, sum(seconds for *_, seconds in step.path))
    return track


def _of_spans(history: RunHistory) -> Track:
    """Return the time of each step, for a run whose steps only spans report."""
    news = between_steps(history)
    sums = _sums(history, median(news.values) if news.values else 0.0)
    return sums if 2 * len(sums.values) > len(news.values) else news


def _sums(history: RunHistory, usual_s: float) -> Track:
    """Return the time of each ended step that has a span around it.

    Args:
        usual_s: Usual time from step to step. The result is empty if the worker's parts add up to
            another time: it then does other work beside them, or several parts at once.
    """
    whole = {
        worker: track
        for place, of in sorted(history.spans.items())
        if is_step(place.phase)
        for worker, track in of.items()
    }
    if not whole:
        return Track()
    worker, ended = max(whole.items(), key=lambda one: len(one[1].steps))
    parts = [place for place, of in history.spans.items() if worker in of]
    sums: dict[int, float] = defaultdict(float)
    for place in parts:
        for step, seconds in history.seconds_of(place, worker).items():
            sums[step] += seconds
    found, known = Track(), {*ended.steps}
    for step, seconds in sorted(sums.items()):
        if step in known:
            found.add(step, 0.0, seconds)
    is_all = found.values and _ALL[0] * usual_s <= median(found.values) <= _ALL[1] * usual_s
    return found if is_all else Track()


def _of_whole_steps(history: RunHistory) -> Track:
    """Return the time of spans around whole steps, in which parts are not nested."""
    rhythm = Rhythm.of(history)
    whole = [
        pooled(history, place)
        for place in sorted(history.spans)
        if is_step(place.phase) and only_waits(history, place)
    ]
    long = [
        track
        for track in whole
        if rhythm and track.values and median(track.values) >= HALF * rhythm.usual_s
    ]
    return max(long, key=lambda track: len(track.values), default=Track())


def between_steps(history: RunHistory) -> Track:
    """Return the time from the first news of each step to that of the next one."""
    track = Track()
    known = sorted(history.known_steps) if history.has_gaps else []
    for (step, begun_s), (later, next_s) in pairwise(sorted(history.begun_s.items())):
        steps = bisect_left(known, later) - bisect_left(known, step) if known else later - step
        track.add(step, 0.0, (next_s - begun_s) / max(1, steps))
    return track


def told_step_time(history: RunHistory) -> Track:
    """Return the time of each step, by the time of its report where nothing measures it."""
    measured = step_time(history)
    return measured if measured.values else between_steps(history)


def usual_step_s(history: RunHistory) -> float:
    """Return the usual time of a step, in s; 0 if none is known."""
    return median(step_time(history).finite().values or [0.0])


def traces_of(history: RunHistory, since: int, count: int = A_FEW) -> list[str]:
    steps = [step for step in history.steps if step.step >= since and step.trace_id]
    steps.sort(key=lambda step: -sum(seconds for *_, seconds in step.path))
    return [step.trace_id for step in steps[:count]]
