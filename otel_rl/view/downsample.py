"""Makes long series short for a chart, without losing an outlier."""

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Points", "downsample"]


class Points(NamedTuple):
    """Points of one line.

    Attributes:
        xs: Not descending, unless the run went back to an earlier step.
        ys: As many; None where there is no finite value.
    """

    xs: list[float]
    ys: list[float | None]


def downsample(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    most: int,
    first: float = -math.inf,
    last: float = math.inf,
) -> Points:
    """Return at most ``most`` points of a series, by the extremes of equal parts of it.

    Of each part the lowest and the highest value stay, where they are: a single bad step of a
    hundred thousand is seen. A part with a NaN or infinity keeps one, as a gap.

    Args:
        xs: Steps or times.
        ys: Values, as many.
        most: Points, at least 2.
        first: Only from this x on, and the point before.
        last: Only up to this x, and the point behind.
    """
    inside: Sequence[int] = range(len(xs))
    if first > -math.inf or last < math.inf:
        # Not by bisection: a run may go back to an earlier step.
        inside = [place for place in inside if first <= xs[place] <= last]
        if inside:
            inside = range(max(0, inside[0] - 1), min(len(xs), inside[-1] + 2))
    places = inside if len(inside) <= most else _extremes(ys, inside, most)
    return Points(
        [xs[place] for place in places],
        [ys[place] if math.isfinite(ys[place]) else None for place in places],
    )


def _extremes(ys: Sequence[float], inside: Sequence[int], most: int) -> list[int]:
    has_gaps = most > 2 and not all(math.isfinite(ys[place]) for place in inside)
    parts = most // 3 if has_gaps else most // 2
    places: list[int] = []
    for part in range(parts):
        of = inside[len(inside) * part // parts : len(inside) * (part + 1) // parts]
        finite = [place for place in of if math.isfinite(ys[place])]
        chosen = set()
        if finite:
            chosen = {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
        if has_gaps and len(finite) < len(of):
            chosen.add(next(place for place in of if not math.isfinite(ys[place])))
        places += sorted(chosen)
    return places
