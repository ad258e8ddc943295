"""Histogram reduced to its statistics at a step: mean, min, max, p50, p90, p99.

No OpenTelemetry histogram: those are merged over time, and W&B's belongs to a step.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from otel_rl.integrations.wandb._stand_ins.stand_in import is_optional, stand_in

__all__ = ["Histogram"]

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Histogram:
    """W&B's ``Histogram``. Invalid input has no statistics; never raises.

    Args:
        sequence: Numbers, an array or a tensor of any shape; read at once, as W&B does.
        np_histogram: Instead: counts and bin edges, as from ``numpy.histogram``.
        num_bins: Ignored: statistics of a sequence are exact.
    """

    def __init__(
        self,
        sequence: object = None,
        np_histogram: "tuple[Iterable[float], Iterable[float]] | None" = None,
        num_bins: int = 64,
    ) -> None:
        del num_bins
        self.statistics: dict[str, float] = {}
        try:
            if np_histogram is not None:
                counts, edges = np_histogram
                self.statistics = _of_bins(list(map(float, counts)), list(map(float, edges)))
            elif sequence is not None:
                self.statistics = _of_ordered(*_ordered(sequence))
        except Exception:  # noqa: BLE001  # any library's array; counted when logged
            return

    def __getattr__(self, name: str) -> Any:
        if is_optional(name) or name == "statistics":
            raise AttributeError(name)
        return stand_in(f"Histogram.{name}")


def _ordered(sequence: object) -> tuple[Sequence[float], float]:
    """Return (elements in ascending order with NaN last, mean). Conversion errors propagate."""
    for name in ("detach", "float", "cpu"):  # a tensor of any type and device
        convert = getattr(sequence, name, None)
        if callable(convert):
            sequence = convert()
    if not hasattr(sequence, "__array__"):
        values = list(_flat(sequence))
        mean = sum(values) / len(values) if values else math.nan
        return sorted(values, key=lambda value: (math.isnan(value), value)), mean
    import numpy as np  # array input implies that numpy is loaded

    flat = np.sort(np.asarray(sequence, dtype=float), axis=None)
    return cast("Sequence[float]", flat), float(flat.mean()) if flat.size else math.nan


def _flat(sequence: object) -> Iterator[float]:
    if isinstance(sequence, str | bytes) or not isinstance(sequence, Iterable):
        raise TypeError("no sequence of numbers")
    for item in sequence:
        if isinstance(item, Iterable):
            yield from _flat(item)
        else:
            yield float(item)


def _of_ordered(ordered: Sequence[float], mean: float) -> dict[str, float]:
    last = len(ordered) - 1
    if last < 0:
        return {}
    if math.isnan(ordered[last]):  # NaN has no place in an order
        return dict.fromkeys(("mean", "min", "max", *_QUANTILES), math.nan)
    found = {"mean": mean, "min": float(ordered[0]), "max": float(ordered[last])}
    for name, quantile in _QUANTILES.items():
        below = math.floor(quantile * last)
        above = min(below + 1, last)
        found[name] = _between(ordered[below], ordered[above], quantile * last - below)
    return found


def _of_bins(counts: Sequence[float], edges: Sequence[float]) -> dict[str, float]:
    """Interpolate linearly within a bin: the error is at most its width."""
    bins = [bin_ for bin_ in zip(edges, edges[1:], counts, strict=False) if bin_[2] > 0]
    if not bins or len(edges) != len(counts) + 1:
        return {}
    total = math.fsum(count for _, _, count in bins)
    weighted = math.fsum((low + high) / 2 * count for low, high, count in bins)
    found = {"mean": weighted / total, "min": bins[0][0], "max": bins[-1][1]}
    for name, quantile in _QUANTILES.items():
        found[name] = _at_rank(bins, quantile * total)
    return found


def _at_rank(bins: Sequence[tuple[float, float, float]], rank: float) -> float:
    seen = 0.0
    for low, high, count in bins:
        if seen + count >= rank:
            return _between(low, high, (rank - seen) / count)
        seen += count
    return bins[-1][1]


def _between(low: float, high: float, share: float) -> float:
    # Equal ends may be infinite, and inf - inf is NaN.
    return float(low if low == high or share <= 0 else low + (high - low) * share)
