"""Values of keys: those of a run, one as a short series, two runs compared."""

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from statistics import fmean
from typing import Any, Final, NamedTuple

from otel_rl.records import KeySpec
from otel_rl.view.downsample import downsample
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label

__all__ = ["Bounds", "comparison", "key_list", "key_series", "similar_keys", "whole_series"]

_POINTS: Final = 600
_NS_PER_MS: Final = 1e6
_MS_PER_HOUR: Final = 3_600_000

_COMPARED: Final = 0.1  # of the steps that both runs have: their last part


class Bounds(NamedTuple):
    """Steps of a series, and how many points of it.

    Attributes:
        first: The first step.
        last: The last step.
        most: Points.
    """

    first: float
    last: float
    most: int


def key_list(data: RunData, keys: Sequence[KeySpec], search: str) -> list[dict[str, Any]]:
    """Return the keys with a text in them, each with its range."""
    units = {spec.key: spec.unit for spec in keys}
    wanted = search.casefold()
    return [
        {"key": label(key), "unit": label(units.get(key, "")), **_summary(series)}
        for key, series in sorted(data.series.items())
        if wanted in key.casefold()
    ]


def similar_keys(data: RunData, key: str, *, most: int = 8) -> list[str]:
    """Return names of keys that may have been meant."""
    within = [known for known in sorted(data.series) if key.casefold() in known.casefold()]
    return (within or get_close_matches(key, data.series, most, 0.3))[:most]


def key_series(series: Series, bounds: Bounds) -> dict[str, Any]:
    """Return a series with its extremes, cut to a number of points."""
    points = downsample(
        series.steps, series.values, most=bounds.most, first=bounds.first, last=bounds.last
    )
    values = [
        [step, value]
        for step, value in zip(points.xs, points.ys, strict=True)
        if bounds.first <= step <= bounds.last
    ]
    return {**_summary(series), "shown": len(values), "values": values}


def whole_series(data: RunData, key: str, *, by_time: bool) -> dict[str, Any]:
    """Return one key of a run, to be compared with that of others; empty if it has none.

    Args:
        data: Of the run.
        key: As ``Catalogue.keys`` names it, or as a diagnosis does.
        by_time: x is the time in hours since the first value of the run; else the step.
    """
    name = next((known for known in data.series if label(known) == key), key)
    series = data.series_of(name) or Series()
    xs: Sequence[float] = series.steps
    if by_time:
        xs = [(ms - data.begun_ns / _NS_PER_MS) / _MS_PER_HOUR for ms in series.times_ms]
    return downsample(xs, series.values, most=_POINTS)._asdict()


def comparison(data: RunData, other: RunData, keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the levels of keys in both runs, over the last tenth of the steps that both have.

    The most different ones come first.
    """
    last = min(data.last_step, other.last_step)
    first = last - max(1, round(_COMPARED * last))
    found = []
    for key in keys:
        if key in data.series and key in other.series:
            level, theirs = (
                _level(data.series[key], first, last),
                _level(other.series[key], first, last),
            )
            if level is not None and theirs is not None:
                found.append(
                    {
                        "key": label(key),
                        "run": level,
                        "other": theirs,
                        "ratio": level / theirs if theirs else None,
                        "steps": [first + 1, last],
                    }
                )
    found.sort(key=lambda one: -_difference(one))
    return found


def _difference(one: Mapping[str, Any]) -> float:
    size = max(abs(one["run"]), abs(one["other"]))
    return abs(one["run"] - one["other"]) / size if size else 0.0


def _level(series: Series, first: int, last: int) -> float | None:
    values = [
        value
        for step, value in zip(series.steps, series.values, strict=True)
        if first < step <= last and math.isfinite(value)
    ]
    return fmean(values) if values else None


def _summary(series: Series) -> dict[str, Any]:
    finite = [
        (value, step)
        for step, value in zip(series.steps, series.values, strict=True)
        if math.isfinite(value)
    ]
    if not finite:
        return {"points": len(series.values), "not_finite": len(series.values)}
    (least, least_at), (most, most_at) = min(finite), max(finite)
    return {
        "points": len(series.values),
        "not_finite": len(series.values) - len(finite),
        "last": finite[-1][0],
        "last_step": finite[-1][1],
        "min": least,
        "min_step": least_at,
        "max": most,
        "max_step": most_at,
        "mean": fmean(value for value, _ in finite),
    }
