"""Cumulative and delta points to increments."""

import itertools
import math

import pytest

from otel_rl.bridge.cumulative import CounterStream, HistogramStream
from otel_rl.records import HistogramPoint, Series, SumPoint, Temporality, Worker
from otel_rl.semconv.spec import Instrument

SERIES = Series(Worker("generator", "i"), "tokens", instrument=Instrument.COUNTER)
S = 1_000_000_000


def counted(start_s: int, time_s: int, value: float, kind: str = "cumulative") -> SumPoint:
    return SumPoint(SERIES, start_s * S, time_s * S, value, Temporality(kind))


def increments(*points: SumPoint) -> list[tuple[float, float] | None]:
    stream = CounterStream()
    found = [stream.advance(point) for point in points]
    return [None if i is None else (i.value, i.seconds) for i in found]


def test_cumulative_points_become_differences() -> None:
    assert increments(counted(1, 2, 10), counted(1, 3, 25)) == [(10, 1.0), (15, 1.0)]


def test_a_point_without_change_is_a_zero_and_not_nothing() -> None:
    assert increments(counted(1, 2, 10), counted(1, 3, 10))[1] == (0, 1.0)


def test_a_restart_seen_by_its_start_time_loses_nothing() -> None:
    assert increments(counted(1, 2, 10), counted(4, 5, 30)) == [(10, 1.0), (30, 1.0)]


def test_a_restart_without_a_start_time_is_seen_by_a_smaller_value() -> None:
    assert increments(counted(0, 2, 10), counted(0, 5, 4)) == [None, (4, 3.0)]


def test_within_a_life_a_smaller_value_is_an_older_one_whatever_its_time() -> None:
    assert increments(counted(1, 2, 10), counted(1, 5, 4)) == [(10, 1.0), None]


def test_a_repeated_point_counts_once() -> None:
    assert increments(counted(1, 2, 10), counted(1, 2, 10)) == [(10, 1.0), None]


def test_an_overtaken_point_says_nothing_new() -> None:
    assert increments(counted(1, 3, 25), counted(1, 2, 10)) == [(25, 2.0), None]


def test_without_a_start_time_the_first_point_is_only_a_reference() -> None:
    assert increments(counted(0, 2, 1000), counted(0, 3, 1007)) == [None, (7, 1.0)]


def test_a_start_at_the_first_point_s_own_time_is_none() -> None:
    # So a Collector has it that scrapes an exporter which has counted since the machine began.
    assert increments(counted(2, 2, 1000), counted(2, 3, 1007)) == [None, (7, 1.0)]


def test_a_collector_that_begins_to_scrape_anew_counts_nothing_twice() -> None:
    points = counted(2, 2, 1000), counted(2, 3, 1007), counted(9, 9, 1010), counted(9, 10, 1012)
    assert increments(*points) == [None, (7, 1.0), (3, 6.0), (2, 1.0)]


def test_an_exporter_that_was_restarted_with_its_collector_loses_what_nobody_saw_only() -> None:
    assert increments(counted(2, 2, 9), counted(2, 3, 10), counted(9, 9, 4)) == [
        None,
        (1, 1.0),
        (4, 0.0),
    ]


def test_delta_points_are_increments() -> None:
    assert increments(counted(1, 2, 5, "delta"), counted(2, 4, 5, "delta")) == [(5, 1.0), (5, 2.0)]


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
        buckets=buckets,
    )


def test_cumulative_histograms_become_differences() -> None:
    stream = HistogramStream()
    stream.advance(histogram(1, 2, (0, 1, 3), (1, 2, 1)))
    new = stream.advance(histogram(1, 3, (0, 1, 3), (1, 2, 4)))
    assert new is not None
    assert (new.count, new.total, new.buckets) == (3, 3.0, ((1, 2, 3),))


def test_extremes_of_the_whole_time_are_not_passed_off_as_the_intervals() -> None:
    stream = HistogramStream()
    stream.advance(histogram(1, 2, (0, 1, 3)))
    new = stream.advance(histogram(1, 3, (0, 1, 4)))
    assert new is not None
    assert (new.minimum, new.maximum) == (None, None)


def test_a_histogram_that_halves_its_resolution_keeps_its_counts() -> None:
    stream = HistogramStream()
    fine = [2 ** (i / 4) for i in range(5)]
    stream.advance(histogram(1, 2, *((lo, hi, 2) for lo, hi in itertools.pairwise(fine))))
    coarse = [2 ** (i / 2) for i in range(3)]
    new = stream.advance(histogram(1, 3, (coarse[0], coarse[1], 5), (coarse[1], coarse[2], 4)))
    assert new is not None
    assert [n for _, _, n in new.buckets] == [1]
    assert math.isclose(new.buckets[0][1], math.sqrt(2))


@pytest.mark.parametrize("kind", ["delta", "cumulative"])
def test_an_empty_histogram_says_nothing(kind: str) -> None:
    assert HistogramStream().advance(histogram(1, 2, kind=kind)) is None


def test_the_last_points_of_a_life_may_come_after_the_first_of_the_next() -> None:
    found = increments(counted(1, 2, 10), counted(5, 6, 3), counted(1, 4, 25), counted(5, 7, 4))
    assert [i and i[0] for i in found] == [10, 3, 15, 1]


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
    assert [i and i[0] for i in found] == [7] * 5 + [None] * (lives - 5)


def test_the_last_point_of_a_life_long_ago_is_not_counted_again() -> None:
    lives = [counted(2 * n, 2 * n + 1, 7) for n in range(1, 21)]
    found = increments(*lives, lives[0], lives[10])
    assert [i and i[0] for i in found] == [7] * 20 + [None, None]


def test_histograms_of_lives_that_come_in_reverse_are_bounded() -> None:
    stream = HistogramStream()
    found = [stream.advance(histogram(2 * n, 2 * n + 1, (0, 1, 3))) for n in range(3_000, 0, -1)]
    assert sum(new is not None for new in found) == 5
    assert stream.advance(histogram(6_000, 6_002, (0, 1, 4))) is not None
