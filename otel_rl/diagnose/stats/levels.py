"""Detects level changes of a series over the steps of a run, and their first step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from statistics import fmean, median

from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.stats.changes import Change, find_change, find_step, find_sudden, spread

__all__ = [
    "LONGER",
    "LONGER_NOISE",
    "LevelChange",
    "begun",
    "common_ratio",
    "level",
    "levels",
    "medians",
    "settled",
    "smoothed",
    "soon",
]

LONGER = 1.5
"""Times as long as before, from which on steps are slower."""

LONGER_NOISE = 2.0
"""The same in units of their noise, above the level before."""

_CHANCE = 0.002

# A few values at either end cannot be less likely by chance, even if all are in order.
_PERFECT = 0.95

# Among many workers one reaches that by chance.
_MANY, _PERFECT_OF_MANY = 8, 0.99

# Fewest series that show a change of the whole machine, and the shortest work that it interrupts.
_ENOUGH = 3
_INTERRUPTED_S = 1e-3

# A run begins slowly: compilation, cold caches, empty queues. That is no level to compare with.
_START, _START_PART = 5, 0.1  # most values of it: this many, or this part of all
_SLOW_START = 1.5  # times the values after it
_AFTER_START = 10

_LARGER = 1.5  # times a clear change

_USUAL = 0.5  # part of the values before a rise that are not of it, at least

_NEAR = 6  # values on either side of a change that tell a jump from a slope


@dataclass(frozen=True, slots=True)
class LevelChange:
    """Level change of a series at a step.

    Attributes:
        step: First step of the new level.
        change: Its size.
        jump: The part of the change that came at once: about 1 for a step, 0 for a slope.
        among: Number of similar series that were tested.
    """

    step: int
    change: Change
    jump: float
    among: int = 1

    @property
    def before(self) -> float:
        """Return the old level."""
        return self.change.before

    @property
    def after(self) -> float:
        """Return the new level."""
        return self.change.after

    @property
    def ratio(self) -> float:
        """Return the ratio of after to before."""
        return self.change.ratio

    @property
    def is_clear(self) -> bool:
        """Return whether chance is unlikely, given the number of tested series."""
        perfect = _PERFECT if self.among <= _MANY else _PERFECT_OF_MANY
        return self.change.chance < _CHANCE or abs(self.change.order) >= perfect

    def is_rise(self, *, ratio: float, order: float = 0.7, size: float = 2.0) -> bool:
        """Return whether it is clearly higher: by a factor, of most values, beyond the noise."""
        change = self.change
        is_up = change.ratio >= ratio and change.order >= order and change.size >= size
        return is_up and self.is_clear

    def is_fall(self, *, ratio: float, order: float = 0.7, size: float = 2.0) -> bool:
        """Return whether it is clearly lower."""
        change = self.change
        is_down = change.ratio <= ratio and change.order <= -order and change.size <= -size
        return is_down and self.is_clear


def level(track: Track, *, shortest: int = 4, among: int = 1) -> LevelChange | None:
    """Find the clearest level change of a series; None if it is too short or constant.

    Args:
        track: The series.
        shortest: Fewest values on either side.
        among: Number of workers, if each is tested.
    """
    track = track.finite()
    change = find_change(track.values, shortest=shortest)
    if change is None:
        return None
    values, place = track.values, change.place
    near = median(values[place : place + _NEAR]) - median(values[max(0, place - _NEAR) : place])
    whole = change.after - change.before
    jump = near / whole if whole else 0.0
    return LevelChange(track.steps[place], change, jump, among)


def soon(track: Track, *, among: int = 1, shown: float = -inf) -> LevelChange | None:
    """Find the clearest level change, or a larger one of fewer values, or one that parts all.

    By ranks, the small drift of many values is clearer than a few that are far above all others.

    Args:
        track: The series.
        among: Number of workers, if each is tested.
        shown: The farthest value that any of these has shown.
    """
    found = level(track, among=among)
    if found is None:
        return None
    track = track.finite()
    for larger in (find_step(track.values), find_sudden(track.values, shown=shown)):
        if larger is not None and _is_larger(larger, found):
            found = LevelChange(track.steps[larger.place], larger, 1.0, among)
    return found


def _is_larger(change: Change, found: LevelChange) -> bool:
    if found.is_clear and change.order >= found.change.order > 0:
        return True
    more = change.after - change.before
    return more >= (_LARGER if found.is_clear else 1.0) * (found.after - found.before)


def begun(track: Track, found: LevelChange) -> LevelChange:
    """Return a rise with the step from which on all values are above all that is usual before.

    Ranks part a slope in its middle.
    """
    track = track.finite()
    before = sorted(track.values[: found.change.place])
    usual = before[int(_USUAL * (len(before) - 1))] + found.change.noise / 2
    place = found.change.place
    while place > 0 and track.values[place - 1] > usual:
        place -= 1
    return replace(found, step=track.steps[place])


def levels(track: Track, *, shortest: int = 4, most: int = 3) -> Iterator[LevelChange]:
    """Yield the clearest change, then that of the part before it: a series may rise twice."""
    track = track.finite()
    for _ in range(most):
        found = level(track, shortest=shortest)
        if found is None:
            return
        yield found
        place = found.change.place
        track = Track(track.steps[:place], track.times_s[:place], track.values[:place])


def settled(track: Track) -> Track:
    """Return the series without its first values, if these are far above those after them."""
    values = track.values
    most = max(_START, int(_START_PART * len(values)))
    if len(values) < most + _AFTER_START:
        return track
    slow = _SLOW_START * median(values[most : most + _AFTER_START])
    begun = max((place + 1 for place in range(most) if values[place] > slow), default=0)
    return Track(track.steps[begun:], track.times_s[begun:], values[begun:]) if begun else track


def smoothed(track: Track, width: int = 3) -> Track:
    """Return means of neighbours, so that values that come in bursts show their rate."""
    track = track.finite()
    values = [
        fmean(track.values[max(0, place - width + 1) : place + 1])
        for place in range(len(track.values))
    ]
    return Track(track.steps, track.times_s, values)


def medians(track: Track, step: int, *, shortest: int = 1) -> tuple[float, float] | None:
    """Return the medians before ``step`` and from it on; None with too few on either side."""
    track = track.finite()
    columns = list(zip(track.steps, track.values, strict=True))
    before = [value for at, value in columns if at < step]
    after = [value for at, value in columns if at >= step]
    if min(len(before), len(after)) < shortest:
        return None
    return median(before), median(after)


def common_ratio(tracks: Sequence[Track], step: int) -> float:
    """Return the slowdown since ``step`` that is usual among all series: it is the machine's.

    Their average and, as a busy machine does not slow all alike, what they usually are above it.

    Args:
        tracks: Durations, in s.
        step: First step of the slowdown.
    """
    levels = [found for one in tracks if (found := medians(one, step, shortest=2)) is not None]
    ratios = [after / before for before, after in levels if min(before, after) >= _INTERRUPTED_S]
    if len(ratios) < _ENOUGH or median(ratios) <= 1:
        return 1.0
    return median(ratios) * exp(spread([log(ratio) for ratio in ratios]))
