"""Rules for the buckets and quantiles of a point, one function for each type of metric."""

import math
from itertools import pairwise

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    SummaryDataPoint,
)

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.validation.event_rules import Problem

__all__ = ["explicit_problem", "exponential_problem", "quantile_problem"]

# Scales outside this range put every double into one bucket, or are beyond any SDK's maximum.
_SCALES = range(-11, 21)
# Every positive double is between these powers of two.
_MIN_EXPONENT, _MAX_EXPONENT = -1075.0, 1024.0


def explicit_problem(metric: str, point: HistogramDataPoint, max_buckets: int) -> Problem:
    """Check a histogram's point: as many counts as its ascending bounds make buckets."""
    counts, bounds = len(point.bucket_counts), len(point.explicit_bounds)
    problem = _count_problem(metric, max(counts, bounds), max_buckets)
    if problem is not None:
        return problem
    # Without any counts the point is only a count and a sum, which OTLP allows.
    has_right_shape = counts == bounds + 1 or counts == bounds == 0
    if has_right_shape and all(low < high for low, high in pairwise(point.explicit_bounds)):
        return None
    return (
        Refusal.INVALID_BUCKETS,
        (
            f"A point of metric {metric} has {counts} bucket counts and {bounds} bounds, "
            "or bounds that do not ascend"
        ),
    )


def exponential_problem(
    metric: str, point: ExponentialHistogramDataPoint, max_buckets: int
) -> Problem:
    """Check an exponential histogram's point: buckets that hold numbers of 64 bits."""
    sides = (point.positive, point.negative)
    problem = _count_problem(metric, sum(len(side.bucket_counts) for side in sides), max_buckets)
    if problem is not None:
        return problem
    if point.scale not in _SCALES:
        return (
            Refusal.INVALID_BUCKETS,
            (
                f"A point of metric {metric} has scale {point.scale}, "
                f"outside {_SCALES.start}..{_SCALES.stop - 1}"
            ),
        )
    for side in sides:
        n_buckets = len(side.bucket_counts)
        first_upper = math.ldexp(side.offset + 1, -point.scale)
        last_lower = math.ldexp(side.offset + n_buckets - 1, -point.scale)
        if n_buckets and not (first_upper > _MIN_EXPONENT and last_lower < _MAX_EXPONENT):
            return (
                Refusal.INVALID_BUCKETS,
                (
                    f"A point of metric {metric} has buckets from offset {side.offset} "
                    f"at scale {point.scale}, beyond what a double can hold"
                ),
            )
    return None


def quantile_problem(metric: str, point: SummaryDataPoint, max_buckets: int) -> Problem:
    """Check a summary's point: as many quantiles as a histogram may have buckets."""
    return _count_problem(metric, len(point.quantile_values), max_buckets)


def _count_problem(metric: str, count: int, max_buckets: int) -> Problem:
    if count <= max_buckets:
        return None
    detail = f"A point of metric {metric} has {count} buckets, over {max_buckets}"
    return Refusal.TOO_MANY_BUCKETS, detail
