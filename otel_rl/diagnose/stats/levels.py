"""Detects level changes of a series over the steps of a run, and their first step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, fsum, inf, log
from statistics import fmean, median

from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.stats.changes import Change, find_change, find_step, find_sudden, spread
from otel_rl.diagnose.thresholds import (
    A_FEW,
    CHANCE,
    FEWEST_BEFORE,
    FEWEST_SINCE,
    HALF,
    IN_ORDER,
    LARGE_PART,
    LONGER,
    LONGER_NOISE,
    NEARLY_ALL,
    SEVERAL,
    SIDE,
)

_MANY, _PERFECT_OF_MANY = 8, 0.99  # workers, of which one is nearly in order by chance
_INTERRUPTED_S = 1e-3  # the shortest work that a busy machine interrupts


@dataclass(frozen=True, slots=True)
class LevelChange:
    """Level change of a series at a step.

    Attributes:
        step: First step of the new level.
        change: Place and size of the change.
        among: Number of similar series that were tested.
        is_sudden: Whether all of the change came at once: it is of the last few values, or parts
            all values.
    """

    step: int
    change: Change
    among: int = 1
    is_sudden: bool = False

    @property
    def jump(self) -> float:
        """Return the part of the change that came at once: about 1 for a step, 0 for a slope."""
        whole = self.after - self.before
        if self.is_sudden or not whole:
            return float(self.is_sudden)
        values, place = self.change.values, self.change.place
        before, after = values[max(0, place - SEVERAL) : place], values[place : place + SEVERAL]
        return (median(after) - median(before)) / whole

    @property
    def before(self) -> float:
        return self.change.before

    @property
    def after(self) -> float:
        return self.change.after

    @property
    def ratio(self) -> float:
        return self.change.ratio

    @property
    def is_clear(self) -> bool:
        """Return whether chance is unlikely, given the number of tested series."""
        perfect = NEARLY_ALL if self.among <= _MANY else _PERFECT_OF_MANY
        return self.change.chance < CHANCE or abs(self.change.order) >= perfect

    def is_up(self, order: float) -> bool:
        """Return whether most later values are higher, which is unlikely by chance."""
        return self.change.order >= order and self.is_clear

    def is_rise(self, *, ratio: float, order: float = IN_ORDER, size: float = LONGER_NOISE) -> bool:
        """Return whether the level is clearly higher: by a factor, in most values, beyond noise."""
        return self.is_up(order) and self.change.ratio >= ratio and self.change.size >= size

    def is_fall(self, *, ratio: float, order: float = IN_ORDER, size: float = LONGER_NOISE) -> bool:
        change = self.change
        is_down = change.order <= -order and self.is_clear
        return is_down and change.ratio <= ratio and change.size <= -size


def level(track: Track, *, shortest: int = FEWEST_SINCE, among: int = 1) -> LevelChange | None:
    """Find the clearest level change of a series; None if the series is too short or constant.

    Args:
        shortest: Fewest values on either side.
        among: Number of workers, if each is tested.
    """
    track = track.finite()
    change = find_change(track.values, shortest=shortest)
    if change is None:
        return None
    return LevelChange(track.steps[change.place], change, among)


def soon(track: Track, *, among: int = 1, shown: float = -inf) -> LevelChange | None:
    """Find the clearest level change, or a larger one of fewer values, or one that parts all.

    By ranks, the small drift of many values is clearer than a few values that are far above all
    others.

    Args:
        among: Number of workers, if each is tested.
        shown: The farthest value that any of these series has shown.
    """
    found = level(track, among=among)
    if found is None:
        return None
    track = track.finite()
    for larger in (find_step(track.values), find_sudden(track.values, shown=shown)):
        if larger is not None and _is_larger(larger, found):
            found = LevelChange(track.steps[larger.place], larger, among, is_sudden=True)
    return found


def _is_larger(change: Change, found: LevelChange) -> bool:
    if found.is_clear and change.order >= found.change.order > 0:
        return True
    more = change.after - change.before
    return more >= (LONGER if found.is_clear else 1.0) * (found.after - found.before)


def begun(track: Track, found: LevelChange) -> LevelChange:
    """Return a rise with the step from which on all values are above the usual earlier ones.

    Ranks part a slope in its middle.
    """
    track = track.finite()
    before = sorted(track.values[: found.change.place])
    usual = before[int(HALF * (len(before) - 1))] + found.change.noise / 2
    place = found.change.place
    while place > 0 and track.values[place - 1] > usual:
        place -= 1
    return replace(found, step=track.steps[place])


def levels(
    track: Track, *, shortest: int = FEWEST_SINCE, most: int = A_FEW
) -> Iterator[LevelChange]:
    """Yield the clearest change, then that of the part before it, as a series may rise twice."""
    track = track.finite()
    for _ in range(most):
        found = level(track, shortest=shortest)
        if found is None:
            return
        yield found
        place = found.change.place
        track = Track(track.steps[:place], track.times_s[:place], track.values[:place])


def settled(track: Track) -> Track:
    """Return the series without its first values, if these are far above the later ones.

    A short series has few later values: work that takes longer later is not a start.
    """
    values = track.values
    most = max(SIDE, int(LARGE_PART * len(values)))
    if len(values) < most + FEWEST_BEFORE:
        return track
    after = min(FEWEST_BEFORE, max(SIDE, len(values) // 4))
    slow = LONGER * median(values[most : most + after])
    begun = max((place + 1 for place in range(most) if values[place] > slow), default=0)
    return Track(track.steps[begun:], track.times_s[begun:], values[begun:]) if begun else track


def smoothed(track: Track, width: int = A_FEW) -> Track:
    """Return means of neighbours, so that values that come in bursts show their rate."""
    track = track.finite()
    begun = [fmean(track.values[:count]) for count in range(1, min(width, len(track.values) + 1))]
    windows = zip(*(islice(track.values, first, None) for first in range(width)), strict=False)
    values = [*begun, *(total / width for total in map(fsum, windows))]
    return Track(track.steps, track.times_s, values)


def medians(track: Track, step: int, *, shortest: int = 1) -> tuple[float, float] | None:
    """Return the medians before ``step`` and from it on; None with too few on either side."""
    track = track.finite()
    before, after = track.before(step), track.since(step)
    if min(len(before), len(after)) < shortest:
        return None
    return median(before), median(after)


def common_ratio(tracks: Sequence[Track], step: int) -> float:
    """Return the slowdown since ``step`` that is usual among all series, which is the machine's.

    It is their average and, as a busy machine does not slow all alike, their usual distance above
    it.

    Args:
        tracks: Durations, in s.
        step: First step of the slowdown.
    """
    levels = [found for one in tracks if (found := medians(one, step, shortest=2)) is not None]
    ratios = [after / before for before, after in levels if min(before, after) >= _INTERRUPTED_S]
    if len(ratios) < A_FEW or median(ratios) <= 1:
        return 1.0
    return median(ratios) * exp(spread([log(ratio) for ratio in ratios]))
