"""Values of keys: those of a run, and one as a short series."""

import math
from collections.abc import Sequence
from difflib import get_close_matches
from statistics import fmean
from typing import Any

from otel_rl.records import KeySpec
from otel_rl.view.downsample import downsample
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label


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


def key_series(series: Series, *, first: float, last: float, most: int) -> dict[str, Any]:
    """Return a series in some steps with its extremes, cut to a number of points."""
    points = downsample(series.steps, series.values, most=most, first=first, last=last)
    values = [
        [step, value]
        for step, value in zip(points.xs, points.ys, strict=True)
        if first <= step <= last
    ]
    return {**_summary(series), "shown": len(values), "values": values}


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
