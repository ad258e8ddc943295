"""Shares of steps become values of the step's row."""

import math

import pytest

from otel_rl.records import Buckets, Covered, HistogramPoint, Series, SumPoint, Temporality, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument
from tests.support.kept import revived
from tests.unit.bridge.rows.test_aligner import (
    RANK0,
    RANK1,
    SOLO,
    T0,
    Bench,
    S,
    by_step,
    counter,
    steps,
)


def share(
    worker: Worker,
    step: int | None,
    value: float,
    begun_s: float | None,
    ended_s: float,
    *,
    name: str = "tokens",
    before_s: float = -1.0,
) -> SumPoint:
    series = Series(worker, name, instrument=Instrument.COUNTER, data="share")
    end_ns = T0 + int(ended_s * S)
    return SumPoint(
        series,
        0 if begun_s is None else T0 + int(begun_s * S),
        end_ns,
        value,
        Temporality.DELTA,
        Covered(T0 + int(before_s * S), end_ns),
        step,
        is_share=True,
    )


def ages(worker: Worker, step: int, at_s: float, *values: float) -> HistogramPoint:
    series = Series(worker, "age", instrument=Instrument.HISTOGRAM, data="share")
    return HistogramPoint(
        series,
        T0,
        T0 + int(at_s * S),
        Temporality.DELTA,
        len(values),
        sum(values),
        min(values),
        max(values),
        Buckets.of((value - 1, value, 1) for value in values),
        Covered(T0 + int((at_s - 1) * S), T0 + int(at_s * S)),
        step,
        is_share=True,
    )


def ended(bench: Bench, key: str) -> list[tuple[int, float]]:
    return by_step(bench.rows(everything=True), key)


def test_pieces_of_a_step_are_one_growth_over_the_time_of_all() -> None:
    bench = Bench()
    bench.export(SOLO, share(SOLO, 1, 10, 0, 2), at_s=2)
    bench.export(SOLO, share(SOLO, 1, 20, 2, 5, before_s=2), at_s=5)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/tokens/per_step") == [(1, 30)]
    assert by_step(rows, "trainer/tokens/rate") == [(1, 6)]


def test_a_piece_of_one_series_tells_the_time_of_the_others() -> None:
    bench = Bench()
    bench.export(
        SOLO, share(SOLO, 1, 10, 0, 2), share(SOLO, 1, 5, 2, 5, name="other", before_s=2), at_s=5
    )
    assert ended(bench, "trainer/tokens/rate") == [(1, 2)]


@pytest.mark.parametrize("ended_s", [1.0, None])
def test_without_a_duration_there_is_a_growth_and_no_rate(ended_s: float | None) -> None:
    bench = Bench()
    begun_s = None if ended_s is None else ended_s
    bench.export(SOLO, share(SOLO, 1, 10, begun_s, 1), at_s=1)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/tokens/per_step") == [(1, 10)]
    assert by_step(rows, "trainer/tokens/rate") == []


def test_a_rate_of_some_workers_is_not_that_of_all() -> None:
    bench = Bench()
    bench.export(RANK0, share(RANK0, 1, 10, 0, 5), at_s=5)
    bench.export(RANK1, share(RANK1, 1, 10, None, 5), at_s=5)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/tokens/per_step") == [(1, 20)]
    assert by_step(rows, "trainer/tokens/rate") == []


def test_a_registered_reduction_is_that_of_growth_and_rate() -> None:
    bench = Bench()
    name = "rl.policy.updates"  # the mean over workers
    bench.export(RANK0, share(RANK0, 1, 10, 0, 5, name=name), at_s=5)
    bench.export(RANK1, share(RANK1, 1, 30, 0, 10, name=name), at_s=10)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/policy/updates/per_step") == [(1, 20)]
    assert by_step(rows, "trainer/policy/updates/rate") == [(1, 2.5)]


def test_a_share_that_comes_again_counts_once() -> None:
    bench = Bench()
    for _ in range(2):
        bench.export(SOLO, share(SOLO, 1, 10, 0, 2), ages(SOLO, 1, 2, 3.0), at_s=2)
        bench.aligner = revived(bench.aligner)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/tokens/per_step") == [(1, 10)]
    assert by_step(rows, "trainer/age/count") == [(1, 1)]
    assert bench.aligner.sample_counts.duplicate == 2


def test_the_growth_of_a_late_share_is_added_to_that_of_its_step() -> None:
    bench = Bench()
    for number in range(1, 4):
        one = share(SOLO, number, 10, number, number + 1, before_s=number)
        bench.export(SOLO, one, steps(SOLO, {number: 1.0}, at_s=number + 1), at_s=number + 1)
    rows = bench.rows()
    assert by_step(rows, "trainer/tokens/per_step") == [(1, 10), (2, 10)]
    bench.export(SOLO, share(SOLO, 1, 5, 1, 2, name="tokens", before_s=0.5), at_s=5)
    bench.export(SOLO, share(SOLO, 4, 10, 4, 6, before_s=5), at_s=6)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/tokens/per_step") == [(1, 15), (3, 10), (4, 10)]
    assert bench.aligner.sample_counts.late == 1


def test_a_share_at_the_end_of_a_step_that_was_overdue_is_at_it() -> None:
    bench = Bench(wait_s=10)
    for number in range(1, 4):
        at_s = 60 * number
        bench.export(SOLO, steps(SOLO, {number: 1.0}, at_s=at_s + 5), at_s=at_s + 5)
        assert by_step(bench.rows(at_s=at_s + 40))[-1] == (number, 1.0)
        one = share(SOLO, number, 10, at_s, at_s + 50, before_s=at_s - 10)
        bench.export(SOLO, one, at_s=at_s + 50)
        assert by_step(bench.rows(at_s=at_s + 55), "trainer/tokens/per_step") == [(number, 10)]


def test_windows_leave_out_what_stands_in_steps() -> None:
    bench = Bench(window_s=1)
    bench.export(SOLO, counter(SOLO, 1, 10), at_s=1)
    announcement = share(SOLO, None, 0, 1, 1)
    bench.export(SOLO, announcement, counter(SOLO, 3, 30), at_s=3)
    bench.export(SOLO, counter(SOLO, 9, 90), at_s=9)
    rows = [*bench.rows(), *bench.rows(everything=True)]
    assert by_step(rows, "trainer/tokens")[-1] == (0, 90)
    assert by_step(rows, "trainer/tokens/rate") == []


def test_workers_with_steps_of_their_own_have_the_distribution_of_all() -> None:
    bench = Bench()
    bench.export(RANK0, ages(RANK0, 1, 1, 1.0, 2.0), at_s=1)
    bench.export(RANK1, ages(RANK1, 1, 1, 6.0), at_s=1)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/age") == [(1, 3.0)]
    assert by_step(rows, "trainer/age/count") == [(1, 3)]
    assert by_step(rows, "trainer/age/max") == [(1, 6.0)]


def test_each_worker_has_rows_of_its_own_where_that_is_set() -> None:
    bench = Bench(per_worker=True)
    bench.export(RANK0, share(RANK0, 1, 10, 0, 5), ages(RANK0, 1, 1, 4.0), at_s=5)
    bench.export(RANK1, share(RANK1, 1, 10, 0, 10), at_s=10)
    rows = bench.rows(everything=True)
    assert by_step(rows, "workers/trainer/0/tokens/rate") == [(1, 2)]
    assert by_step(rows, "workers/trainer/1/tokens/rate") == [(1, 1)]
    assert by_step(rows, "workers/trainer/1/tokens/per_step") == [(1, 10)]
    assert by_step(rows, "workers/trainer/0/age") == [(1, 4.0)]


def test_the_miss_ratio_of_a_step_is_a_ratio_of_sums() -> None:
    bench = Bench()
    first, second = (Worker("generator", f"g{index}", index, 2) for index in range(2))
    for worker, asked, hit in ((first, 100, 90), (second, 300, 30)):
        bench.export(
            worker,
            share(worker, 1, asked, 0, 1, name=names.RL_GENERATOR_KV_CACHE_QUERIES),
            share(worker, 1, hit, 0, 1, name=names.RL_GENERATOR_KV_CACHE_HITS),
            at_s=1,
        )
    assert ended(bench, "generator/kv_cache/miss/ratio") == [(1, 1 - 120 / 400)]


def test_a_nan_is_in_its_step_only() -> None:
    bench = Bench()
    bench.export(SOLO, share(SOLO, 1, math.nan, 0, 1), share(SOLO, 2, 5, 1, 2, before_s=1), at_s=2)
    rows = bench.rows(everything=True)
    assert by_step(rows, "trainer/tokens/per_step")[1] == (2, 5)
    assert math.isnan(by_step(rows, "trainer/tokens/rate")[0][1])
