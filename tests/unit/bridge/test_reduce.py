"""Accumulators: many values to one."""

import math

import pytest

from otel_rl.bridge.reduce import Distribution, Moments, quantile_of_suffix
from otel_rl.semconv.spec import Reduction


def moments(*values: float) -> Moments:
    found = Moments()
    for place, value in enumerate(values):
        found.add(value, time_ns=place)
    return found


@pytest.mark.parametrize("reduction", list(Reduction))
def test_nothing_added_has_no_value(reduction: Reduction) -> None:
    assert Moments().result(reduction) is None


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (Reduction.MEAN, 4.0),
        (Reduction.SUM, 12.0),
        (Reduction.MIN, 1.0),
        (Reduction.MAX, 9.0),
        (Reduction.LAST, 2.0),
        (Reduction.STD, math.sqrt(((1 - 4) ** 2 + (9 - 4) ** 2 + (2 - 4) ** 2) / 3)),
    ],
)
def test_each_reduction_of_three_values(reduction: Reduction, expected: float) -> None:
    assert moments(1, 9, 2).result(reduction) == pytest.approx(expected)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("reduction", [Reduction.MIN, Reduction.MAX, Reduction.MEAN, Reduction.STD])
def test_one_nan_rank_shows_in_every_statistic(place: int, reduction: Reduction) -> None:
    values = [1.0, 2.0, 3.0]
    values[place] = math.nan
    result = moments(*values).result(reduction)
    assert result is not None
    assert math.isnan(result)


def test_one_nan_rank_shows_after_a_merge() -> None:
    healthy, diverged = moments(1, 2), moments(math.nan)
    healthy.merge(diverged)
    result = healthy.result(Reduction.MAX)
    assert result is not None
    assert math.isnan(result)


def test_infinity_is_the_maximum() -> None:
    assert moments(1, math.inf).result(Reduction.MAX) == math.inf


def test_last_goes_by_time_not_by_arrival() -> None:
    found = Moments()
    found.add(1.0, time_ns=20)
    found.add(2.0, time_ns=10)
    assert found.result(Reduction.LAST) == 1.0


def test_a_mean_of_unequal_parts_is_weighted_by_their_counts() -> None:
    large, small = moments(1, 1, 1), moments(5)
    large.merge(small)
    assert large.result(Reduction.MEAN) == 2.0


def distribution(*buckets: tuple[float, float, int], **known: float) -> Distribution:
    found = Distribution()
    found.add(
        count=sum(n for _, _, n in buckets),
        total=known.get("total"),
        minimum=known.get("minimum"),
        maximum=known.get("maximum"),
        buckets=buckets,
    )
    return found


def test_an_empty_distribution_has_no_quantile() -> None:
    assert Distribution().quantile(0.5) is None


def test_the_median_lies_in_the_middle_bucket() -> None:
    assert distribution((0, 1, 5), (1, 2, 10), (2, 3, 5)).quantile(0.5) == pytest.approx(1.5)


def test_quantiles_never_leave_what_was_measured() -> None:
    found = distribution((-math.inf, 10, 4), (10, math.inf, 4), minimum=3, maximum=12)
    assert found.quantile(0.0) == 3
    assert found.quantile(1.0) == 12


def test_a_single_value_is_every_quantile() -> None:
    found = distribution((4, 8, 1), minimum=5, maximum=5)
    assert [found.quantile(q) for q in (0.01, 0.5, 0.99)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p101", None), ("max", None), ("pxy", None)],
)
def test_quantile_suffixes(suffix: str, expected: float | None) -> None:
    assert quantile_of_suffix(suffix) == pytest.approx(expected)
