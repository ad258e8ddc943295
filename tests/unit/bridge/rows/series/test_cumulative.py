"""Cumulative and delta points to increments."""

import dataclasses
import itertools
import math
import random

import pytest

from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.records import Buckets, HistogramPoint, Series, SumPoint, Temporality, Worker
from otel_rl.semconv.spec import Instrument

SERIES = Series(Worker("generator", "i"), "tokens", instrument=Instrument.COUNTER)
S = 1_000_000_000

KEPT = 64
"""Lives of one series that are remembered."""


def counted(start_s: int, time_s: int, value: float, kind: str = "cumulative") -> SumPoint:
    return SumPoint(SERIES, start_s * S, time_s * S, value, Temporality(kind))


def increments(*points: SumPoint) -> list[tuple[float, float] | None]:
    stream = CounterStream()
    found = [stream.advance(point) for point in points]
    return [None if i is None else (i.value, i.seconds) for i in found]


def test_a_point_without_change_is_a_zero_and_not_nothing() -> None:
    assert increments(counted(1, 2, 10), counted(1, 3, 10))[1] == (0, 1.0)


def test_a_restart_without_a_start_time_is_seen_by_a_smaller_value() -> None:
    assert increments(counted(0, 2, 10), counted(0, 5, 4)) == [None, (4, 3.0)]


def test_within_a_life_a_smaller_value_is_an_older_one_whatever_its_time() -> None:
    assert increments(counted(1, 2, 10), counted(1, 5, 4)) == [(10, 1.0), None]


def test_a_repeated_point_counts_once() -> None:
    assert increments(counted(1, 2, 10), counted(1, 2, 10)) == [(10, 1.0), None]


def test_an_overtaken_point_says_nothing_new() -> None:
    assert increments(counted(1, 3, 25), counted(1, 2, 10)) == [(25, 2.0), None]


def test_an_exporter_that_was_restarted_with_its_collector_loses_what_nobody_saw_only() -> None:
    assert increments(counted(2, 2, 9), counted(2, 3, 10), counted(9, 9, 4)) == [
        None,
        (1, 1.0),
        (4, 0.0),
    ]


def test_delta_points_are_increments() -> None:
    assert increments(counted(1, 2, 5, "delta"), counted(2, 4, 5, "delta")) == [(5, 1.0), (5, 2.0)]


def test_two_counters_of_one_name_one_start_and_one_time_count_both() -> None:
    """Java's SDK sends a counter of integers and one of floats of the same name so."""
    points = [
        counted(1, second, value) for second in (2, 3, 4) for value in (10 * second, 1.5 * second)
    ]
    assert [one and one[0] for one in increments(*points)] == [20, 3.0, 10, 1.5, 10, 1.5]
    assert increments(*points, *points)[6:] == [None] * 6


def test_two_counters_of_one_name_are_no_shared_instance_also_after_a_restart() -> None:
    stream = CounterStream()
    for second in range(2, 8):
        for value in (1.5 * second, 10 * second):
            stream.advance(counted(1, second, value))
            assert not stream.is_shared
        stream = CounterStream.restored(stream.stored())
    assert sorted(life.amount for life in stream.lives.values()) == [10.5, 70]


def test_a_second_counter_of_one_name_that_begins_later_counts_whatever_their_order() -> None:
    points = [counted(1, 2, 10), counted(1, 3, 20), counted(1, 4, 1.5), counted(1, 4, 30)]
    points += [counted(1, 5, 2.5), counted(1, 5, 40)]
    assert [one and one[0] for one in increments(*points)] == [10, 10, 1.5, 10, 1.0, 10]
    assert increments(*points, *points)[6:] == [None] * 6


def test_two_counters_of_one_name_with_starts_and_times_of_their_own_are_no_shared_instance() -> (
    None
):
    """Rust's SDK: the second counter begins after the first, and is read a moment before it."""
    stream = CounterStream()
    points = [counted(1, 30, 2.0), counted(20, 40, 4), counted(1, 41, 2.5)]
    assert [one and one[0] for one in increments(*points)] == [2.0, 4, 0.5]
    for point in points:
        stream.advance(point)
    assert not stream.is_shared
    stream.advance(counted(10, 42, 3))
    stream.advance(counted(20, 43, 5))
    stream.advance(counted(10, 44, 4))
    assert stream.is_shared


def test_a_counter_that_becomes_a_float_is_one() -> None:
    """Python's SDK sends what the sum is."""
    points = [counted(1, 2, 10), counted(1, 3, 10.5), counted(1, 4, 11.0), counted(1, 5, 12)]
    assert [one and one[0] for one in increments(*points)] == [10, 0.5, 0.5, 1]


def test_integers_stay_exact_beyond_the_precision_of_floats() -> None:
    big = 2**60
    assert increments(counted(1, 2, big), counted(1, 3, big + 1))[1] == (1, 1.0)


def histogram(
    start_s: int, time_s: int, *buckets: tuple[float, float, int], kind: str = "cumulative"
) -> HistogramPoint:
    return HistogramPoint(
        series=SERIES,
        start_ns=start_s * S,
        time_ns=time_s * S,
        temporality=Temporality(kind),
        count=sum(n for _, _, n in buckets),
        total=float(sum(n for _, _, n in buckets)),
        minimum=0.5,
        maximum=9.0,
        buckets=Buckets.of(buckets),
    )


def test_extremes_of_the_whole_time_are_not_passed_off_as_the_intervals() -> None:
    stream = HistogramStream()
    stream.advance(histogram(1, 2, (0, 1, 3)))
    new = stream.advance(histogram(1, 3, (0, 1, 4)))
    assert new is not None
    assert (new.minimum, new.maximum) == (None, None)


def with_extremes(time_s: int, count: int, least: float, most: float) -> HistogramPoint:
    point = histogram(1, time_s, (0, 10, count))
    return dataclasses.replace(point, minimum=least, maximum=most)


def test_an_extreme_of_the_whole_time_that_moves_is_the_interval_s() -> None:
    stream = HistogramStream()
    stream.advance(with_extremes(2, 3, 2.0, 5.0))
    new = stream.advance(with_extremes(3, 4, 2.0, 7.0))
    assert new is not None
    assert (new.minimum, new.maximum, new.bounds) == (None, 7.0, (2.0, 7.0))


def test_a_clock_that_is_set_back_before_the_first_point_loses_no_total() -> None:
    assert increments(counted(5, 3, 10), counted(5, 4, 12)) == [(10, 0.0), (2, 1.0)]


def test_steps_that_a_stock_sdk_counts_by_itself_are_bounded() -> None:
    stream = CounterStream()
    steps = 5_000
    total = 0.0
    for step in range(steps):
        for told in {0, max(0, step - 3_000), max(0, step - 10), step}:
            point = dataclasses.replace(counted(1, 2 + step, 3), step=told)
            increment = stream.advance(point)
            total += 0 if increment is None else increment.value
    assert total == 3 * steps
    assert len(stream.lives) < 2_200


def test_as_many_steps_as_an_sdk_keeps_may_come_in_any_order() -> None:
    """Go sends a map in the order that it happens to have."""
    steps = random.Random(1).sample(range(2_000), 2_000)
    points = [dataclasses.replace(counted(1, 2, 1), step=step) for step in steps]
    assert sum(i[0] for i in increments(*points) if i) == 2_000


def test_a_process_that_starts_again_at_an_earlier_step_counts_anew() -> None:
    stream = CounterStream()
    first = [dataclasses.replace(counted(1, 2 + step, 1), step=step) for step in range(6_000)]
    again = [
        dataclasses.replace(counted(9_000, 9_001 + step, 1), step=step) for step in range(2_000)
    ]
    found = [stream.advance(point) for point in (*first, *again)]
    assert sum(i.value for i in found if i) == 8_000


def test_after_nan_was_measured_later_sums_are_not_known() -> None:
    stream = HistogramStream()
    point = histogram(1, 2, (0, 1, 3))
    stream.advance(point)
    ill = dataclasses.replace(point, time_ns=3 * S, count=4, total=math.nan)
    new = stream.advance(ill)
    assert new is not None
    assert new.total is not None
    assert math.isnan(new.total)
    later = stream.advance(dataclasses.replace(ill, time_ns=4 * S, count=5))
    assert later is not None
    assert (later.count, later.total) == (1, None)


def test_a_histogram_that_halves_its_resolution_keeps_its_counts() -> None:
    stream = HistogramStream()
    fine = [2 ** (i / 4) for i in range(5)]
    stream.advance(histogram(1, 2, *((lo, hi, 2) for lo, hi in itertools.pairwise(fine))))
    coarse = [2 ** (i / 2) for i in range(3)]
    new = stream.advance(histogram(1, 3, (coarse[0], coarse[1], 5), (coarse[1], coarse[2], 4)))
    assert new is not None
    assert [n for _, _, n in new.buckets] == [1]
    assert math.isclose(new.buckets[0][1], math.sqrt(2))


# Ruby's SDK 0.16 starts a point of a cumulative exponential histogram at the time of the last.
ODD = 345_678  # its clock counts nanoseconds


def moving(*counts: int, shift_ns: int = 0, odd_ns: int = ODD) -> list[HistogramPoint]:
    """Points whose starts move like those of deltas; ``shift_ns`` as in ``decode.py``."""
    return [
        dataclasses.replace(
            histogram(0, second, (0, 1, number)),
            start_ns=(second - 1) * S + odd_ns - shift_ns,
            time_ns=second * S + odd_ns,
        )
        for second, number in enumerate(counts, 2)
    ]


def new_counts(*points: HistogramPoint) -> list[int | None]:
    stream = HistogramStream()
    found = [stream.advance(point) for point in points]
    return [None if new is None else new.count for new in found]


@pytest.mark.parametrize("shift_ns", [0, 1])
def test_totals_whose_start_moves_count_once(shift_ns: int) -> None:
    assert new_counts(*moving(3, 5, 5, 6, shift_ns=shift_ns)) == [3, 2, None, 1]


def test_a_repeated_total_whose_start_has_moved_on_counts_once() -> None:
    points = moving(3, 5, 6)
    assert new_counts(*points, *points) == [3, 2, 1, None, None, None]


def test_a_smaller_total_since_the_last_point_is_a_new_life() -> None:
    assert new_counts(*moving(3, 2, 4)) == [3, 2, 2]


def test_a_process_may_start_in_the_millisecond_of_the_last_point_of_another() -> None:
    assert new_counts(*moving(3, 5, odd_ns=0)) == [3, 5]


def test_intervals_without_buckets_count_whole() -> None:
    """A StatsD receiver's summaries are of the time since the one before."""
    points = [dataclasses.replace(point, buckets=Buckets.of(())) for point in moving(3, 5, 6)]
    assert new_counts(*points) == [3, 5, 6]


@pytest.mark.parametrize("kind", ["delta", "cumulative"])
def test_an_empty_histogram_says_nothing(kind: str) -> None:
    assert HistogramStream().advance(histogram(1, 2, kind=kind)) is None


def test_a_life_that_was_never_heard_of_counts_when_it_comes_late() -> None:
    found = increments(counted(5, 6, 3), counted(1, 4, 25), counted(1, 3, 20), counted(1, 4, 25))
    assert [i and i[0] for i in found] == [3, 25, None, None]


def test_of_one_life_the_larger_value_is_later_even_by_a_clock_that_stepped_back() -> None:
    assert increments(counted(1, 9, 10), counted(1, 4, 15), counted(1, 5, 15)) == [
        (10, 8.0),
        (5, 0.0),
        None,
    ]


def test_lives_that_come_in_reverse_are_bounded() -> None:
    """A queue that is emptied from its end, by a process without an id that often restarted."""
    lives = 3_000
    found = increments(*(counted(2 * n, 2 * n + 1, 7) for n in range(lives, 0, -1)))
    assert [i and i[0] for i in found] == [7] * KEPT + [None] * (lives - KEPT)


def test_the_last_point_of_a_life_long_ago_is_not_counted_again() -> None:
    number = KEPT + 20
    lives = [counted(2 * n, 2 * n + 1, 7) for n in range(1, number + 1)]
    found = increments(*lives, lives[0], lives[10])
    assert [i and i[0] for i in found] == [7] * number + [None, None]


def test_histograms_of_lives_that_come_in_reverse_are_bounded() -> None:
    stream = HistogramStream()
    found = [stream.advance(histogram(2 * n, 2 * n + 1, (0, 1, 3))) for n in range(3_000, 0, -1)]
    assert sum(new is not None for new in found) == KEPT
    assert stream.advance(histogram(6_000, 6_002, (0, 1, 4))) is not None
