"""Detector of calls of which a few take far longer since a step: retries, rate limits.

Most calls are as fast as before, so no median shows the trouble. Reports that are far beyond the
usual one are counted, before a step and since then: a long tail has them from the beginning on.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import log
from operator import truediv
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.detectors.slow_phases import slower
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.rhythm import BEGINNING
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.stats.levels import level, settled
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import (
    A_FEW,
    ALIKE,
    FEWEST_SINCE,
    HALF,
    MANY,
    SEVERAL,
    SMALL_PART,
)

# Calls of something else, whose time does not grow with the answers of the policy.
_CALLED: Final = frozenset({Work.ENVIRONMENT, Work.REWARD, Work.DATA})
_FAR: Final = (9.0, 3.0)  # times the usual report of the worker
_OFTEN: Final = 6.0  # times as often as before
_PROOF: Final = 12.0  # logarithm of how much likelier two rates are than one
_PROOF_IF_FELT: Final = 8.0  # the same while steps take longer, too


class _Report(NamedTuple):
    """Calls of one worker in one step that took far longer.

    Attributes:
        times: Mean time of the calls, relative to the usual time of the worker.
        longer_s: Seconds beyond the usual time, of all the calls together.
    """

    step: int
    worker: str
    times: float
    longer_s: float


class _Flaky(NamedTuple):
    """Reports far beyond the usual one, since a step.

    Attributes:
        since: First step of the trouble.
        of: Number of all reports since that step.
    """

    since: int
    far: Sequence[_Report]
    of: int


def flaky_calls(history: RunHistory) -> Iterator[Cause]:
    """Find roles with some calls that take far longer since a step, while most do not."""
    proof = _PROOF_IF_FELT if _take_longer(history) else _PROOF
    for place, tracks in history.spans.items():
        if work_of(place) not in _CALLED or only_waits(history, place):
            continue
        number, far = _reports(history, place, tracks)
        found = _flaky(history, number, far, proof)
        if found is None:
            continue
        cost = _part_of_time(history, found, len(tracks))
        if cost >= SMALL_PART and not _is_of_one(found.far, len(tracks)):
            yield _cause(history, place, tracks, found, cost)


def _take_longer(history: RunHistory) -> bool:
    found = level(settled(Workload(history).eased_steps(step_time(history).finite())))
    return found is not None and found.is_rise(ratio=ALIKE, order=HALF, size=1.0)


def _part_of_time(history: RunHistory, found: _Flaky, workers: int) -> float:
    """Return the part of the workers' time that far reports cost since the trouble began."""
    begun = (at_s for step, at_s in sorted(history.begun_s.items()) if step >= found.since)
    since_s = history.begun_s[history.last] - next(begun, 0.0)
    lost_s = sum(one.longer_s for one in found.far)
    return lost_s / workers / since_s if since_s > 0 else 0.0


def _reports(
    history: RunHistory, place: PhaseKey, tracks: Mapping[str, Track]
) -> tuple[Mapping[int, int], Sequence[_Report]]:
    """Return the number of reports of each step, and the far ones in order.

    A report is far if it is far by itself, and for the work of its step.
    """
    number, far, load = Counter[int](), list[_Report](), Workload(history)
    for worker, track in tracks.items():
        number.update(track.steps)
        if not track.values or max(track.values) < min(_FAR) * median(track.values):
            continue
        eased = [*map(truediv, track.values, load.parts(place, track.steps))]
        usual_s, usual = median(track.values), median(eased)
        counts = history.counts[place][worker].values
        for step, mean_s, of, count in zip(track.steps, track.values, eased, counts, strict=True):
            times = min(mean_s / usual_s, of / usual) if usual_s > 0 else 0.0
            if times >= min(_FAR):
                far.append(_Report(step, worker, times, count * (mean_s - usual_s)))
    return number, sorted(far)


def _flaky(
    history: RunHistory, number: Mapping[int, int], far: Sequence[_Report], proof: float
) -> _Flaky | None:
    """Return the far reports since a step from which on they are clearly more frequent."""
    begun = history.first + BEGINNING
    steps = [step for step in sorted(number) if step >= begun]
    for least in _FAR:
        reports = [one for one in far if one.times >= least and one.step >= begun]
        of_step = Counter(one.step for one in reports)
        since = _more_since(steps, number, of_step, begun + MANY, proof)
        if since is not None:
            some = [one for one in reports if one.step >= since]
            return _Flaky(since, some, sum(of for step, of in number.items() if step >= since))
    return None


def _more_since(
    steps: Sequence[int],
    number: Mapping[int, int],
    far: Mapping[int, int],
    first: int,
    least_proof: float,
) -> int | None:
    """Return the step that best separates two rates of far reports, if the later is higher."""
    seen, found = ([*accumulate(of.get(step, 0) for step in steps)] for of in (number, far))
    best, most = None, least_proof
    for place, step in enumerate(steps):
        if step < first or not place or step not in far:
            continue
        n, k = seen[place - 1], found[place - 1]
        more, later = found[-1] - k, seen[-1] - n
        if more < SEVERAL or more > HALF * later or more * n < _OFTEN * (k + 1) * later:
            continue
        proof = _likelier(k, n, more, later)
        if proof > most and _is_in_many_steps(steps, far, place):
            best, most = step, proof
    return best


def _is_in_many_steps(steps: Sequence[int], far: Mapping[int, int], place: int) -> bool:
    """Return whether clearly more steps since ``place`` have far reports, up to the newest."""
    since = [at for at in range(place, len(steps)) if steps[at] in far]
    gap = max((b - a for a, b in pairwise(since)), default=0)
    if len(since) < FEWEST_SINCE or len(steps) - since[-1] > A_FEW * gap:
        return False
    before = sum(step in far for step in steps[:place])
    return _likelier(before, place, len(since), len(steps) - place) >= _PROOF_IF_FELT


def _likelier(k: int, n: int, more: int, later: int) -> float:
    """Return the log likelihood ratio of a rate for each side to one rate for both."""
    return _log_chance(k, n) + _log_chance(more, later) - _log_chance(k + more, n + later)


def _log_chance(k: int, n: int) -> float:
    """Return the log probability of ``k`` of ``n`` events at the rate ``k / n``."""
    return sum(part * log(part / n) for part in (k, n - k) if part)


def _is_of_one(far: Sequence[_Report], workers: int) -> bool:
    ((_, most),) = Counter(one.worker for one in far).most_common(1)
    return workers > 1 and most > HALF * len(far)


def _cause(
    history: RunHistory,
    place: PhaseKey,
    tracks: Mapping[str, Track],
    found: _Flaky,
    cost: float,
) -> Cause:
    far = median(one.times for one in found.far)
    usual_s = median(value for track in tracks.values() for value in track.values)
    return slower(
        history,
        place,
        None,
        f"{place.phase} of {place.role} takes {far:.1f} times as long now and then since step "
        f"{found.since}, in {len(found.far)} of {found.of} reports of a worker's step, and is as "
        "fast as before in the others",
        strength=min(1.0, cost),
        levels=(usual_s, far * usual_s),
        since=found.since,
        what=", usual and then",
    )
