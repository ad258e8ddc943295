"""Detector of a whole role that was slow for a while: no level changes, and no peer is faster.

The steps in between are found as the run of values that are longest, and longer than all others.
"""

from collections.abc import Iterator, Sequence
from math import log
from statistics import median
from typing import Final

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.detectors.slow_phases import slow_kind, together, traces_of
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Cause, Evidence
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.stats.levels import settled

__all__ = ["passing_slowdowns"]

_FEWEST: Final = 6  # steps of it
_FEWEST_OTHERS: Final = 12  # on both sides together
_SIDE: Final = 4  # fewest of them on either side
_SLOWER: Final = 1.5
_NOISE: Final = 5.0  # times the noise of the others
_INSIDE: Final = 0.8  # of the steps of it are as much slower
_MIN_COST: Final = 0.02  # part of the time of all steps


def passing_slowdowns(history: RunHistory) -> Iterator[Cause]:
    """Find phases of whole roles that took longer for some steps, and then no more."""
    load = Workload(history)
    for place, tracks in history.spans.items():
        if only_waits(history, place) and work_of(place) is not Work.SYNC:
            continue
        pooled = settled(load.eased(place, together(tracks)))
        found = _longest(pooled.values)
        if found is None:
            continue
        begin, end = found
        inside = pooled.values[begin:end]
        others = [*pooled.values[:begin], *pooled.values[end:]]
        usual = median(others)
        least = max(_SLOWER, 1 + _NOISE * spread(others) / usual)
        is_clear = sum(value >= least * usual for value in inside) >= _INSIDE * len(inside)
        is_apart = sum(value >= least * usual for value in others) <= (1 - _INSIDE) / 2 * len(
            others
        )
        cost = sum(value - usual for value in inside) / max(1e-9, sum(pooled.values))
        if is_clear and is_apart and cost >= _MIN_COST:
            yield _cause(history, place, pooled, begin, end, usual)


def _longest(values: Sequence[float]) -> tuple[int, int] | None:
    """Return the part of a series that is most above its middle, if it ends within the series."""
    if len(values) < _FEWEST + _FEWEST_OTHERS or min(values) <= 0:
        return None
    above = [log(value / median(values)) - log(_SLOWER) / 2 for value in values]
    best, total, begin, found = 0.0, 0.0, 0, (0, 0)
    for place, one in enumerate(above):
        if total <= 0:
            total, begin = 0.0, place
        total += one
        if total > best:
            best, found = total, (begin, place + 1)
    first, end = found
    is_within = first >= _SIDE and len(values) - end >= _SIDE
    return found if end - first >= _FEWEST and is_within else None


def _cause(
    history: RunHistory, place: PhaseKey, pooled: Track, begin: int, end: int, usual: float
) -> Cause:
    since, until = pooled.steps[begin], pooled.steps[end]
    now = median(pooled.values[begin:end])
    return Cause(
        slow_kind(place),
        0.5,
        f"{place.phase} of {place.role} took {now / usual:.1f} times as long in steps {since} to "
        f"{until - 1}; over since step {until}",
        role=place.role,
        phase=place.phase,
        since=since,
        until=until,
        evidence=[
            Evidence(
                f"time of one {place.phase}",
                f"phase/{place}",
                None,
                usual,
                now,
                "s",
                traces_of(history, since),
            )
        ],
    )
