"""Detector of a role, or of one of two workers, that was slow only for a while.

No level changes for good. With three or more workers, ``recurring`` finds the one that is slower
than its peers. The slow steps are found as the stretch of values that are longest, and longer than
all others.
"""

from collections.abc import Iterator, Sequence
from math import log, sqrt
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.detectors.slow_phases import added_s, slower
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.logged_work import with_logged_work
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.stats.changes import LEAST_DIVISOR, spread
from otel_rl.diagnose.stats.levels import settled
from otel_rl.diagnose.stats.pooled import pooled
from otel_rl.diagnose.step_times import usual_step_s
from otel_rl.diagnose.thresholds import (
    BEYOND_NOISE,
    FEWEST_SINCE,
    FEWEST_VARYING,
    LEAST_PART,
    LONGER,
    MOSTLY,
    SEVERAL,
    UNLIKE,
)

_TWO: Final = 2  # workers: neither has peers, and their mean may show nothing


class _Slow(NamedTuple):
    """Part of a series that is longer than the rest.

    Attributes:
        since: First step of the part.
        until: First step after the part.
        usual: Median of the rest.
        now: Median of the part.
    """

    since: int
    until: int
    usual: float
    now: float


def passing_slowdowns(history: RunHistory) -> Iterator[Cause]:
    """Find phases of roles or workers that took longer for some steps, and then no more."""
    history = with_logged_work(history)
    load = Workload(history)
    least_s = LEAST_PART * usual_step_s(history)
    for place, tracks in history.spans.items():
        if only_waits(history, place) and work_of(place) is not Work.SYNC:
            continue
        of_role = pooled(history, place)
        found = _passing(settled(load.eased(place, of_role)))
        if found is not None and not _has(of_role, found):
            found = None  # only the work changed, which this phase does not depend on
        if found is None and len(tracks) != _TWO:
            continue
        own = {worker: settled(load.eased(place, track)) for worker, track in tracks.items()}
        slow = [worker for worker, track in own.items() if _has(track, found)]
        worker = slow[0] if len(slow) == 1 < len(own) else None
        if worker is not None:
            found = _passing(own[worker]) or found
        if found is not None and added_s(history, place, worker, found.usual, found.now) >= least_s:
            yield _cause(history, place, worker, found)


def _has(track: Track, found: _Slow | None) -> bool:
    """Return whether the worker was slow while its role was, or at all if the role was not."""
    if found is None:
        return _passing(track) is not None
    columns = [*track.pairs()]
    inside = [value for step, value in columns if found.since <= step < found.until]
    others = [value for step, value in columns if not found.since <= step < found.until]
    return bool(inside and others) and median(inside) >= sqrt(found.now / found.usual) * median(
        others
    )


def _passing(track: Track) -> _Slow | None:
    """Return the part of a series that is clearly longer than what is before and after it."""
    found = _longest(track.values)
    if found is None:
        return None
    begin, end = found
    inside = track.values[begin:end]
    others = [*track.values[:begin], *track.values[end:]]
    usual = median(others)
    least = usual * max(LONGER, 1 + BEYOND_NOISE * spread(others) / usual)
    if len(inside) < SEVERAL and min(inside) < UNLIKE * max(others):
        return None
    if len({*track.steps[begin:end]}) < FEWEST_SINCE:
        return None  # several values of a step have one reason
    is_clear = sum(value >= least for value in inside) >= MOSTLY * len(inside)
    is_apart = sum(value >= least for value in others) <= (1 - MOSTLY) / 2 * len(others)
    cost = sum(value - usual for value in inside) / max(LEAST_DIVISOR, sum(track.values))
    if not (is_clear and is_apart and cost >= LEAST_PART):
        return None
    return _Slow(track.steps[begin], track.steps[end], usual, median(inside))


def _longest(values: Sequence[float]) -> tuple[int, int] | None:
    """Return the stretch that is most above the median, if it lies within the series."""
    if len(values) < FEWEST_SINCE + FEWEST_VARYING or min(values) <= 0:
        return None
    middle = median(values)
    above = [log(value / middle) - log(LONGER) / 2 for value in values]
    best, total, begin, found = 0.0, 0.0, 0, (0, 0)
    for place, one in enumerate(above):
        if total <= 0:
            total, begin = 0.0, place
        total += one
        if total > best:
            best, found = total, (begin, place + 1)
    first, end = found
    is_within = first >= FEWEST_SINCE and len(values) - end >= FEWEST_SINCE
    return found if end - first >= FEWEST_SINCE and is_within else None


def _cause(history: RunHistory, place: PhaseKey, worker: str | None, found: _Slow) -> Cause:
    since, until, usual, now = found
    return slower(
        history,
        place,
        worker,
        f"{place.phase} of {worker or place.role} took {now / usual:.1f} times as long in steps "
        f"{since} to {until - 1}; over since step {until}",
        levels=(usual, now),
        since=since,
        until=until,
    )
