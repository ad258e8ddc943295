"""Work in progress as a further observation: work that takes longer already will not take less.

So a slowdown that needs two observations has the second one before the work ends. Only open phases,
which this project's SDK reports, show since when work is in progress.
"""

from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject, is_collective, only_waits, tracks_about
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.thresholds import BARELY, FEWEST_BEFORE, FRESH_S, LEAST_LONGER

_LATE_EXPORTS: Final = 2  # without the age of the phase: an export may have several requests


class _Open(NamedTuple):
    """Work in progress.

    Attributes:
        step: Step that the work belongs to.
        at_s: Time at which the work's age was reported.
        age_s: Age of the work at that time.
    """

    place: PhaseKey
    worker: str
    step: int
    at_s: float
    age_s: float


def with_open_work(history: RunHistory) -> RunHistory:
    """Return the history with long open work as a further observation; else the same one."""
    found = [*_long_work(history)]
    if not found:
        return history
    whole = copy(history)
    whole.spans, whole.counts = copy(history.spans), copy(history.counts)
    for one in found:
        spans, counts = whole.spans[one.place], whole.counts[one.place]
        if spans is history.spans[one.place]:
            spans = whole.spans[one.place] = copy(spans)
            counts = whole.counts[one.place] = copy(counts)
        spans[one.worker], counts[one.worker] = spans[one.worker].copy(), counts[one.worker].copy()
        spans[one.worker].add(one.step, one.at_s, one.age_s)
        counts[one.worker].add(one.step, one.at_s, 1)
    whole.forget_derived({one.place for one in found})
    return whole


def _long_work(history: RunHistory) -> Iterator[_Open]:
    for key, worker, track in tracks_about(history, Subject.PHASE_AGE):
        if worker is None or not track.values:
            continue
        place = PhaseKey(worker.rpartition("/")[0], key.partition("/phase/age/")[2])
        own = history.spans.get(place, {}).get(worker)
        if own is None or len(own.values) < FEWEST_BEFORE or not _is_long(own, track):
            continue
        if only_waits(history, place) or is_collective(place):
            continue
        if is_current(history, worker, track):
            at_s, age_s = track.times_s[-1], track.values[-1]
            yield _Open(place, worker, _step(history, place, own), at_s, age_s)


def _is_long(own: Track, ages: Track) -> bool:
    """Return whether the last piece of work was long already, and the open one is, too."""
    if ages.times_s[-1] <= own.times_s[-1]:
        return False  # that has ended
    least_s = LEAST_LONGER * median(own.values)
    if min(own.values[-1], ages.values[-1]) < least_s:
        return False
    before = ages.values[: bisect_right(ages.times_s, own.times_s[-2])]
    return max(before, default=0.0) <= BARELY * max(own.values[:-1])


def _step(history: RunHistory, place: PhaseKey, own: Track) -> int:
    """Return the step of the open work: the newest in which a peer has done it, else the next."""
    newest = max(track.steps[-1] for track in history.spans[place].values() if track.steps)
    return newest if newest > own.steps[-1] else max(history.last, own.steps[-1] + 1)


def is_current(history: RunHistory, worker: str, ages: Track) -> bool:
    """Return whether the worker is still in the phase, as its newest exports report its age."""
    told_s = ages.times_s[-1]
    own = history.lags.get(worker)
    newest_s = told_s if own is None else max(told_s, own.times_s[-1])
    later = 0 if own is None else len(own.times_s) - bisect_right(own.times_s, told_s)
    return later <= _LATE_EXPORTS and history.ends_s - newest_s <= FRESH_S
