"""Detector of old samples, which wait longer than before until they are used."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import inf
from statistics import median

from otel_rl.diagnose.classify import Subject, only_waits, tracks_about, waits_for_samples
from otel_rl.diagnose.detectors.workload import change_steps, follows_a_change
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, begun, level, smoothed
from otel_rl.diagnose.stats.trends import departure
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import (
    CLEARLY,
    FEWEST_SINCE,
    GOOD_PART,
    HALF,
    LEAST_PART,
    MUCH_LONGER,
    NOISE_OF_COUNTS,
    OFTEN,
    SEVERAL,
)

_OLDER = 1.5  # versions
_FILLED = 2  # times the age of its samples: steps until a buffer is full for the first time
_LITTLE_OLDER = 2.5  # versions
_GROWN = 2  # of the later samples, in versions


def staleness(history: RunHistory) -> Iterator[Cause]:
    """Find samples that are used later than before, in policy versions."""
    for key, worker, raw in tracks_about(history, Subject.STALENESS):
        track = _over_pushes(raw.finite())
        change = level(track)
        if change is None or not change.is_rise(ratio=MUCH_LONGER, size=NOISE_OF_COUNTS):
            continue
        if change.after - change.before < _OLDER:
            continue
        if _is_of_pauses(history, track, change):
            continue
        was_full = _was_full(history, track, change)
        if not was_full and (_is_full(track, change) or _follows_a_pause(history, track, change)):
            continue
        # The first samples are of the first policy, and a buffer needs as many steps to fill up.
        fills = max(SEVERAL, _FILLED * change.after)
        if _steps_at_level(history, track, change) < fills:
            continue
        if follows_a_change(history, change.step, within=fills):
            continue
        if _is_of_a_change(history, change):
            continue
        if change.jump < OFTEN and not was_full and not _grows_faster(track):
            continue  # a buffer that fills up from the beginning on
        if _goes_on_as_before(track, change):
            continue
        since = begun(track, change).step
        yield Cause(
            Kind.STALENESS_GROWTH,
            f"samples are {change.after:.2g} versions old since step {since}, "
            f"{change.before:.2g} before",
            role=key.partition("/")[0],
            since=since,
            evidence=[Evidence("age in versions", key, worker, change.before, change.after)],
        )
        return


def _over_pushes(track: Track) -> Track:
    """Return the mean age since the last push of weights, where pushes are several steps apart.

    Samples then age from push to push, and are young again after each push.
    """
    values = track.values
    apart = {
        width: median(abs(b - a) for a, b in zip(values, values[width:], strict=False))
        for width in range(1, SEVERAL + 1)
        if len(values) >= FEWEST_SINCE * width
    }
    width = min(apart, key=lambda width: (apart[width], width), default=1)
    return smoothed(track, width) if apart and apart[width] < HALF * apart[1] else track


def _was_full(history: RunHistory, track: Track, change: LevelChange) -> bool:
    """Return whether the buffer was full before, so that its bound must have been raised.

    Samples then had a constant age, and trainers did not wait for them: as many were made as used.
    """
    before = track.before(change.step)
    half = len(before) // 2
    moved = abs(median(before[half:]) - median(before[:half])) if half else inf
    if moved > GOOD_PART * (change.after - change.before):
        return False
    steps = step_time(history).finite()
    long_s = LEAST_PART * median(steps.values) if steps.values else 0.0
    waited = [
        sum(value > long_s for value in of.before(change.step))
        for place, tracks in history.spans.items()
        if waits_for_samples(place) and only_waits(history, place)
        for of in tracks.values()
    ]
    return bool(waited) and max(waited) <= GOOD_PART * (change.step - history.first)


def _is_of_a_change(history: RunHistory, change: LevelChange) -> bool:
    """Return whether the change belongs to a later change on purpose.

    Where a smaller batch makes a trend steeper, the clearest level begins before the batch does.
    """
    later = (since for since in change_steps(history) if since > change.step)
    return any(not [*staleness(history.between(history.first, since - 1))] for since in later)


def _is_of_pauses(history: RunHistory, track: Track, change: LevelChange) -> bool:
    """Return whether long steps, such as evaluations, account for the added age of samples.

    Samples made in a long step wait for as many usual steps, and stay where as many are made as
    used.
    """
    usual_s, since = _steps_around(history, change)
    paused = [value for value in since if value >= CLEARLY * usual_s]
    if not _is_paused(since, usual_s) or len(paused) > GOOD_PART * len(since) + 1:
        return False
    older = track.since(change.step)
    return max(older) - change.before <= 1 + sum(paused) / usual_s - len(paused)


def _follows_a_pause(history: RunHistory, track: Track, change: LevelChange) -> bool:
    """Return whether the buffer merely filled up in a long step, such as an evaluation.

    Where more samples are made than used, the buffer then stays full.
    """
    usual_s, steps = _steps_around(history, change)
    if not _is_paused(steps, usual_s):
        return False
    since = track.since(change.step)
    half = len(since) // 2
    return half > 0 and median(since[half:]) - median(since[:half]) < 1


def _steps_around(history: RunHistory, change: LevelChange) -> tuple[float, Sequence[float]]:
    """Return the usual time of a step, and the times of steps just before a change and since."""
    steps = step_time(history).finite()
    since = steps.since(change.step - SEVERAL)
    has_before = len(since) < len(steps.values)
    return median(steps.values) if has_before else inf, since


def _is_paused(since: Sequence[float], usual_s: float) -> bool:
    return max(since[: SEVERAL + 1], default=0.0) >= CLEARLY * usual_s


def _is_full(track: Track, change: LevelChange) -> bool:
    """Return whether samples are only a little older, as after a bounded buffer has filled.

    The buffer takes what is made in a slow step, and keeps it where more is made than used.
    """
    since = track.since(change.step)
    half = len(since) // 2
    grows = half > 0 and median(since[half:]) - median(since[:half]) >= _GROWN
    return change.after - change.before < _LITTLE_OLDER and not grows


def _steps_at_level(history: RunHistory, track: Track, change: LevelChange) -> int:
    """Return the number of steps at about the level before a change, until it begins.

    A series that has risen from its first value on was at no level, nor was that of a run that
    begins.
    """
    first = _first_usual(history)
    near = GOOD_PART * (change.after - change.before)
    own = track.finite()
    columns = own.pairs()
    at = [step for step, value in columns if step < change.step and value - change.before > -near]
    since = max(first, min(at, default=change.step))
    if history.has_gaps:  # their numbers count samples
        return sum(since <= step < change.step for step in history.known_steps)
    return change.step - since


def _first_usual(history: RunHistory) -> int:
    """Return the first step of usual length; earlier steps belong to the slow start."""
    steps = step_time(history).finite()
    newest = steps.values[len(steps.values) // 2 :][-SEVERAL:]
    usual_s = median(newest) if newest else 0.0
    columns = steps.pairs()
    return next((step for step, took_s in columns if took_s <= CLEARLY * usual_s), history.first)


def _goes_on_as_before(track: Track, change: LevelChange) -> bool:
    """Return whether a queue only grows on: ages in whole versions rise in steps.

    The level before the change then lasted as long as one version took to come since the run began.
    """
    values, place = track.finite().values, change.change.place
    held = sum(1 for _ in takewhile(lambda value: value == values[place - 1], values[:place][::-1]))
    grown = values[-1] - values[place - 1]
    is_whole = all(value.is_integer() for value in values)
    return is_whole and grown <= 1 + (len(values) - place) / held


def _grows_faster(track: Track) -> bool:
    """Return whether the ages are far above their earlier trend."""
    left = departure(track.finite())
    if left is None or not left.is_sure:
        return False
    return any(window.found > CLEARLY * max(window.expected) for window in left.windows)
