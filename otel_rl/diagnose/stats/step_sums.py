"""Times of steps from spans alone: the own times of all parts of a worker's step, added up.

Spans come some seconds after their end, and those of several steps at once. So the time from the
news of one step to that of the next is off by as much, but the spans' own durations are not.
"""

from collections import defaultdict
from statistics import median
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.history.timings import is_step
from otel_rl.diagnose.history.track import Track

_ALL: Final = (0.8, 1.25)  # range of the sum over the time from step to step, if it is all of it


def step_sums(history: RunHistory, usual_s: float) -> Track:
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
