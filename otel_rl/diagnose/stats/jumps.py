"""Finds a jump: a lasting change of level between two steps, in a series that always moves.

Values of batches that mix samples from before and after a change take several steps to jump.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.stats.changes import least_noise, spread
from otel_rl.diagnose.thresholds import A_FEW, FAR, FEWEST_VARYING, HALF, SIDE, START

# The same of a few last values: the farther the fewer, and more than the series ever moved.
_FEW, _FAR_JUMP = (3, 2), 24.0
# A series that goes up by stairs has moved by nearly as much elsewhere, in the same direction.
_STAIRS = 2.0
_SURE = 40  # moves that tell their usual size


class Jump(NamedTuple):
    """A lasting change of level.

    Attributes:
        size: Size in units of the usual change between two steps.
        step: The first step that is off.
        before: Median of the level before.
        after: Median of the level after.
    """

    size: float
    step: int
    before: float
    after: float


def jump(track: Track, mixed: int = 0, *, start: int = START) -> Jump | None:
    """Return the largest jump of a series.

    A jump covers a good part of the range of the series, and is more than the series usually moves
    in as many steps.

    Args:
        track: Finite series, in order of its steps.
        mixed: Largest number of steps whose values may lie between the levels.
        start: Number of first values that cannot be off.
    """
    if len(track.values) < FEWEST_VARYING:
        return None
    scale, part = _scale(track.values), HALF * _range(track.values)
    found = [
        one
        for width in range(mixed + 1)
        for place in range(start, len(track.values) - width - SIDE + 1)
        if not width or track.steps[place + width] - track.steps[place - 1] <= mixed + 1
        if (one := _at(track, scale, place, width, part if width else 0.0)) is not None
    ]
    return max(found, key=lambda one: one.size, default=None) or _last_jump(track, scale, start)


def _scale(values: Sequence[float]) -> float:
    moves = [abs(b - a) for a, b in pairwise(values)]
    # Of few moves, the usual size may be much larger than it seems.
    unsure = max(1.0, math.sqrt(_SURE / len(moves)))
    usual = unsure * max(spread(moves), median(moves))
    return max(usual, 0.07 * _range(values), least_noise(max(map(abs, values))))


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _at(track: Track, scale: float, place: int, width: int, part: float) -> Jump | None:
    """Return the jump that begins at a place and ends ``width`` values later, if there is one.

    Args:
        scale: Usual change of the series between two steps.
        place: Place of the first value that is off.
        width: Number of values between the levels.
        part: The smallest jump that counts.
    """
    values, end = track.values, place + width
    before, after = values[place - SIDE : place], values[end : end + SIDE]
    drift = (SIDE + width) * _drift(values, place, end)
    gap = max(
        min(after) - max(before) - max(0.0, drift), min(before) - max(after) + min(0.0, drift)
    )
    # The usual change of few values is uncertain: the levels have to be apart by more than
    # either scatters.
    least = max(FAR * scale, max(before) - min(before), max(after) - min(after))
    if gap < max(least, part) or not _are_between(before, values[place:end], after):
        return None
    if _has_stairs(values, place, end, gap / _STAIRS, is_rise=after[0] > before[0]):
        return None
    return Jump(gap / scale, track.steps[place], median(before), median(after))


def _has_stairs(
    values: Sequence[float], place: int, end: int, least: float, *, is_rise: bool
) -> bool:
    """Return whether a series has also moved by ``least`` in a jump's direction outside of it.

    A level that ends goes back, and so does a single odd value.
    """
    for at in range(START, len(values) - A_FEW + 1):
        sides = values[at - A_FEW : at], values[at : at + A_FEW]
        lower, upper = sides if is_rise else sides[::-1]
        if not place - A_FEW < at < end + A_FEW and min(upper) - max(lower) >= least:
            return True
    return False


def _are_between(before: Sequence[float], values: Sequence[float], after: Sequence[float]) -> bool:
    lower, upper = sorted((before, after), key=max)
    return all(min(lower) <= value <= max(upper) for value in values)


def _drift(values: Sequence[float], place: int, end: int) -> float:
    """Return the mean move from value to value, without the levels of a jump."""
    first, last = place - SIDE, end + SIDE - 1
    moved = values[first] - values[0] + values[-1] - values[last]
    return moved / max(1, first + len(values) - 1 - last)


def _last_jump(track: Track, scale: float, start: int) -> Jump | None:
    """Return a jump before the last few values, if it is far beyond all of the series."""
    for few in _FEW:
        before, after = track.values[:-few], track.values[-few:]
        if len(before) < start:
            continue
        gap = max(min(after) - max(before), min(before) - max(after))
        if gap >= max(_FAR_JUMP / few * scale, max(before) - min(before)):
            return Jump(gap / scale, track.steps[-few], median(before[-SIDE:]), median(after))
    return None
