"""Detectors of faults between processes, where samples are delayed or lost."""

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import fmean, median

from otel_rl.diagnose.classify import (
    Subject,
    Work,
    only_waits,
    summed_by_step,
    tracks_about,
    waits_for_samples,
    with_gaps,
    work_of,
)
from otel_rl.diagnose.detectors.slow_phases import in_seconds
from otel_rl.diagnose.detectors.workload import Workload, follows_a_change
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, level, levels, smoothed
from otel_rl.diagnose.step_times import step_time, traces_of
from otel_rl.diagnose.thresholds import (
    A_FEW,
    BARELY,
    FAR,
    GOOD_PART,
    IN_ORDER,
    IN_ORDER_OF_STEPS,
    LARGE_PART,
    LEAST_LONGER,
    NOISE_OF_COUNTS,
    SEVERAL,
    SLACK,
)

_LONGER_WAIT, _WAIT_NOISE = 2.5, 2.5  # times before, and its noise: waits vary more than work
_RUNS_DRY = 2  # times the age of samples in versions: steps that a buffer lasts


def starvation(history: RunHistory) -> Iterator[Cause]:
    """Find trainers that wait longer for samples than before."""
    steps = step_time(history)
    if not steps.values:
        return
    usual, load = median(steps.finite().values), Workload(history)
    found = sorted(
        (
            (change.after - change.before, place, worker, change)
            for place in history.spans
            if waits_for_samples(place) and work_of(place) is not Work.DATA
            if only_waits(history, place)
            for worker, track in history.spans[place].items()
            if (change := level(load.told(track))) is not None and _is_longer_wait(change, usual)
        ),
        key=lambda one: -one[0],
    )
    if not found:
        return
    _, place, _, change = found[0]
    if follows_a_change(history, change.step, within=_buffered_steps(history, change.step)):
        return
    if _is_by_more_work(load, steps, change.step):
        return
    evidence = [
        Evidence(
            f"{one.phase} of a step",
            f"phase/{one.role}/{one.phase}",
            of,
            by.before,
            by.after,
            "s",
            traces_of(history, by.step),
        )
        for _, one, of, by in found[:A_FEW]
    ]
    evidence += _idle_others(history, place.role)
    yield Cause(
        Kind.STARVATION,
        f"{place.role} waits for samples since step {change.step}: {place.phase} took "
        f"{in_seconds(change.before)} of a step before and {in_seconds(change.after)} now, and "
        "its producers are as fast as before",
        role=place.role,
        phase=place.phase,
        since=change.step,
        evidence=evidence,
    )


def _buffered_steps(history: RunHistory, since: int) -> float:
    """Return after how many steps a buffer of samples runs dry, by their age before a step.

    In that time as many samples as the buffer holds are used, though some are still made.
    """
    ages = (
        track.finite().before(since) for _, _, track in tracks_about(history, Subject.STALENESS)
    )
    return _RUNS_DRY * max((median(age) for age in ages if age), default=0.0)


def _is_by_more_work(load: Workload, steps: Track, since: int) -> bool:
    """Return whether steps have more work since then, and take no longer than it explains.

    Counts of work are spread over the steps between two exports, which makes such a change seem
    gradual.
    """
    work = _sides([*load.of_step], [*load.of_step.values()], since)
    took = _sides(steps.steps, steps.values, since)
    if work is None or took is None:
        return False
    more = work[1] / work[0]
    return more >= LEAST_LONGER and took[1] <= BARELY * more * took[0]


def _sides(steps: Sequence[int], values: Sequence[float], since: int) -> tuple[float, float] | None:
    """Return the medians before a step and some steps after it; None if either is unknown or 0."""
    pairs = [one for one in zip(steps, values, strict=True) if isfinite(one[1])]
    before = [value for step, value in pairs if step < since]
    after = [value for step, value in pairs if step > since + SLACK]
    if not before or not after or median(before) <= 0:
        return None
    return median(before), median(after)


def _is_longer_wait(change: LevelChange, usual_s: float) -> bool:
    clear = change.is_rise(ratio=_LONGER_WAIT, order=IN_ORDER_OF_STEPS, size=_WAIT_NOISE)
    return clear and change.jump > GOOD_PART and change.after - change.before >= GOOD_PART * usual_s


def _idle_others(history: RunHistory, role: str) -> Iterator[Evidence]:
    for subject, what in ((Subject.IDLE_TIME, "idle time"), (Subject.QUEUE_DEPTH, "queue")):
        for key, worker, track in tracks_about(history, subject):
            moved = None if key.startswith(f"{role}/") else level(track)
            if moved is None or abs(moved.change.order) < IN_ORDER:
                continue
            if (moved.after > moved.before) == (subject is Subject.IDLE_TIME):
                yield Evidence(what, key, worker, moved.before, moved.after)


def evictions(history: RunHistory) -> Iterator[Cause]:
    """Find buffers that evict more unused samples than before, and a good part of all samples."""
    found: list[tuple[float, str, str | None, LevelChange]] = []
    for key, worker, track in tracks_about(history, Subject.EVICTIONS):
        track = with_gaps(history, summed_by_step(track))
        # Values of a moving mean are correlated, so they are more often ordered by chance.
        rises = (
            one
            for one in levels(smoothed(track), shortest=SEVERAL)
            if one.is_rise(ratio=FAR, order=IN_ORDER_OF_STEPS, size=NOISE_OF_COUNTS)
        )
        if (change := next(rises, None)) is not None:
            rate = _mean_since(track, change.step)
            if rate >= LARGE_PART * _intake(history, key, worker, change.step):
                found.append((rate, key, worker, change))
    if not found:
        return
    found.sort(key=lambda one: -one[0])
    _, key, _, change = found[0]
    yield Cause(
        Kind.EVICTION,
        f"samples are thrown away unused since step {change.step}: {key} rose from "
        f"{change.before:.3g} to {change.after:.3g} per step",
        role=key.partition("/")[0],
        since=change.step,
        evidence=[
            Evidence("samples evicted or dropped per step", of, by, c.before, c.after)
            for _, of, by, c in found[:MOST_EVIDENCE]
        ],
    )


def _intake(history: RunHistory, key: str, worker: str | None, since: int) -> float:
    """Return how many samples enter the buffer per step, if that is reported."""
    role = key.partition("/")[0]
    taken = [
        _mean_since(summed_by_step(track), since)
        for other, by, track in tracks_about(history, Subject.INTAKE)
        if other.partition("/")[0] == role and by in {None, worker}
    ]
    return max(taken, default=0.0)


def _mean_since(track: Track, step: int) -> float:
    values = track.finite().since(step)
    return fmean(values) if values else 0.0
