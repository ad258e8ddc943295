"""Why a run got slower: which phase, of whom.

The time of a unit of work (a span without what is within it) tells apart who became slower from who
waits for it, and one worker from its peers. What all phases of all workers have become slower by
is the machine's, and taken off.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite, log
from statistics import median

from otel_rl.diagnose.causes import Cause, Evidence, Kind
from otel_rl.diagnose.history import History, PhaseKey, Track
from otel_rl.diagnose.levels import Level, level, ratio_at
from otel_rl.diagnose.vocabulary import Work, work_of

__all__ = ["slow_work", "step_time", "traces_of"]

# What is slower by less, or takes a smaller part of a step or of a worker's time, is not told.
_MIN_RATIO = 1.7
_MIN_SHARE = 0.1
_MIN_PART_OF_STEP = 0.02

_KINDS = {
    Work.GENERATION: Kind.SLOW_GENERATION,
    Work.REWARD: Kind.SLOW_REWARD,
    Work.TRAINING: Kind.SLOW_TRAINING,
    Work.SYNC: Kind.SLOW_SYNC,
    Work.OTHER: Kind.SLOW_PHASE,
}

# Each of these is waited for by all of its peers, so one of them alone is a straggler.
_IN_STEP = frozenset({Kind.SLOW_TRAINING, Kind.SLOW_PHASE})


@dataclass(frozen=True, slots=True)
class _Slow:
    """A phase of a worker that takes longer than it did.

    Attributes:
        worker: Whose.
        level: Of the time of one span.
        excess: How much slower it is than the rest of the run became.
        share: Of the worker's time that it takes more of since then.
    """

    worker: str
    level: Level
    excess: float
    share: float


def step_time(history: History) -> Track:
    """How long each step took, in seconds."""
    track = Track()
    for step in history.steps:
        track.add(step.step, 0.0, sum(seconds for *_, seconds in step.path))
    if track.values:
        return track
    for key, rows in history.rows.items():
        if key.endswith("/iteration/duration"):
            return rows
    return track


def traces_of(history: History, since: int, count: int = 3) -> list[str]:
    """The traces of the slowest steps from ``since`` on."""
    steps = [step for step in history.steps if step.step >= since and step.trace_id]
    steps.sort(key=lambda step: -sum(seconds for *_, seconds in step.path))
    return [step.trace_id for step in steps[:count]]


def slow_work(history: History) -> Iterator[Cause]:
    """Phases in which some worker takes clearly longer for the same work than it did."""
    work = {
        place: tracks
        for place, tracks in history.spans.items()
        if place not in history.waits or work_of(place) is Work.SYNC
    }
    every = [track for tracks in work.values() for track in tracks.values()]
    steps_s = step_time(history).finite().values
    usual_s = median(steps_s) if steps_s else 0.0
    for place, tracks in work.items():
        each = (
            _slow(history, place, worker, track, every, usual_s) for worker, track in tracks.items()
        )
        slow = [one for one in each if one is not None]
        if slow:
            yield _cause(history, place, tracks, slow)


def _slow(
    history: History,
    place: PhaseKey,
    worker: str,
    track: Track,
    every: list[Track],
    usual_s: float,
) -> _Slow | None:
    found = level(track)
    if found is None or not found.is_rise(ratio=_MIN_RATIO, order=0.75):
        return None
    if found.after - found.before < _MIN_PART_OF_STEP * usual_s:
        return None
    others = [log(r) for one in every if (r := ratio_at(one, found.step)) and 0 < r < inf]
    common = max(0.0, median(others)) if len(others) >= 6 else 0.0
    excess = log(found.ratio) - common if isfinite(found.ratio) else 5.0
    share = _share(history, place, worker, found.step) * (1 - 1 / found.ratio)
    if excess < log(_MIN_RATIO) or share < _MIN_SHARE:
        return None
    return _Slow(worker, found, 2.718281828459045**excess, share)


def _share(history: History, place: PhaseKey, worker: str, since: int) -> float:
    """Part of the worker's time since then that spans of the phase take."""
    taken = begun = ended = 0.0
    counts = history.counts[place][worker]
    for step, time_s, count, mean_s in zip(
        counts.steps,
        counts.times_s,
        counts.values,
        history.spans[place][worker].values,
        strict=True,
    ):
        if step >= since:
            taken += count * mean_s
            begun, ended = begun or time_s, time_s
    steps = [s for s in history.steps if s.step >= since]
    if len(steps) > 1:
        return taken / max(1e-9, (steps[-1].end_ns - steps[0].end_ns) / 1e9)
    return taken / max(1e-9, ended - begun)


def _cause(
    history: History, place: PhaseKey, tracks: Mapping[str, Track], slow: list[_Slow]
) -> Cause:
    slow.sort(key=lambda one: -one.excess)
    worst = slow[0]
    # One of several: its peers did the same work, and did not become slower.
    alone = (len(tracks) > 1 and len(slow) <= len(tracks) / 3) or (
        len(tracks) == 2 and len(slow) == 1
    )
    kind = _KINDS[work_of(place)]
    if alone and kind in _IN_STEP:
        kind = Kind.STRAGGLER
    since = min(one.level.step for one in slow) if not alone else worst.level.step
    change = worst.level.change
    who = worst.worker if alone else place.role
    words = (
        f"{place.phase} of {who} takes {change.ratio:.1f} times as long since step {since}: "
        f"{_seconds(change.before)} before, {_seconds(change.after)} now"
    )
    if alone:
        words += "; its peers do not"
    strength = min(1.0, log(worst.excess) / log(8))
    score = 0.45 + 0.3 * strength + 0.15 * min(1.0, worst.share)
    evidence = [
        Evidence(
            f"time of one {place.phase}",
            key=f"phase/{place.role}/{place.phase}",
            worker=one.worker,
            before=one.level.before,
            after=one.level.after,
            unit="s",
            traces=traces_of(history, since) if one is worst else (),
        )
        for one in slow[:4]
    ]
    return Cause(
        kind,
        score,
        words,
        role=place.role,
        worker=worst.worker if alone else None,
        phase=place.phase,
        since=since,
        evidence=evidence,
    )


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
