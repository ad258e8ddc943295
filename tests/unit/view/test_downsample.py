"""Long series become short, and outliers stay."""

import math

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.view.downsample import downsample


def test_a_short_series_is_as_it_was() -> None:
    assert downsample([1, 2, 3], [5.0, 6.0, 7.0], most=10) == (
        [1, 2, 3],
        [5.0, 6.0, 7.0],
        ([], []),
    )


def test_one_bad_step_of_a_hundred_thousand_is_seen() -> None:
    values = [1.0] * 100_000
    values[61_803] = 50.0
    points = downsample(range(100_000), values, most=600)
    assert len(points.xs) <= 600
    assert (61_803, 50.0) in zip(points.xs, points.ys, strict=True)


def test_what_is_not_finite_is_a_gap() -> None:
    assert downsample([1, 2, 3], [1.0, math.nan, math.inf], most=10).ys == [1.0, None, None]


def test_one_nan_among_a_hundred_thousand_values_is_a_gap() -> None:
    values = [float(place % 7) for place in range(100_000)]
    values[61_803] = math.nan
    points = downsample(range(100_000), values, most=600)
    assert len(points.xs) <= 600
    assert (61_803, None) in zip(points.xs, points.ys, strict=True)


def test_a_part_without_a_finite_value_is_a_gap() -> None:
    values = [1.0] * 50 + [math.nan] * 50
    assert None in downsample(range(100), values, most=20).ys


def test_a_range_has_its_neighbours_so_that_lines_leave_the_picture() -> None:
    points = downsample(range(10), [float(n) for n in range(10)], most=10, first=3, last=5)
    assert points.xs == [2, 3, 4, 5, 6]


def test_a_range_without_points_is_empty() -> None:
    assert downsample([1, 2], [1.0, 2.0], most=10, first=5, last=6).xs == []


def test_means_tell_where_a_noisy_series_goes_between_its_extremes() -> None:
    values = [place / 20_000 + (5.0 if place % 2 else -5.0) for place in range(20_000)]
    points = downsample(range(20_000), values, most=600)
    xs, means = points.trend
    assert len(xs) == len(means) == 300
    assert all(
        mean is not None and abs(mean - x / 20_000) < 0.1 for x, mean in zip(xs, means, strict=True)
    )
    assert None not in points.ys


def test_a_mean_leaves_out_what_is_not_finite() -> None:
    values = [2.0, math.nan] * 500 + [math.inf] * 1_000
    means = downsample(range(2_000), values, most=30).trend[1]
    assert means == [2.0] * 5 + [None] * 5


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300),
    st.integers(min_value=2, max_value=40),
)
def test_the_extremes_stay_in_order_and_within_the_bound(values: list[float], most: int) -> None:
    points = downsample(range(len(values)), values, most=most)
    assert len(points.xs) <= max(most, 2)
    assert points.xs == sorted(points.xs)
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for value in points.ys if value is not None]
    if finite:
        assert (min(kept), max(kept)) == (min(finite), max(finite))
