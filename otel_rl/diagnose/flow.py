"""What is wrong between processes: samples do not come, or get lost."""

from collections.abc import Iterator
from math import isfinite
from statistics import fmean, median

from otel_rl.diagnose.causes import Cause, Evidence, Kind
from otel_rl.diagnose.history import History, PhaseKey, Track
from otel_rl.diagnose.levels import Level, level, levels, smoothed
from otel_rl.diagnose.pace import step_time, traces_of
from otel_rl.diagnose.vocabulary import Subject, tracks_about

__all__ = ["evictions", "starvation"]

_MIN_SHARE = 0.25
_MIN_EVICTED = 0.1


def starvation(history: History) -> Iterator[Cause]:
    """Trainers wait for samples longer than they did."""
    steps = step_time(history)
    if not steps.values:
        return
    usual = median(steps.finite().values)
    found = sorted(
        (
            (change.after - change.before, place, worker, change)
            for place in history.waits
            if _is_wait_for_samples(place)
            for worker, track in history.spans[place].items()
            if (change := level(track)) is not None and _is_longer_wait(change, usual)
        ),
        key=lambda one: -one[0],
    )
    if not found:
        return
    more, place, _, change = found[0]
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
        for _, one, of, by in found[:3]
    ]
    evidence += _idle_others(history, place.role)
    yield Cause(
        Kind.STARVATION,
        0.5 + 0.1 * min(1.0, more / usual) + 0.02 * min(5, len(evidence)),
        f"{place.role} waits for samples since step {change.step}: {place.phase} took "
        f"{change.before * 1e3:.3g} ms of a step before and {change.after * 1e3:.3g} ms now, and "
        "nobody who makes them works slower",
        role=place.role,
        phase=place.phase,
        since=change.step,
        evidence=evidence,
    )


def _is_longer_wait(change: Level, usual_s: float) -> bool:
    clear = change.is_rise(ratio=2.5, order=0.75, size=2.5) and change.jump > 0.3
    return clear and change.after - change.before >= _MIN_SHARE * usual_s


def _idle_others(history: History, role: str) -> Iterator[Evidence]:
    """What says that those who make samples have nothing to do."""
    for subject, what in ((Subject.IDLE_TIME, "idle time"), (Subject.QUEUE_DEPTH, "queue")):
        for key, worker, track in tracks_about(history, subject):
            moved = None if key.startswith(f"{role}/") else level(track)
            if moved is None or abs(moved.change.order) < 0.7:
                continue
            if (moved.after > moved.before) == (subject is Subject.IDLE_TIME):
                yield Evidence(what, key, worker, moved.before, moved.after)


def evictions(history: History) -> Iterator[Cause]:
    """Samples leave the buffer unused, more than they did, and a good part of all."""
    found: list[tuple[float, str, str | None, Level]] = []
    for key, worker, track in tracks_about(history, Subject.EVICTIONS):
        # Neighbours of a mean are alike, so they are in order by chance more often.
        rises = (
            one
            for one in levels(smoothed(track), shortest=6)
            if one.is_rise(ratio=4.0, order=0.75, size=1.5)
        )
        if (change := next(rises, None)) is not None:
            rate = _mean_since(track, change.step)
            if rate >= _MIN_EVICTED * _intake(history, key, worker, change.step):
                found.append((rate, key, worker, change))
    if not found:
        return
    found.sort(key=lambda one: -one[0])
    _, key, _, change = found[0]
    yield Cause(
        Kind.EVICTION,
        0.72,
        f"samples are thrown away unused since step {change.step}: {key} rose from "
        f"{change.before:.3g} to {change.after:.3g} per export",
        role=key.partition("/")[0],
        since=change.step,
        evidence=[
            Evidence("samples evicted or dropped per export", of, by, c.before, c.after)
            for _, of, by, c in found[:4]
        ],
    )


def _intake(history: History, key: str, worker: str | None, since: int) -> float:
    """What comes into the buffer per export, if it says so."""
    role = key.partition("/")[0]
    taken = [
        _mean_since(track, since)
        for other, by, track in tracks_about(history, Subject.INTAKE)
        if other.partition("/")[0] == role and by in {None, worker}
    ]
    return max(taken, default=0.0)


def _mean_since(track: Track, step: int) -> float:
    values = [
        v for s, v in zip(track.steps, track.values, strict=True) if s >= step and isfinite(v)
    ]
    return fmean(values) if values else 0.0


def _is_wait_for_samples(place: PhaseKey) -> bool:
    words = ("collector", "replay", "batch", "sample", "data", "rollout", "queue", "fetch")
    learner = not any(word in place.role for word in ("generator", "reward", "env", "rollout"))
    return learner and any(word in place.phase for word in words)
