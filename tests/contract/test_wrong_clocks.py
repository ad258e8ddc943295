"""Rates and means are those of all workers, however wrong the clock of one of them is."""

from collections import Counter

import pytest

from otel_rl.bridge.rows.series.worker_table import WorkerTable
from otel_rl.bridge.rows.settings import AlignSettings
from tests.contract.test_stock_sdk_numbers import T0, S, StockRun, counter, gauge, request

PER_S = 10
SECONDS = 120
WINDOW_S = 5

TWO_HOURS_S = 7200


def run(*ahead_s: float, **options: float) -> StockRun:
    """Workers that count ten a second and export every second, each by its own clock."""
    run = StockRun(**options)
    for second in range(1, SECONDS):
        for worker, by_s in enumerate(ahead_s):
            total = counter("tokens", by_s, by_s + second, PER_S * second)
            level = gauge("depth", by_s + second, worker)
            sent = request(total, level, instance=f"w{worker}")
            run.take(sent, after_s=1 / len(ahead_s))
    return run.end()


def rates(of: StockRun) -> Counter[float]:
    found = (row.values.get("trainer/tokens/rate") for row in of.rows)
    return Counter(round(rate, 3) for rate in found if rate is not None)


@pytest.mark.parametrize("ahead_s", [16, 20, 300, -20, -TWO_HOURS_S])
def test_the_rate_of_two_workers_is_of_both(ahead_s: float) -> None:
    found = rates(run(0, ahead_s))
    assert found[2 * PER_S] >= SECONDS / WINDOW_S - 4
    # Of a clock behind, the first seconds may as well have waited on the way.
    assert sum(found.values()) - found[2 * PER_S] <= 4


@pytest.mark.parametrize("ahead_s", [20, -20, -TWO_HOURS_S])
def test_the_clock_of_the_first_worker_may_be_the_wrong_one(ahead_s: float) -> None:
    found = rates(run(ahead_s, 0, 0))
    assert found[3 * PER_S] >= SECONDS / WINDOW_S - 4


@pytest.mark.parametrize("ahead_s", [20, -20, -TWO_HOURS_S])
def test_a_level_is_the_mean_of_both(ahead_s: float) -> None:
    of = run(0, ahead_s)
    levels = Counter(
        row.values["trainer/depth"] for row in of.rows if "trainer/depth" in row.values
    )
    assert levels[0.5] >= SECONDS / WINDOW_S - 4


@pytest.mark.parametrize("ahead_s", [0, 20, 300, -20, -TWO_HOURS_S])
def test_no_count_is_lost(ahead_s: float) -> None:
    assert run(0, ahead_s).last("trainer/tokens") == 2 * PER_S * (SECONDS - 1)


def test_rows_have_the_time_of_the_first_worker_when_all_clocks_are_behind() -> None:
    rows = run(-TWO_HOURS_S, -TWO_HOURS_S).rows
    expected = run(0, 0).rows
    assert [row.time_ns for row in rows] == [
        row.time_ns - TWO_HOURS_S * 1_000_000_000 for row in expected
    ]


def test_one_sample_of_the_future_closes_no_window_before_it() -> None:
    run = StockRun()
    run.take(request(gauge("forecast", 300, 1.0), instance="odd"))
    for second in range(1, SECONDS):
        for worker in "ab":
            total = counter("tokens", 0, second, PER_S * second)
            run.take(request(total, instance=worker), after_s=0.5)
    assert rates(run.end())[2 * PER_S] >= SECONDS / WINDOW_S - 4


def test_data_that_waited_on_the_way_keeps_its_time() -> None:
    run = StockRun()
    waiting = []
    for second in range(1, SECONDS):
        run.take(request(gauge("depth", second, 0), instance="here"), after_s=1)
        waiting.append(request(gauge("away", second, second), instance="away"))
        if second in (SECONDS // 2, SECONDS - 1):
            for sent in waiting:
                run.take(sent, after_s=0.01)
            waiting.clear()
    told = [row for row in run.end().rows if "trainer/away" in row.values]
    assert len(told) >= SECONDS / WINDOW_S
    for row in told:
        assert abs((row.time_ns - T0) / S - row.values["trainer/away"]) <= WINDOW_S


@pytest.mark.parametrize("speed", [1.1, 1.5, 2.0])
def test_data_of_a_queue_that_empties_slowly_keeps_its_time(speed: float) -> None:
    run = StockRun()
    seconds = range(1, 2 * SECONDS)
    arrivals = [
        *((at, gauge("depth", at, 0), "here") for at in seconds),
        *((max(at, SECONDS + at / speed), gauge("away", at, at), "away") for at in seconds),
    ]
    before = 0.0
    for at, sent, instance in sorted(arrivals, key=lambda one: one[0]):
        run.take(request(sent, instance=instance), after_s=at - before)
        before = at
    told = [row for row in run.end().rows if "trainer/away" in row.values]
    assert len(told) >= SECONDS / WINDOW_S
    for row in told:
        assert abs((row.time_ns - T0) / S - row.values["trainer/away"]) <= WINDOW_S


@pytest.mark.parametrize(("interval_s", "flush_s"), [(1, 30), (10, 30), (30, 30), (60, 20)])
def test_data_that_a_collector_keeps_for_a_while_each_time_keeps_its_time(
    interval_s: int, flush_s: int
) -> None:
    run = StockRun()
    for second in range(1, 5 * SECONDS):
        run.take(request(gauge("depth", second, 0), instance="here"), after_s=1)
        kept = range(second - flush_s, second) if second % flush_s == 0 else ()
        for at in kept:
            if at % interval_s == 2 * interval_s // 5:
                run.take(request(gauge("away", at, at), instance="away"), after_s=0)
    told = [row for row in run.end().rows if "trainer/away" in row.values]
    assert len(told) >= 3
    for row in told:
        assert abs((row.time_ns - T0) / S - row.values["trainer/away"]) <= WINDOW_S


def test_a_clock_that_is_set_right_is_right() -> None:
    run = StockRun()
    for second in range(1, SECONDS):
        for worker, start_s in (("a", 0), ("b", 20)):
            by_s = start_s if second < SECONDS // 2 else 0
            total = counter("tokens", start_s, by_s + second, PER_S * second)
            run.take(request(total, instance=worker), after_s=0.5)
    found = run.end()
    assert found.last("trainer/tokens") == 2 * PER_S * (SECONDS - 1)
    assert rates(found)[2 * PER_S] >= SECONDS / WINDOW_S - 6


@pytest.mark.parametrize("ahead_s", [16, 20, 300])
def test_no_sample_of_a_clock_that_is_ahead_is_late(ahead_s: float) -> None:
    of = run(0, ahead_s)
    assert of.aligner.sample_counts.late == 0
    assert rates(of).keys() == {2 * PER_S}


def test_clocks_are_compared_when_one_changes_not_in_each_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[object] = []
    compare = WorkerTable.compare_clocks

    def counted(table: WorkerTable, settings: AlignSettings) -> None:
        compared.append(table)
        compare(table, settings)

    monkeypatch.setattr(WorkerTable, "compare_clocks", counted)
    of = run(20, 20, 20)  # the bridge's clock is behind
    exports = 3 * (SECONDS - 1)
    looks = exports + 1
    assert len(compared) <= looks + 3
    assert rates(of)[3 * PER_S] >= SECONDS / WINDOW_S - 4
