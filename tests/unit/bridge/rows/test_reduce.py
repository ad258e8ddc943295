"""Accumulators: many values to one."""

import math
from collections.abc import Sequence
from itertools import permutations

import pytest

from otel_rl.bridge.rows.reduce import (
    MAX_VALUES,
    Cell,
    Distribution,
    Moments,
    merged,
    put,
    quantile_of_suffix,
    reduced,
    statistics,
)
from otel_rl.records import Buckets
from otel_rl.semconv.spec import Reduction


def moments(*values: float) -> Moments:
    found = Moments()
    for place, value in enumerate(values):
        found.add(value, time_ns=place)
    return found


def cell_of(values: Sequence[float], reduction: Reduction = Reduction.MEAN) -> Cell:
    cells: dict[int, Cell] = {}
    for value in values:
        put(cells, 0, value, 0, reduction)
    return cells[0]


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


@pytest.mark.parametrize("number", [2, MAX_VALUES, MAX_VALUES + 1, 3 * MAX_VALUES])
def test_the_mean_of_finite_values_is_finite_though_their_sum_is_not(number: int) -> None:
    cell = cell_of([1.5e308] * number)
    assert reduced(cell, Reduction.MEAN) == pytest.approx(1.5e308)
    assert reduced(merged([cell, [1.5e308]]), Reduction.MEAN) == pytest.approx(1.5e308)


@pytest.mark.parametrize("number", [2, 2 * MAX_VALUES])
def test_the_mean_of_an_infinity_is_infinite(number: int) -> None:
    assert reduced(cell_of([1.0] * number + [math.inf, 2.0]), Reduction.MEAN) == math.inf


def test_infinity_is_the_maximum() -> None:
    assert moments(1, math.inf).result(Reduction.MAX) == math.inf


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_nan_among_many_values_shows_in_both_extremes(place: int) -> None:
    values = [1.0, 2.0, 3.0]
    values[place] = math.nan
    found = Moments.of(values)
    assert math.isnan(found.minimum)
    assert math.isnan(found.maximum)


@pytest.mark.parametrize("reduction", [Reduction.MIN, Reduction.MAX])
def test_nan_of_either_part_shows_after_a_merge(reduction: Reduction) -> None:
    for parts in ((moments(1, 2), moments(math.nan)), (moments(math.nan), moments(1, 2))):
        parts[0].merge(parts[1])
        result = parts[0].result(reduction)
        assert result is not None
        assert math.isnan(result)


def test_infinities_of_both_signs_are_the_extremes_of_many_values() -> None:
    found = Moments.of([1.0, math.inf, -math.inf])
    assert (found.minimum, found.maximum) == (-math.inf, math.inf)


@pytest.mark.parametrize(("times_ns", "last"), [((10, 30, 20), 2.0), ((10, 30, 30), 3.0)])
def test_the_last_of_many_is_that_of_the_latest_time_and_of_equal_times_the_later_one(
    times_ns: tuple[int, ...], last: float
) -> None:
    found = Moments()
    for value, time_ns in zip([1.0, 2.0, 3.0], times_ns, strict=True):
        found.add(value, time_ns)
    assert found.last == last


def test_of_equal_times_the_value_of_the_part_that_is_merged_later_is_the_last_one() -> None:
    first, second = Moments(), Moments()
    first.add(1.0, time_ns=5)
    second.add(2.0, time_ns=5)
    first.merge(second)
    assert first.last == 2.0


@pytest.mark.parametrize("number", [3, 3 * MAX_VALUES])
def test_a_cell_has_the_same_statistics_however_many_values_it_holds(number: int) -> None:
    cell = cell_of([1.0, 2.0, 6.0] * (number // 3))
    suffixes = ("count", "mean", "min", "max", "std", "last", "rank_max", "p50")
    found = dict(statistics(cell, suffixes))
    assert [*found] == [*suffixes[:-1]]
    assert [*found.values()] == pytest.approx([number, 3.0, 1.0, 6.0, math.sqrt(14 / 3), 6.0, 6.0])
    assert reduced(cell, Reduction.SUM) == 3.0 * number


def test_equal_values_have_no_spread_and_an_infinite_one_has_none_that_is_a_number() -> None:
    assert moments(7, 7, 7).result(Reduction.STD) == 0.0
    spread = Moments(count=2, squares=math.inf).result(Reduction.STD)
    assert spread is not None
    assert math.isnan(spread)


def test_the_last_of_a_cell_is_that_of_the_latest_time() -> None:
    cells: dict[int, Cell] = {}
    for value, time_ns in ((1.0, 20), (2.0, 30), (3.0, 10)):
        put(cells, 0, value, time_ns, Reduction.LAST)
    assert reduced(cells[0], Reduction.LAST) == 2.0


def test_cells_of_few_values_are_merged_whole() -> None:
    assert merged([[1.0], [2.0, 3.0]]) == [1.0, 2.0, 3.0]


def test_nothing_has_no_statistic() -> None:
    nothing: Cell = []
    assert reduced(nothing, Reduction.MEAN) is None
    assert not [*statistics(nothing, ("count", "mean", "max", "p50"))]


@pytest.mark.parametrize("reduction", [Reduction.MEAN, Reduction.SUM, Reduction.MAX, Reduction.STD])
def test_few_values_beside_many_are_reduced_with_them(reduction: Reduction) -> None:
    cells = cell_of([1.0] * 1_000, reduction), cell_of([7.0, 9.0], reduction)
    assert reduced(merged(cells), reduction) == pytest.approx(
        moments(*[1.0] * 1_000, 7.0, 9.0).result(reduction)
    )


def test_the_mean_of_two_histograms_is_that_of_all_their_values() -> None:
    found = distribution((0, 1, 3), total=1.5)
    found.add(count=1, total=10.0, minimum=None, maximum=None, buckets=Buckets.of([(1, 16, 1)]))
    assert found.statistic("mean") == pytest.approx(11.5 / 4)


def parts() -> list[Distribution]:
    """Three parts with bounds, of two layouts."""
    return [
        distribution((0, 1, 2), (1, 2, 2), total=4.0, minimum=0.5, maximum=2.0),
        distribution((0, 4, 4), total=8.0, minimum=0.25, maximum=4.0),
        distribution((2, 3, 2), total=5.0, minimum=2.25, maximum=2.75),
    ]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_parts_have_the_same_values_in_whatever_order_they_are_merged(
    order: Sequence[int],
) -> None:
    found, each = Distribution(), parts()
    for place in order:
        found.merge(each[place])
    assert dict(found.values("k", ("min", "max", "p50", "p90", "p100"))) == pytest.approx(
        {"k": 1.7, "k/count": 10, "k/min": 0.25, "k/max": 4.0, "k/p50": 2.5, "k/p90": 3.0625,
         "k/p100": 4.0}
    )  # fmt: skip


def test_a_part_of_which_only_bounds_are_known_widens_those_of_the_whole() -> None:
    found = distribution((-math.inf, 1, 1), minimum=0.5, maximum=0.75)
    buckets = Buckets.of([(4, math.inf, 1)])
    bounds = (0.25, 8.0)
    found.add(count=1, total=None, minimum=None, maximum=None, buckets=buckets, bounds=bounds)
    assert dict(found.values("k", ("min", "max", "mean"))) == {"k/count": 2}
    assert (found.quantile(0.0), found.quantile(1.0)) == (0.25, 8.0)


def test_a_part_without_buckets_leaves_the_merged_whole_without_quantiles() -> None:
    found, bare = Distribution(), Distribution()
    for _ in range(2):
        bare.add(count=3, total=6.0, minimum=1.0, maximum=3.0, buckets=Buckets.of([]))
    found.merge(bare)
    found.merge(distribution((0, 1, 5), total=1.0))
    assert (found.unbucketed, found.quantile(0.5)) == (6, None)
    assert found.statistic("mean") == pytest.approx(13 / 11)


def distribution(*buckets: tuple[float, float, int], **known: float) -> Distribution:
    found = Distribution()
    found.add(
        count=sum(n for _, _, n in buckets),
        total=known.get("total"),
        minimum=known.get("minimum"),
        maximum=known.get("maximum"),
        buckets=Buckets.of(buckets),
    )
    return found


def test_an_empty_distribution_has_no_quantile() -> None:
    assert Distribution().quantile(0.5) is None


def test_a_quantile_at_the_edge_of_a_bucket_is_the_edge() -> None:
    assert distribution((0, 1, 5), (2, 3, 5)).quantile(0.5) == 1.0


def test_quantiles_never_leave_what_was_measured() -> None:
    found = distribution((-math.inf, 10, 4), (10, math.inf, 4), minimum=3, maximum=12)
    assert found.quantile(0.0) == 3
    assert found.quantile(1.0) == 12


def test_the_extremes_of_some_parts_are_not_the_whole_s() -> None:
    found = distribution((0, 2, 100), total=100.0)
    found.add(count=1, total=0.01, minimum=0.01, maximum=0.01, buckets=Buckets.of([(0, 2, 1)]))
    assert (found.minimum, found.maximum) == (None, None)
    assert found.quantile(0.5) == pytest.approx(1.0, abs=0.01)


def test_a_bucket_without_any_bound_has_no_quantile() -> None:
    assert distribution((-math.inf, math.inf, 3)).quantile(0.5) is None


def test_measurements_without_buckets_leave_no_quantile() -> None:
    found = distribution((0, 1, 5), minimum=0.1, maximum=0.9)
    found.add(count=5, total=None, minimum=3.0, maximum=4.0, buckets=Buckets.of([]))
    assert found.quantile(0.5) is None
    assert found.maximum == 4.0


def test_a_single_value_is_every_quantile() -> None:
    found = distribution((4, 8, 1), minimum=5, maximum=5)
    assert [found.quantile(q) for q in (0.01, 0.5, 0.99)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        *[("p0", 0.0), ("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p100", 1.0)],
        *[("p101", None), ("max", None), ("pxy", None)],
    ],
)
def test_quantile_suffixes(suffix: str, expected: float | None) -> None:
    assert quantile_of_suffix(suffix) == pytest.approx(expected)
