"""Mergeable accumulators that reduce many values to one. Pure.

Accumulators exchange counts and sums, never means, so the order and the grouping of merges change
nothing. An empty accumulator has no value: None, never 0.0.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Self

import msgspec
from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Number, Stored
from otel_rl.records import Buckets, HistogramPoint
from otel_rl.semconv.spec import Reduction

OVER_RANKS: Final = "rank_"
"""Begins the statistics of a gauge, which are over the workers: the largest of the ranks' mean
rewards is no best reward."""


class Moments(
    msgspec.Struct,
    gc=False,
    forbid_unknown_fields=True,
    rename={
        "count": "n",
        "total": "t",
        "minimum": "a",
        "maximum": "z",
        "last": "l",
        "last_time_ns": "w",
        "mean": "m",
        "squares": "s",
    },
):
    """Count, sum, extremes, spread and latest of single values.

    NaN is data: one NaN among the values makes every statistic but the count NaN, extremes too.

    Moments are stored as a map, which tells them from a list of values.

    Attributes:
        total: Sum of the values; exact as long as all are integers.
        last: The value with the latest time.
        mean: Running mean, for the spread alone (Welford; Chan et al. for merging).
        squares: Sum of squared deviations from ``mean``.
    """

    count: Count = 0
    total: Number = 0
    minimum: Number = math.inf
    maximum: Number = -math.inf
    last: Number = math.nan
    last_time_ns: Int64 = -1
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float, time_ns: int = 0) -> None:
        self.count += 1
        self.total += value
        # A comparison with NaN is False, so NaN is tested explicitly.
        if value != value or value < self.minimum:
            self.minimum = value
        if value != value or value > self.maximum:
            self.maximum = value
        if time_ns >= self.last_time_ns:
            self.last = value
            self.last_time_ns = time_ns
        deviation = value - self.mean
        self.mean += deviation / self.count
        self.squares += deviation * (value - self.mean)

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the moments of values without times; the last one counts as the latest."""
        if not values:
            return cls()
        total = sum(values)
        smallest, largest = min(values), max(values)
        if total != total and any(value != value for value in values):
            smallest = largest = math.nan
        mean = _mean(values)
        squares = sum([(value - mean) * (value - mean) for value in values])
        return cls(len(values), total, smallest, largest, values[-1], 0, mean, squares)

    def merge(self, other: "Moments") -> None:
        if not other.count:
            return
        if not self.count:
            self.mean, self.squares = other.mean, other.squares
        else:
            count = self.count + other.count
            deviation = other.mean - self.mean
            self.squares += other.squares + deviation * deviation * (
                self.count * other.count / count
            )
            self.mean += deviation * (other.count / count)
        self.count += other.count
        self.total += other.total
        if other.minimum != other.minimum or other.minimum < self.minimum:
            self.minimum = other.minimum
        if other.maximum != other.maximum or other.maximum > self.maximum:
            self.maximum = other.maximum
        if other.last_time_ns >= self.last_time_ns:
            self.last, self.last_time_ns = other.last, other.last_time_ns

    def result(self, reduction: Reduction) -> float | None:
        if not self.count:
            return None
        match reduction:
            case Reduction.MEAN:
                # A sum of finite values may be beyond the largest number, their mean never is.
                if math.isinf(self.total) and math.isfinite(self.mean):
                    return self.mean
                return self.total / self.count
            case Reduction.SUM:
                return self.total
            case Reduction.MIN:
                return self.minimum
            case Reduction.MAX:
                return self.maximum
            case Reduction.STD:
                return math.sqrt(max(self.squares, 0.0) / self.count) if self._finite else math.nan
            case Reduction.LAST:
                return self.last

    def statistic(self, suffix: str) -> float | None:
        """Return the statistic of suffix ``/suffix``; None if the moments do not have it."""
        if suffix == "count":
            return float(self.count) if self.count else None
        try:
            reduction = Reduction(suffix)
        except ValueError:
            return None  # quantiles need a distribution
        return self.result(reduction)

    @property
    def _finite(self) -> bool:
        return math.isfinite(self.squares)


Cell = list[Number] | Moments
"""Values that are reduced together: the values themselves while they are few, which is the usual
case and the fastest to add to, to store and to reduce; otherwise their moments.
"""

MAX_VALUES: Final = 1_024
"""Most values of a cell that is a list: one of each worker."""

_FEW_VALUES: Final = 128
"""Most values of a list that is kept with a row: it takes as many bytes as a few moments."""

# Used for every value; access to a member of an enum takes ten times as long (Python 3.11).
_MEAN, _LAST = Reduction.MEAN, Reduction.LAST


def put(cells: dict[int, Cell], key: int, value: float, time_ns: int, reduction: Reduction) -> None:
    """Fold a value into the cell of ``key``, created if needed. Only ``LAST`` needs the time."""
    cell = cells.get(key)
    if isinstance(cell, list):
        cell.append(value)
        if len(cell) > MAX_VALUES:
            cells[key] = Moments.of(cell)
    elif cell is not None:
        cell.add(value, time_ns)
    elif reduction is not _LAST:
        cells[key] = [value]
    else:
        cells[key] = moments = Moments()
        moments.add(value, time_ns)


def compact(cell: Cell) -> Cell:
    """Return a cell as it is kept with a row."""
    return Moments.of(cell) if isinstance(cell, list) and len(cell) > _FEW_VALUES else cell


def merged(cells: Iterable[Cell]) -> Cell:
    values: list[float] = []
    rest: list[Moments] = []
    for cell in cells:
        if isinstance(cell, Moments):
            rest.append(cell)
        else:
            values += cell
    if not rest:
        return values
    found = Moments.of(values)
    for moments in rest:
        found.merge(moments)
    return found


def reduced(cell: Cell, reduction: Reduction) -> float | None:
    if isinstance(cell, list):
        if reduction is _MEAN:
            return _mean(cell) if cell else None
        cell = Moments.of(cell)
    return cell.result(reduction)


def statistics(cell: Cell, suffixes: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield the statistics of the given suffixes that the cell has."""
    if not suffixes:
        return
    moments = cell if isinstance(cell, Moments) else Moments.of(cell)
    for suffix in suffixes:
        found = moments.statistic(suffix.removeprefix(OVER_RANKS))
        if found is not None:
            yield suffix, found


def _mean(values: Sequence[float]) -> float:
    total = sum(values)
    if math.isinf(total):  # also of finite values, whose mean is finite
        return sum([value / len(values) for value in values])
    return total / len(values)


def quantile_of_suffix(suffix: str) -> float | None:
    """Return the quantile in 0..1 of ``p50``, ``p99``, ``p99.9``; None for any other suffix."""
    if not suffix.startswith("p"):
        return None
    try:
        quantile = float(suffix[1:]) / 100
    except ValueError:
        return None
    return quantile if 0 <= quantile <= 1 else None


class Distribution(Stored, gc=False):
    """Merged histograms: buckets of any layout, each (lower, upper], with their counts.

    A statistic that one part lacks is unknown for the whole: a mean without the sum of a part would
    be too small, and the extremes of the other parts are not those of the whole.

    Attributes:
        count: Number of measurements.
        total: Sum of the measurements, if every part has one.
        minimum: Smallest measurement, if every part has one.
        maximum: Largest measurement, if every part has one.
        bounds: No measurement is below the first bound or above the second; None where unknown.
        buckets: Buckets of all parts, with their counts.
        unbucketed: Number of measurements of parts without buckets.
    """

    count: int = 0
    total: Number | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    bounds: tuple[Number | None, Number | None] = (None, None)
    buckets: dict[tuple[float, float], int] = field(default_factory=dict)
    unbucketed: int = 0

    def add(
        self,
        *,
        count: int,
        total: float | None,
        minimum: float | None,
        maximum: float | None,
        buckets: Buckets,
        bounds: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """Fold in one histogram. ``bounds`` apply where the histogram's extremes are unknown."""
        if count <= 0:
            return
        lower = bounds[0] if minimum is None else minimum
        upper = bounds[1] if maximum is None else maximum
        if not self.count:
            self.total, self.minimum, self.maximum = total, minimum, maximum
            self.bounds = lower, upper
        else:
            self.total = _of_both(operator.add, self.total, total)
            self.minimum = _of_both(min, self.minimum, minimum)
            self.maximum = _of_both(max, self.maximum, maximum)
            self.bounds = (
                _of_both(min, self.bounds[0], lower),
                _of_both(max, self.bounds[1], upper),
            )
        self.count += count
        bucketed = 0
        known = self.buckets
        for bucket, number in zip(buckets.layout, buckets.counts, strict=True):
            if number:
                known[bucket] = known.get(bucket, 0) + number
                bucketed += number
        if not bucketed:
            self.unbucketed += count

    def add_point(self, point: HistogramPoint) -> None:
        self.add(
            count=point.count,
            total=point.total,
            minimum=point.minimum,
            maximum=point.maximum,
            buckets=point.buckets,
            bounds=point.bounds,
        )

    def merge(self, other: "Distribution") -> None:
        buckets = Buckets(tuple(other.buckets), [*other.buckets.values()])
        unbucketed = self.unbucketed + other.unbucketed
        self.add(
            count=other.count,
            total=other.total,
            minimum=other.minimum,
            maximum=other.maximum,
            buckets=buckets,
            bounds=other.bounds,
        )
        self.unbucketed = unbucketed

    def values(self, key: str, statistics: Iterable[str]) -> Iterator[tuple[str, float]]:
        """Yield the values for a row: the mean as ``key``, the count, and the given statistics."""
        mean = self.statistic("mean")
        if mean is not None:
            yield key, mean
        for suffix in ("count", *statistics):
            found = self.statistic(suffix)
            if found is not None:
                yield f"{key}/{suffix}", found

    def quantile(self, q: float) -> float | None:
        """Estimate the ``q``-quantile (0..1), with an error of at most the width of its bucket.

        The estimate is linear within the part of the bucket that lies between the bounds. It is
        None if nothing was added, if a part has no buckets, or if the only bucket has no bound at
        all.
        """
        ranked = sorted(self.buckets.items(), key=lambda item: (item[0][1], item[0][0]))
        bucketed = sum(number for _, number in ranked)
        if not bucketed or self.unbucketed:
            return None
        rank = q * bucketed
        seen = 0
        for (lower, upper), number in ranked:
            if number and seen + number >= rank:
                return self._within(lower, upper, (rank - seen) / number)
            seen += number
        return self._within(*ranked[-1][0], 1.0)

    def statistic(self, suffix: str) -> float | None:
        """Return the statistic of suffix ``/suffix``; None if the histograms do not have it."""
        if not self.count:
            return None
        match suffix:
            case "count":
                return float(self.count)
            case "mean":
                return None if self.total is None else self.total / self.count
            case "min":
                return self.minimum
            case "max":
                return self.maximum
        quantile = quantile_of_suffix(suffix)
        return None if quantile is None else self.quantile(quantile)

    def _within(self, lower: float, upper: float, share: float) -> float | None:
        """Interpolate in the part of a bucket in which measurements can lie."""
        smallest, largest = self.bounds
        low = lower if smallest is None else max(lower, smallest)
        high = upper if largest is None else min(upper, largest)
        # An open bucket without a bound is assumed as narrow as possible.
        low = low if math.isfinite(low) else high
        high = high if math.isfinite(high) else low
        if not math.isfinite(low):
            return None
        return min(max(low + (high - low) * min(max(share, 0.0), 1.0), low), high)


def _of_both(
    combine: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    return None if one is None or other is None else combine(one, other)
