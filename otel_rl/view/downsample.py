"""Makes long series short for a chart, without losing an outlier."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

_AVERAGED: Final = 2  # values for each point: below that the line itself shows where it goes


class Points(NamedTuple):
    """Points of one line.

    Attributes:
        xs: Not descending, unless the run went back to an earlier step.
        ys: As many; None where there is no finite value.
        trend: Mean of each part of which only the extremes are left, at its middle; two lists of
            which the first has x. Empty where each value is a point.
    """

    xs: list[float]
    ys: list[float | None]
    trend: tuple[list[float], list[float | None]] = ([], [])


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
    hundred thousand is seen. A part with a NaN or infinity keeps one, as a gap. The means of parts
    tell where a series between such extremes goes.

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
    has_gaps = most > 2 and not all(math.isfinite(ys[place]) for place in inside)
    parts = [] if len(inside) <= most else _parts(inside, most // 3 if has_gaps else most // 2)
    places = _extremes(ys, parts, has_gaps=has_gaps) if parts else inside
    averaged = parts if len(inside) >= _AVERAGED * most else []
    return Points(
        [xs[place] for place in places],
        [ys[place] if math.isfinite(ys[place]) else None for place in places],
        ([xs[of[len(of) // 2]] for of in averaged], [_mean(ys, of) for of in averaged]),
    )


def _mean(ys: Sequence[float], of: Sequence[int]) -> float | None:
    finite = [ys[place] for place in of if math.isfinite(ys[place])]
    return math.fsum(one / len(finite) for one in finite) if finite else None


def _parts(inside: Sequence[int], count: int) -> list[Sequence[int]]:
    return [
        inside[len(inside) * part // count : len(inside) * (part + 1) // count]
        for part in range(count)
    ]


def _extremes(ys: Sequence[float], parts: Sequence[Sequence[int]], *, has_gaps: bool) -> list[int]:
    places: list[int] = []
    for of in parts:
        finite = [place for place in of if math.isfinite(ys[place])]
        chosen = set()
        if finite:
            chosen = {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
        if has_gaps and len(finite) < len(of):
            chosen.add(next(place for place in of if not math.isfinite(ys[place])))
        places += sorted(chosen)
    return places
