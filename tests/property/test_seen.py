"""What was taken of a series, against a model that remembers every nanosecond."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.rows.dedup.series_dedup import NO_STEP, SeriesDedup

MOMENTS = st.integers(0, 30)
INTERVALS = st.tuples(MOMENTS, st.integers(1, 6)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(INTERVALS, max_size=30))
def test_an_interval_is_new_as_long_as_any_of_it_is(taken: list[tuple[int, int]]) -> None:
    seen, model = SeriesDedup(), set[int]()
    for start_ns, end_ns in taken:
        covered = set(range(start_ns, end_ns))
        assert seen.take_interval(start_ns, end_ns) == (not covered <= model)
        model |= covered
        bounds = list(seen.bounds)
        assert all(low < high for low, high in pairwise(bounds))
        starts_and_ends = zip(bounds[::2], bounds[1::2], strict=True)
        assert {n for start, end in starts_and_ends for n in range(start, end)} == model
    assert seen.newest_ns() == max((end for _, end in taken), default=0)


@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=20))
def test_points_that_tile_time_are_one_interval_in_any_order(
    order: list[int], again: list[int]
) -> None:
    seen = SeriesDedup()
    assert all(seen.take_interval(n * 10, n * 10 + 10) for n in order)
    assert not any(seen.take_interval(n * 10, n * 10 + 10) for n in again)
    assert list(seen.bounds) == [0, 120]


def test_the_oldest_gap_is_closed_beyond_a_thousand() -> None:
    seen = SeriesDedup()
    for n in range(2_000):
        assert seen.take_interval(n * 10 + 5, n * 10 + 10)
    assert len(seen.bounds) == 2 * 1024
    assert not seen.take_interval(10, 15)  # in the oldest gap: taken for a repetition
    assert seen.take_interval(19_000, 19_005)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-2, 2)), max_size=40))
def test_a_single_point_is_known_by_its_time_and_step(
    taken: list[tuple[int, int | None]],
) -> None:
    seen, model = SeriesDedup(), set[tuple[int, int | None]]()
    for time_ns, step in taken:
        is_new = seen.take_time(time_ns, NO_STEP if step is None else step)
        assert is_new == ((time_ns, step) not in model)
        model.add((time_ns, step))
    seen.forget_times(2)
    left = [tuple(row) for row in seen.points]
    assert left == sorted(
        (time_ns, NO_STEP if step is None else step) for time_ns, step in model if time_ns > 2
    )
    assert seen.single_points() == len(left)
