"""Detector of phases that are not in every step, such as checkpoints, and take longer than before.

They happen too rarely for statistics. So either all later ones, two at least, must take far longer
than all before; or nearly each one must take longer than the one before it, and the last far longer
than the first, also for the work of its step. A single one proves nothing: an additional
evaluation, or a save to a busy disk.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations
from math import sqrt
from statistics import median

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.detectors.slow_phases import slower
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.stats.levels import medians
from otel_rl.diagnose.step_times import usual_step_s
from otel_rl.diagnose.thresholds import (
    A_FEW,
    BEYOND_NOISE,
    FAR,
    HALF,
    LONGER,
    NEARLY_ALL,
    SIDE,
)
from otel_rl.goodput import duration

_FAR = 2.5  # times the longest before
_FAR_OF_ONE = 3.5  # the same after a single one, if all since then are alike


def rare_phases(history: RunHistory) -> Iterator[Cause]:
    """Find rare phases that take far longer than all earlier ones."""
    usual_s = usual_step_s(history)
    for place, tracks in history.spans.items():
        if only_waits(history, place) and work_of(place) is not Work.SYNC:
            continue
        longest: dict[int, float] = defaultdict(float)
        for track in tracks.values():
            for step, value in track.pairs():
                longest[step] = max(longest[step], value)
        if len(longest) > HALF * (history.last - history.first + 1):
            continue
        columns = sorted(longest.items())
        values = [value for _, value in columns]
        most, least = [*accumulate(values, max)], [*accumulate(reversed(values), min)][::-1]
        for cut in range(1, len(columns) - 1):  # one alone proves nothing
            if least[cut] < max(_FAR * most[cut - 1], HALF * usual_s + most[cut - 1]):
                continue
            before, after = values[:cut], values[cut:]
            if not median(before) or least[cut] < _far(before, after) * most[cut - 1]:
                continue
            yield _cause(history, place, columns[cut][0], median(before), median(after))
            break
        else:
            if (
                _grows(values)
                and values[-1] >= HALF * usual_s + values[0]
                and _grows_beyond_work(history, place, columns)
            ):
                yield _cause(history, place, columns[1][0], values[0], values[-1])


def _far(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how many times as long a later phase must take."""
    if len(before) > 1:
        return _FAR
    is_alike = len(after) >= A_FEW and max(after) <= LONGER * min(after)
    return _FAR_OF_ONE if is_alike else BEYOND_NOISE


def _grows(values: Sequence[float]) -> bool:
    """Return whether a phase takes longer and longer, and far longer in the end."""
    if len(values) < SIDE or values[-1] < FAR * values[0]:
        return False
    pairs = [earlier < later for earlier, later in combinations(values, 2)]
    return sum(pairs) >= NEARLY_ALL * len(pairs)


def _grows_beyond_work(
    history: RunHistory, place: PhaseKey, columns: Sequence[tuple[int, float]]
) -> bool:
    """Return whether a phase takes far longer for the work of its step, which may have grown.

    An evaluation takes longer as answers grow. Work is compared only between the ends: it varies
    from step to step by more than times that grow a little each time.
    """
    (first, begun_s), (last, now_s) = columns[0], columns[-1]
    before, after = Workload(history).parts(place, (first, last))
    return now_s / after >= FAR * begun_s / before


def _is_longer(track: Track, since: int, before_s: float, after_s: float) -> bool:
    """Return whether a worker's own values since then are nearer to the later time."""
    found = medians(track, since)
    return found is None or found[1] >= sqrt(before_s * after_s)


def _cause(
    history: RunHistory, place: PhaseKey, since: int, before_s: float, after_s: float
) -> Cause:
    of = history.spans[place]
    longer = [name for name, track in of.items() if _is_longer(track, since, before_s, after_s)]
    worker = longer[0] if len(longer) == 1 else None
    return slower(
        history,
        place,
        worker,
        f"{place.phase} of {worker or place.role}, which is not in every step, takes "
        f"{after_s / before_s:.1f} times as long since step {since}: {duration(before_s)} before, "
        f"{duration(after_s)} now",
        strength=HALF,
        levels=(before_s, after_s),
        since=since,
    )
