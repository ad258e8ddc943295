"""Points in any order to rows: what a researcher sees in the run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from otel_rl.bridge import keys
from otel_rl.bridge.rows.messages import SHARED
from otel_rl.bridge.rows.reduce import Moments
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Buckets,
    Covered,
    Decoded,
    ExperimentKey,
    Export,
    HistogramPoint,
    Measurements,
    Point,
    Row,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument, Reduction
from tests.support.kept import revived, to_bytes

KEY = ExperimentKey("exp")
S = 1_000_000_000
T0 = 1_700_000_000 * S

RANK0 = Worker("trainer", "a", index=0, count=2)
RANK1 = Worker("trainer", "b", index=1, count=2)
SOLO = Worker("trainer", "solo", index=0, count=1)
GENERATOR0 = Worker("generator", "g0", index=0, count=1)


def steps(
    worker: Worker,
    values: dict[int, float],
    *,
    name: str = "loss",
    at_s: float = 0.0,
    reduction: Reduction | None = None,
    attributes: tuple[tuple[str, str], ...] = (),
) -> Measurements:
    series = Series(worker, name, "", attributes, reduction)
    times = [T0 + int((at_s + 0.001 * place) * S) for place in range(len(values))]
    return Measurements(series, times, list(values.values()), list(values))


def levels(worker: Worker, values: dict[float, float], *, name: str = "depth") -> Measurements:
    times = [T0 + int(at_s * S) for at_s in values]
    return Measurements(Series(worker, name), times, list(values.values()), [None] * len(values))


class Bench:
    """An aligner and a clock that tests move by hand."""

    def __init__(self, **settings: float | bool) -> None:
        self.aligner = Run(AlignSettings.model_validate(settings))
        self.now_s = 0.0

    def export(self, worker: Worker, *points: Point, at_s: float | None = None) -> None:
        """One export of ``worker``, received at ``at_s`` (default: the latest point's time)."""
        latest = max((_latest(point) for point in points), default=0)
        received = T0 + int(at_s * S) if at_s is not None else latest
        self.aligner.add(Decoded(points, [Export(worker, latest)]), received_ns=received)
        self.now_s = max(self.now_s, (received - T0) / S)

    def rows(self, *, at_s: float | None = None, everything: bool = False) -> list[Row]:
        now_s = self.now_s if at_s is None else at_s
        return reported(self.aligner.close(T0 + int(now_s * S), everything=everything))


def reported(rows: Iterable[Row]) -> list[Row]:
    """What workers report, without what the bridge says of them: see ``test_roster.py``."""
    found = [
        replace(row, values={k: v for k, v in row.values.items() if not k.startswith("service/")})
        for row in rows
    ]
    return [row for row in found if row.values or row.tables]


def _latest(point: Point) -> int:
    return max(point.times_ns) if isinstance(point, Measurements) else point.time_ns


def by_step(rows: Sequence[Row], key: str = "trainer/loss") -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


def test_a_step_is_closed_when_every_rank_has_gone_past_it() -> None:
    bench = Bench()
    bench.export(RANK0, steps(RANK0, {1: 1.0, 2: 2.0}), at_s=1)
    assert bench.rows() == []
    bench.export(RANK1, steps(RANK1, {1: 3.0, 2: 4.0}), at_s=1.1)
    assert by_step(bench.rows()) == [(1, 2.0)]


def test_a_rank_that_was_announced_and_has_not_come_is_waited_for() -> None:
    bench = Bench(start_wait_s=5)
    bench.export(RANK0, steps(RANK0, {1: 1.0, 2: 2.0, 3: 2.0}), at_s=1)
    assert bench.rows(at_s=60.9) == []
    assert by_step(bench.rows(at_s=61.1)) == [(1, 1.0), (2, 2.0), (3, 2.0)]


def test_a_dead_rank_holds_steps_open_only_until_its_lease_ends() -> None:
    bench = Bench(wait_s=1000, worker_timeout_s=15)
    bench.export(RANK0, steps(RANK0, {1: 1.0}), at_s=1)
    bench.export(RANK1, steps(RANK1, {1: 3.0}), at_s=1)
    bench.export(RANK0, steps(RANK0, {2: 1.0, 3: 1.0}), at_s=15)
    assert bench.rows(at_s=15.5) == []
    assert by_step(bench.rows(at_s=16.5)) == [(1, 2.0), (2, 1.0), (3, 1.0)]


def test_a_rank_that_has_reported_other_things_first_is_waited_for() -> None:
    """It exports the memory it uses before its first step is done."""
    bench = Bench(wait_s=10)
    bench.export(RANK1, levels(RANK1, {0.5: 1.0}, name="memory"), at_s=0.5)
    bench.export(RANK0, steps(RANK0, {1: 1.0, 2: 2.0, 3: 3.0}), at_s=1)
    assert by_step(bench.rows(at_s=1)) == []
    bench.export(RANK1, steps(RANK1, {1: 3.0, 2: 4.0}), at_s=2)
    assert by_step(bench.rows(at_s=2)) == [(1, 2.0)]


def test_a_role_in_which_only_one_worker_reports_steps_is_not_late_for_ever() -> None:
    bench = Bench(wait_s=10)
    for worker in (RANK0, RANK1):
        bench.export(worker, levels(worker, {0.5: 1.0}, name="memory"), at_s=0.5)
    for at_s in (20, 21):
        bench.export(RANK1, levels(RANK1, {at_s: 1.0}, name="memory"), at_s=at_s)
    bench.export(RANK0, steps(RANK0, {1: 1.0, 2: 2.0, 3: 3.0}), at_s=21)
    assert by_step(bench.rows(at_s=25.9)) == []
    assert by_step(bench.rows(at_s=26.1)) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_workers_that_were_announced_and_never_come_are_not_waited_for_for_ever() -> None:
    """A launcher's world size may count the workers of other roles."""
    bench = Bench(start_wait_s=1)
    bench.export(RANK0, steps(RANK0, {1: 1.0}), at_s=1)
    bench.export(RANK0, steps(RANK0, {2: 2.0, 3: 3.0}), at_s=13)
    assert by_step(bench.rows(at_s=13)) == [(1, 1.0), (2, 2.0)]


def test_the_newest_step_of_a_slow_run_is_shown_when_it_has_what_the_last_had() -> None:
    bench = Bench(wait_s=1000)
    for at_s, step in ((1, 1), (100, 2), (200, 3)):
        bench.export(SOLO, steps(SOLO, {step: 1.0}), steps(SOLO, {step: 1.0}, name="kl"), at_s=at_s)
    assert by_step(bench.rows(at_s=200.5)) == [(1, 1.0), (2, 1.0)]
    assert by_step(bench.rows(at_s=201)) == [(3, 1.0)]
    assert bench.aligner.sample_counts.late == 0


def test_the_newest_step_waits_for_a_series_that_the_last_step_had() -> None:
    bench = Bench(wait_s=1000)
    bench.export(SOLO, steps(SOLO, {1: 1.0, 2: 1.0}), steps(SOLO, {1: 1.0, 2: 1.0}, name="kl"))
    bench.export(SOLO, steps(SOLO, {3: 1.0}), at_s=10)
    bench.export(SOLO, levels(SOLO, {12: 1.0}), at_s=12)
    assert by_step(bench.rows(at_s=13)) == [(1, 1.0), (2, 1.0)]
    bench.export(SOLO, steps(SOLO, {3: 1.0}, name="kl"), at_s=14)
    (row,) = [row for row in bench.rows(at_s=15) if row.step == 3]
    assert {"trainer/loss", "trainer/kl"} <= set(row.values)


def test_half_a_step_in_an_export_does_not_split_the_row() -> None:
    """The stock SDK collects one instrument after another."""
    bench = Bench()
    bench.export(SOLO, steps(SOLO, {1: 1.0}), steps(SOLO, {1: 9.0, 2: 9.0}, name="kl"), at_s=1)
    bench.export(SOLO, steps(SOLO, {2: 2.0, 3: 3.0}), steps(SOLO, {3: 9.0}, name="kl"), at_s=2)
    rows = bench.rows()
    assert [sorted(row.values) for row in rows] == [["trainer/kl", "trainer/loss"]] * 2


def test_an_export_that_comes_again_is_no_further_one() -> None:
    """After a lost answer, while the rest of a step is still to come."""
    bench = Bench()
    first = [steps(SOLO, {1: 1.0}), steps(SOLO, {1: 9.0, 2: 9.0}, name="kl")]
    bench.export(SOLO, *first, at_s=1)
    second = [steps(SOLO, {2: 2.0}, at_s=1), steps(SOLO, {3: 9.0}, name="kl", at_s=1)]
    bench.export(SOLO, *second, at_s=2)
    for at_s in (2.5, 3):
        bench.export(SOLO, *first, *second, at_s=at_s)
    assert by_step(bench.rows()) == [(1, 1.0)]
    bench.export(SOLO, steps(SOLO, {3: 3.0}, at_s=2), steps(SOLO, {4: 9.0}, name="kl", at_s=2))
    assert by_step(bench.rows(at_s=4)) == [(2, 2.0)]


def test_a_series_that_reports_now_and_then_does_not_hold_up_the_others() -> None:
    bench = Bench(wait_s=1000)
    bench.export(SOLO, steps(SOLO, {1: 1.0}), steps(SOLO, {1: 5.0}, name="eval"), at_s=1)
    bench.export(SOLO, steps(SOLO, {2: 2.0, 3: 3.0}), at_s=2)
    bench.export(SOLO, steps(SOLO, {4: 4.0}), at_s=3)
    assert by_step(bench.rows()) == [(1, 1.0), (2, 2.0)]


def test_a_late_sample_joins_the_row_of_its_step() -> None:
    bench = Bench()
    bench.export(SOLO, steps(SOLO, {1: 1.0, 2: 2.0, 3: 3.0}), at_s=1)
    bench.rows()
    bench.export(SOLO, steps(SOLO, {1: 7.0}, name="judge"), at_s=2)
    late = bench.rows(at_s=60)
    assert [(row.step, row.values, row.replaces) for row in late if row.step == 1] == [
        (1, {"trainer/judge": 7.0, "trainer/loss": 1.0}, True)
    ]
    assert bench.aligner.sample_counts.late == 1


def test_every_late_sample_is_counted() -> None:
    bench = Bench(window_s=1)
    bench.export(SOLO, steps(SOLO, {1: 1.0, 2: 2.0, 3: 3.0}), levels(SOLO, {0.1: 1.0}), at_s=1)
    bench.rows(everything=True)
    late = [steps(SOLO, {1: 7.0}, name=name) for name in ("a", "b")]
    bench.export(SOLO, *late, levels(SOLO, {0.2: 1.0, 0.3: 1.0, 0.4: 1.0}), at_s=2)
    assert bench.aligner.sample_counts.late == 5


def test_row_numbers_have_no_gaps_over_both_kinds_of_rows() -> None:
    bench = Bench(window_s=1)
    bench.export(SOLO, steps(SOLO, dict.fromkeys(range(20), 1.0)), levels(SOLO, {0.5: 1, 1.5: 2}))
    rows = [*bench.rows(), *bench.rows(everything=True)]
    assert [row.number for row in rows] == list(range(len(rows)))
    assert len(rows) == 22


def test_nan_stands_at_its_step() -> None:
    bench = Bench()
    bench.export(SOLO, steps(SOLO, {1: 1.0, 2: math.nan, 3: math.inf}), at_s=1)
    values = [value for _, value in by_step(bench.rows(everything=True))]
    assert values[0] == 1.0
    assert math.isnan(values[1])
    assert values[2] == math.inf


def test_a_reduction_given_by_the_sender_wins() -> None:
    bench = Bench()
    for worker, value in ((RANK0, 1.0), (RANK1, 5.0)):
        bench.export(worker, steps(worker, {1: value}, reduction=Reduction.MAX), at_s=1)
    assert by_step(bench.rows(everything=True)) == [(1, 5.0)]


def test_the_registrys_reduction_is_used_for_its_metrics() -> None:
    bench = Bench()
    for worker, value in ((RANK0, 1.0), (RANK1, 5.0)):
        bench.export(worker, steps(worker, {1: value}, name="rl.train.grad.abs_max"), at_s=1)
    assert by_step(bench.rows(everything=True), "trainer/grad/abs_max") == [(1, 5.0)]


def test_names_that_look_alike_get_different_keys() -> None:
    bench = Bench()
    bench.export(SOLO, steps(SOLO, {1: 1.0}, name="a.b"), steps(SOLO, {1: 2.0}, name="a/b"), at_s=1)
    (row,) = bench.rows(everything=True)
    assert sorted(row.values.values()) == [1.0, 2.0]
    assert "trainer/a/b" in row.values


def test_a_run_keeps_its_keys_under_a_bridge_that_would_make_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(per_worker=True)
    with monkeypatch.context() as earlier:
        earlier.setattr(keys, "_FORBIDDEN", frozenset("@"))
        bench.export(SOLO, steps(SOLO, {1: 0.5}, name="pass@1"), at_s=1)
        (before,) = bench.rows(everything=True)
    bench.aligner = revived(bench.aligner)
    pass_at = [steps(SOLO, {2: 0.6}, name=name) for name in ("pass@1", "pass@2")]
    bench.export(SOLO, *pass_at, at_s=2)
    (after,) = bench.rows(everything=True)
    assert {*before.values} == {"trainer/pass_x40_1", "workers/trainer/0/pass_x40_1"}
    assert {*after.values} == {*before.values, "trainer/pass@2", "workers/trainer/0/pass@2"}


def test_the_pipeline_time_is_the_sum_of_its_phases() -> None:
    bench = Bench()
    durations = {"h2d_copy": 1.0, "train": 2.0, "param_sync": 4.0, "weight_sync": 8.0}
    bench.export(
        SOLO,
        *(
            steps(SOLO, {1: s}, name="rl.phase.duration", attributes=(("rl.phase", phase),))
            for phase, s in {**durations, "collector_wait": 16.0}.items()
        ),
        at_s=1,
    )
    (row,) = bench.rows(everything=True)
    assert row.values["trainer/pipeline/duration"] == 15.0
    assert row.values["phase/trainer/collector_wait"] == 16.0


def test_time_driven_rows_carry_the_step_in_progress() -> None:
    bench = Bench(window_s=1)
    bench.export(GENERATOR0, levels(GENERATOR0, {0.1: 1, 1.1: 1, 2.1: 1}))
    bench.export(SOLO, steps(SOLO, {7: 0.0}, at_s=1.05), steps(SOLO, {8: 0.0}, at_s=2.05))
    rows = [row for row in bench.rows(everything=True) if "generator/depth" in row.values]
    assert [row.step for row in rows] == [0, 7, 8]


def test_who_tells_its_policy_version_before_anybody_steps_does_not_lead() -> None:
    bench = Bench(window_s=1)
    sampler, learner = (Worker(role, role, index=0, count=1) for role in ("sampler", "learner"))
    bench.export(sampler, levels(sampler, {0.1: 3}, name="rl.policy.version"))
    bench.export(learner, steps(learner, {7: 0.0}, at_s=1.05))
    bench.export(learner, steps(learner, {7: 4.0}, name="rl.policy.version", at_s=1.1))
    bench.export(sampler, levels(sampler, {2.1: 1}))
    (row,) = (row for row in bench.rows(everything=True) if "sampler/depth" in row.values)
    assert (row.step, row.policy_version) == (7, 4)


def test_rows_carry_the_policy_version() -> None:
    bench = Bench(window_s=1)
    bench.export(
        SOLO,
        steps(SOLO, {1: 3}, name="rl.policy.version", at_s=0.1),
        steps(SOLO, {1: 0.5}, at_s=0.1),
        levels(SOLO, {0.5: 1.0}),
    )
    assert [row.policy_version for row in bench.rows(everything=True)] == [3, 3]


def counter(worker: Worker, at_s: float, value: float, *, start_s: float = 0.0) -> SumPoint:
    return SumPoint(
        Series(worker, "tokens", instrument=Instrument.COUNTER),
        T0 + int(start_s * S),
        T0 + int(at_s * S),
        value,
        Temporality.CUMULATIVE,
    )


def test_counters_become_totals_and_rates_over_workers() -> None:
    bench = Bench(window_s=2)
    for index, tokens in ((0, 100), (1, 300)):
        worker = Worker("generator", f"g{index}", index=index, count=2)
        bench.export(worker, counter(worker, 1, tokens), counter(worker, 1.9, tokens * 2))
    (row,) = bench.rows(everything=True)
    assert row.values["generator/tokens"] == 800
    assert row.values["generator/tokens/rate"] == pytest.approx(800 / 1.9)


def test_a_counters_total_survives_the_restart_of_its_worker() -> None:
    bench = Bench(window_s=1)
    before = Worker("generator", "old", index=0)
    after = Worker("generator", "new", index=0)
    bench.export(before, counter(before, 0.5, 100))
    bench.export(after, counter(after, 5.5, 10, start_s=5))
    rows = bench.rows(everything=True)
    assert [row.values["generator/tokens"] for row in rows] == [100, 110]


@pytest.mark.parametrize("first", [10, 1.5], ids=["integers first", "floats first"])
@pytest.mark.parametrize("shift_s", [0, 0.001], ids=["one time", "times of their own"])
def test_deltas_of_two_counters_of_one_name_count_once_each(first: float, shift_s: float) -> None:
    """SDKs send a counter of integers and one of floats with the same name so."""
    bench = Bench(window_s=60)
    second = 11.5 - first
    for begin in range(5):
        points = [
            replace(
                counter(GENERATOR0, begin + 1 + shift, value, start_s=begin + shift),
                temporality=Temporality.DELTA,
                covers=Covered(0, T0 + int((begin + 1 + shift) * S)),
            )
            for value, shift in ((first, 0), (int(second) if second == 10 else second, shift_s))
        ]
        for _ in range(2):  # the answer to the first request is lost
            bench.export(GENERATOR0, *points)
    rows = [row for row in bench.aligner.close(T0 + 60 * S, everything=True) if row.values]
    assert rows[-1].values["generator/tokens"] == 5 * 11.5
    assert rows[-1].values["generator/tokens/rate"] == pytest.approx(11.5, rel=1e-3)
    assert not any(SHARED in row.labels for row in rows)


@pytest.mark.parametrize("temporality", Temporality)
def test_two_totals_of_one_series_and_time_are_told(temporality: Temporality) -> None:
    """The Collector's groupbyattrs moves what distinguishes them to the resource."""
    bench = Bench(window_s=60)
    for second in range(1, 5):
        is_delta = temporality is Temporality.DELTA
        points = [
            replace(
                counter(GENERATOR0, second, value, start_s=second - 1 if is_delta else 0),
                temporality=temporality,
                covers=Covered(0, T0 + second * S) if is_delta else None,
            )
            for value in (3 * second, 5 * second)
        ]
        bench.export(GENERATOR0, *points)
    rows = bench.aligner.close(T0, everything=True)
    told = [row.labels[SHARED] for row in rows if SHARED in row.labels]
    assert len(told) == 1
    assert "several totals at a time" in told[0]
    total = 8 * (1 + 2 + 3 + 4) if temporality is Temporality.DELTA else 5 * 4
    assert last_of(rows, "generator/tokens") == total


def last_of(rows: Sequence[Row], key: str) -> float:
    return [row.values[key] for row in rows if key in row.values][-1]


def test_what_is_counted_after_the_last_export_counts_though_its_interval_is_that_export_s() -> (
    None
):
    """Micrometer's registry sends it so when it is closed."""
    bench = Bench(window_s=60)
    for second, value in ((1, 10), (2, 12), (2, 3), (2, 3), (2, 12), (1, 10)):
        point = replace(
            counter(GENERATOR0, second, value, start_s=second - 1),
            temporality=Temporality.DELTA,
            covers=Covered(0, T0 + second * S),
        )
        bench.export(GENERATOR0, point)
    rows = bench.aligner.close(T0, everything=True)
    assert last_of(rows, "generator/tokens") == 10 + 12 + 3
    assert last_of(rows, "generator/tokens/rate") == pytest.approx(25 / 2)
    assert not any(SHARED in row.labels for row in rows)


@pytest.mark.parametrize("amount", [3, math.nan])
@pytest.mark.parametrize("temporality", Temporality)
def test_a_repeated_total_is_told_nothing(temporality: Temporality, amount: float) -> None:
    bench = Bench(window_s=60)
    for second in range(1, 4):
        is_delta = temporality is Temporality.DELTA
        point = replace(
            counter(GENERATOR0, second, amount * second, start_s=second - 1 if is_delta else 0),
            temporality=temporality,
            covers=Covered(0, T0 + second * S) if is_delta else None,
        )
        bench.export(GENERATOR0, point)
        bench.export(GENERATOR0, point)
    assert not any(SHARED in row.labels for row in bench.aligner.close(T0, everything=True))


def test_levels_are_summed_over_workers_and_not_over_time() -> None:
    bench = Bench(window_s=5)
    for index in range(2):
        worker = Worker("generator", f"g{index}", index=index)
        bench.export(worker, levels(worker, {1: 2, 2: 4}, name="rl.generator.queue.depth"))
    (row,) = bench.rows(everything=True)
    assert row.values["generator/queue/depth"] == 6


def test_an_up_down_counter_is_a_level() -> None:
    bench = Bench(window_s=5)
    series = Series(GENERATOR0, "running", instrument=Instrument.UP_DOWN_COUNTER)
    bench.export(
        GENERATOR0,
        *(
            SumPoint(series, T0, T0 + at * S, change, Temporality.DELTA)
            for at, change in ((1, +3), (2, -1))
        ),
    )
    (row,) = bench.rows(everything=True)
    assert row.values["generator/running"] == pytest.approx((3 + 2) / 2)


def test_histograms_of_several_workers_are_merged_before_their_quantiles() -> None:
    bench = Bench(window_s=5)
    for index, bucket in enumerate(((0.0, 10.0, 99), (90.0, 100.0, 1))):
        worker = Worker("generator", f"g{index}", index=index)
        bench.export(
            worker,
            HistogramPoint(
                Series(worker, "latency", instrument=Instrument.HISTOGRAM),
                T0,
                T0 + S,
                Temporality.DELTA,
                count=bucket[2],
                total=bucket[2] * (bucket[0] + 5),
                minimum=bucket[0],
                maximum=bucket[1],
                buckets=Buckets.of([bucket]),
            ),
        )
    (row,) = bench.rows(everything=True)
    assert row.values["generator/latency/p50"] < 10
    assert row.values["generator/latency/max"] == 100
    assert row.values["generator/latency"] == pytest.approx((99 * 5 + 95) / 100)


def test_the_worst_summary_quantile_stands_for_the_role() -> None:
    bench = Bench(window_s=5)
    for index, p99 in enumerate((1.0, 3.0)):
        worker = Worker("generator", f"g{index}", index=index)
        point = SummaryPoint(Series(worker, "rpc"), T0 + S, 10, 5.0, ((0.99, p99),))
        bench.export(worker, point)
    (row,) = bench.rows(everything=True)
    assert row.values["generator/rpc/p99"] == 3.0


def test_the_miss_ratio_is_a_ratio_of_sums() -> None:
    bench = Bench(window_s=5)
    for index, (queries, hits) in enumerate(((100, 90), (900, 0))):
        worker = Worker("generator", f"g{index}", index=index)
        for name, value in (("queries", queries), ("hits", hits)):
            name = f"rl.generator.kv_cache.{name}"
            series = Series(worker, name, instrument=Instrument.COUNTER)
            bench.export(worker, SumPoint(series, T0, T0 + S, value, Temporality.CUMULATIVE))
    (row,) = bench.rows(everything=True)
    assert row.values["generator/kv_cache/miss/ratio"] == pytest.approx(1 - 90 / 1000)


def test_a_window_waits_for_the_clock_of_every_live_worker() -> None:
    bench = Bench(window_s=1)
    slow = Worker("generator", "slow", index=1)
    bench.export(GENERATOR0, levels(GENERATOR0, {0.5: 1}))
    bench.export(slow, levels(slow, {0.2: 3}), at_s=0.6)
    bench.export(GENERATOR0, levels(GENERATOR0, {1.5: 1}))
    assert bench.rows() == []
    bench.export(slow, levels(slow, {1.2: 3}), at_s=1.6)
    assert [row.values["generator/depth"] for row in bench.rows()] == [2.0]


def test_with_per_worker_series_every_measurement_is_in_the_run_once() -> None:
    bench = Bench(per_worker=True, window_s=5)
    measured: dict[int, list[float]] = {}
    for index in range(3):
        worker = Worker("worker", f"w{index}")
        made = {i / 100 + index / 1000: float(index * 1000 + i) for i in range(100)}
        measured[index] = list(made.values())
        bench.export(worker, levels(worker, made, name="x"))
    rows = bench.rows(everything=True)
    for index, values in measured.items():
        key = f"workers/worker/{index}/x"
        assert [row.values[key] for row in rows if key in row.values] == values
    assert len(rows) <= 102  # wide rows, not one a measurement


def test_with_per_worker_series_a_step_keeps_what_was_measured_in_it_several_times() -> None:
    bench = Bench(per_worker=True)
    series = Series(SOLO, "loss")
    times = [T0 + n for n in range(4)]
    bench.export(SOLO, Measurements(series, times, [1.0, 2.0, 3.0, 9.0], [5, 5, 5, 6]), at_s=1)
    rows = bench.rows(everything=True)
    key = "workers/trainer/0/loss"
    assert [(row.step, row.values[key]) for row in rows] == [(5, 1.0), (5, 2.0), (5, 3.0), (6, 9.0)]
    assert by_step(rows) == [(5, 2.0), (6, 9.0)]


def test_per_worker_series_have_a_bound_of_their_own_and_the_role_s_value_has_all() -> None:
    bench = Bench(per_worker=True, max_worker_series=3)
    for index in range(5):
        worker = Worker("trainer", f"w{index}", index=index, count=5)
        bench.export(worker, steps(worker, {1: float(index)}), at_s=1)
    rows = bench.rows(everything=True)
    own = {key for row in rows for key in row.values if key.startswith("workers/")}
    assert own == {f"workers/trainer/{index}/loss" for index in range(3)}
    assert by_step(rows) == [(1, 2.0)]


def test_without_room_for_per_worker_series_there_are_none() -> None:
    bench = Bench(per_worker=True, max_worker_series=0)
    bench.export(SOLO, steps(SOLO, {1: 4.0}), at_s=1)
    rows = bench.rows(everything=True)
    assert by_step(rows) == [(1, 4.0)]
    assert not any(key.startswith("workers/") for row in rows for key in row.values)


def test_the_series_of_dead_workers_do_not_keep_out_those_of_the_living() -> None:
    bench = Bench(max_series=100, worker_timeout_s=5, window_s=1)
    for number in range(50):
        worker = Worker("env", f"e{number}")
        points = [levels(worker, {number * 2.0: 1.0}, name=f"m{i}") for i in range(9)]
        bench.export(worker, *points)
        bench.rows()
    assert bench.aligner.sample_counts.too_many_series == 0


def test_workers_that_come_and_go_have_the_rate_of_the_window_between_them() -> None:
    bench = Bench(window_s=5)
    for number in range(20):
        worker = Worker("env", f"e{number}")
        at_s = (number + 1) * 0.2
        bench.export(worker, counter(worker, at_s, 100, start_s=at_s - 0.1))
    (row,) = bench.rows(everything=True)
    assert row.values["env/tokens/rate"] == pytest.approx(2000 / 3.9)


def test_workers_without_an_index_are_numbered_as_they_appear() -> None:
    bench = Bench(per_worker=True)
    for instance in ("x", "y"):
        worker = Worker("worker", instance)
        bench.export(worker, steps(worker, {1: 1.0}), at_s=1)
    (row,) = bench.rows(everything=True)
    assert {"workers/worker/0/loss", "workers/worker/1/loss"} <= set(row.values)


def test_a_worker_without_an_index_takes_none_that_another_has_or_will_have() -> None:
    bench = Bench(per_worker=True)
    forked = Worker("trainer", "child of rank 0")
    for worker, value in ((RANK0, 1.0), (forked, 50.0), (RANK1, 2.0)):
        bench.export(worker, steps(worker, {1: value}), at_s=1)
    (row,) = bench.rows(everything=True)
    own = {key: value for key, value in row.values.items() if key.startswith("workers/")}
    assert own == {f"workers/trainer/{n}/loss": v for n, v in ((0, 1.0), (1, 2.0), (2, 50.0))}


def test_a_counter_that_was_just_made_has_a_total_and_no_absurd_rate() -> None:
    bench = Bench(window_s=5)
    bench.export(GENERATOR0, counter(GENERATOR0, 0.001, 10))
    (row,) = bench.rows(everything=True)
    assert row.values == {"generator/tokens": 10}


def train(
    bench: Bench, *, begin_s: float, end_s: float, every_s: float, by_s: float = 12.0
) -> list[float]:
    """Twelve thousand tokens at the end of each step of ``by_s``. Returns the rates in the run."""
    rows, at_s, made = [], begin_s, 0.0
    while at_s < end_s:
        at_s = min(at_s + every_s, end_s)
        made = 12_000.0 * ((at_s - begin_s + 1e-6) // by_s)
        bench.export(SOLO, counter(SOLO, at_s, made, start_s=begin_s))
        rows += bench.rows()
    rows += bench.rows(everything=True)
    assert rows[-1].values["trainer/tokens"] == made
    return [value for row in rows for key, value in row.values.items() if key.endswith("/rate")]


@pytest.mark.parametrize("every_s", [0.5, 1.0, 2.6, 4.0, 12.0, 60.0])
@pytest.mark.parametrize("begin_s", [0.0, 3.7, 4.99])
@pytest.mark.parametrize("lasts_s", [60.001, 60.1, 61.0, 61.9, 63.0, 72.02])
def test_a_window_that_is_cut_shows_no_rate_that_no_whole_window_shows(
    every_s: float, begin_s: float, lasts_s: float
) -> None:
    """Steps of 12 s in windows of 5 s: 12,000 tokens at once are 2,400 a second of a window."""
    rates = train(Bench(), begin_s=begin_s, end_s=begin_s + lasts_s, every_s=every_s)
    assert rates
    # A window of 5 s may hold the exports of no more than 5 s less one interval.
    seconds = max(min(5.0, 5.0 - every_s), 2.5) if every_s < 5 else every_s
    assert max(rates) <= 12_000 * max(1, every_s // 12) / seconds * 1.001


@pytest.mark.parametrize("every_s", [12.0, 24.0])
def test_what_is_exported_at_the_end_of_each_step_has_its_true_rate_to_the_end(
    every_s: float,
) -> None:
    rates = train(Bench(), begin_s=3.7, end_s=3.7 + 72, every_s=every_s)
    assert rates == pytest.approx([1000.0] * len(rates))
    assert len(rates) == 72 // every_s


def test_a_worker_that_has_left_before_the_end_of_a_window_leaves_a_total_and_no_rate() -> None:
    bench = Bench(worker_timeout_s=5)
    for at_s in (1.0, 2.0, 3.0, 4.0, 5.0):
        bench.export(SOLO, counter(SOLO, at_s, 0.0))
    bench.export(SOLO, counter(SOLO, 5.6, 12_000.0))
    for at_s in (5.0, 6.0, 11.0, 16.0, 21.0):
        bench.export(GENERATOR0, levels(GENERATOR0, {at_s: 1.0}))
    (row,) = [row for row in bench.rows() if row.values.get("trainer/tokens")]
    assert row.values["trainer/tokens"] == 12_000
    assert "trainer/tokens/rate" not in row.values


def test_a_worker_that_takes_the_place_of_one_that_left_does_not_end_its_window() -> None:
    bench = Bench(worker_timeout_s=5)
    for at_s in range(1, 6):
        bench.export(SOLO, counter(SOLO, at_s, 1000 * at_s))
    bench.export(SOLO, counter(SOLO, 5.6, 12_000.0))
    again = Worker("trainer", "again", index=0, count=1)
    for at_s in range(20, 30):
        bench.export(again, counter(again, at_s, 1000 * (at_s - 19), start_s=19))
    first, second, third = [row.values for row in bench.rows() if "trainer/tokens" in row.values]
    assert first["trainer/tokens/rate"] == pytest.approx(1000)
    assert second == {"trainer/tokens": 12_000}
    assert third["trainer/tokens/rate"] == pytest.approx(1000)


def test_of_workers_of_which_one_leaves_the_rate_goes_on() -> None:
    bench = Bench(worker_timeout_s=5)
    leaves, stays = (Worker("generator", f"g{n}", index=n, count=2) for n in range(2))
    bench.export(leaves, counter(leaves, 1, 1000))
    for at_s in range(1, 12):
        bench.export(stays, counter(stays, at_s, 1000 * at_s))
    first, second = [row for row in bench.rows(at_s=11) if "generator/tokens" in row.values]
    assert first.values["generator/tokens/rate"] == pytest.approx(1000 + 1000 / 5, rel=0.3)
    assert second.values["generator/tokens/rate"] == pytest.approx(1000)


def test_what_was_counted_in_a_short_first_window_is_in_the_rate_of_the_next() -> None:
    bench = Bench()
    for at_s in (5.0 + 0.5 * n for n in range(13)):
        bench.export(SOLO, counter(SOLO, at_s, 1000 * (at_s - 4.5), start_s=4.5))
    first, second = bench.rows(everything=True)
    assert first.values["trainer/tokens/rate"] == pytest.approx(1000)
    assert "trainer/tokens/rate" not in second.values

    bench = Bench()
    made = {4.6: 5000, 4.9: 6000, **{5.0 + n: 6000 for n in range(6)}}
    for at_s, value in made.items():
        bench.export(SOLO, counter(SOLO, at_s, value, start_s=4.5))
    first, second, _ = bench.rows(everything=True)
    assert "trainer/tokens/rate" not in first.values
    assert second.values["trainer/tokens/rate"] == pytest.approx(6000 / 4.5)


@pytest.mark.parametrize("begin_s", [0.0, 3.0, 4.4, 4.7])
def test_a_run_that_is_shorter_than_a_window_has_the_rate_of_all_its_time(begin_s: float) -> None:
    bench = Bench()
    for tenths in range(1, 11):
        at_s = begin_s + tenths / 10
        bench.export(SOLO, counter(SOLO, at_s, 100 * tenths, start_s=begin_s))
    rows = [row.values for row in bench.rows(everything=True)]
    assert [row["trainer/tokens/rate"] for row in rows if "trainer/tokens/rate" in row] == [
        pytest.approx(1000)
    ]


def test_what_comes_late_for_a_window_has_no_rate_of_its_own() -> None:
    bench = Bench()
    for at_s in range(1, 12):
        bench.export(GENERATOR0, counter(GENERATOR0, at_s, 1000 * at_s))
    bench.rows()
    late = Worker("generator", "late", index=1)
    bench.export(late, counter(late, 4.5, 500), at_s=12)
    (row,) = bench.rows(at_s=60)[-1:]
    assert row.values["generator/tokens"] == 11_500
    rows = [row for row in bench.rows(everything=True) if "generator/tokens/rate" in row.values]
    assert rows == []


def test_series_beyond_the_bound_are_counted_and_harm_nobody() -> None:
    bench = Bench(max_series=2)
    bench.export(SOLO, *(steps(SOLO, {1: 1.0}, name=f"m{i}") for i in range(5)), at_s=1)
    (row,) = bench.rows(everything=True)
    assert sorted(row.values) == ["trainer/m0", "trainer/m1"]
    assert bench.aligner.sample_counts.too_many_series == 3


def test_a_part_of_an_export_closes_no_window() -> None:
    bench = Bench(window_s=1)
    for part, sent_ns in ((levels(RANK0, {1.5: 1.0}), 0), (levels(RANK0, {0.5: 1.0}), T0 + 2 * S)):
        bench.aligner.add(Decoded([part], [Export(RANK0, sent_ns)]), received_ns=T0 + 2 * S)
        bench.rows(at_s=2.0)
    assert bench.aligner.sample_counts.late == 0


def test_a_process_that_never_says_how_far_it_has_come_does_not_hold_up_windows_for_long() -> None:
    bench = Bench(window_s=1, wait_s=5, worker_timeout_s=60)
    rows: list[Row] = []
    for at_s in range(10):
        bench.aligner.add(Decoded((), [Export(GENERATOR0, 0)]), received_ns=T0 + at_s * S)
        bench.export(RANK0, levels(RANK0, {at_s + 0.5: 1.0}), at_s=at_s + 0.5)
        rows += bench.rows()
    assert rows[-1].time_ns == T0 + int(8.5 * S)


def test_a_restored_aligner_goes_on_as_if_nothing_had_happened() -> None:
    bench = Bench(window_s=1)
    bench.export(RANK0, steps(RANK0, {1: 1.0, 2: 2.0}), counter(RANK0, 0.4, 10))
    again = revived(bench.aligner)
    for aligner in (bench.aligner, again):
        decoded = Decoded(
            [steps(RANK1, {1: 3.0, 2: 4.0}), counter(RANK0, 1.4, 15)],
            [Export(RANK1, T0 + S), Export(RANK0, T0 + 2 * S)],
        )
        aligner.add(decoded, received_ns=T0 + S)
    later = T0 + 100 * S
    assert again.close(later) == bench.aligner.close(later)


def test_going_back_to_a_checkpoint_moves_the_axis_back() -> None:
    bench = Bench(window_s=1)
    bench.export(SOLO, steps(SOLO, {150: 1.0}, at_s=0.1))
    resumed = Worker("trainer", "again", index=0, count=1)
    bench.export(resumed, steps(resumed, {100: 1.0}, at_s=5.1))
    bench.export(GENERATOR0, levels(GENERATOR0, {0.5: 1.0, 5.5: 1.0}))
    rows = [row for row in bench.rows(everything=True) if "generator/depth" in row.values]
    assert [row.step for row in rows] == [150, 100]


def totals(rows: Sequence[Row]) -> list[float]:
    return [row.values["generator/tokens"] for row in rows if "generator/tokens" in row.values]


def restarted(number: int) -> Worker:
    return Worker("generator", f"life-{number}", index=0, count=1)


def test_a_total_stays_exact_when_the_workers_that_counted_are_forgotten() -> None:
    bench = Bench(window_s=1, forget_s=60)
    for number in range(20):
        worker, start_s = restarted(number), number * 100.0
        bench.export(worker, counter(worker, start_s + 0.5, 7, start_s=start_s))
        assert totals(bench.rows(at_s=start_s + 50)) == [7 * (number + 1)]


def test_restarts_do_not_make_the_state_grow() -> None:
    bench = Bench(window_s=1, forget_s=60, max_series=4)
    sizes = []
    for number in range(40):
        worker, start_s = restarted(number), number * 100.0
        bench.export(
            worker,
            counter(worker, start_s + 0.5, 7, start_s=start_s),
            steps(worker, {1: 1.0}, at_s=start_s),
        )
        bench.rows(at_s=start_s + 90)
        sizes.append(len(to_bytes(bench.aligner)))
    assert max(sizes[20:]) < max(sizes[:20]) + 200
    assert bench.aligner.sample_counts.too_many_series == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_forgotten_worker_that_comes_back_is_not_counted_twice(restarts: bool) -> None:
    bench = Bench(window_s=1, forget_s=60)
    worker = restarted(0)
    bench.export(worker, counter(worker, 0.5, 100))
    bench.rows(at_s=1000)
    if restarts:
        bench.aligner = revived(bench.aligner)
    bench.export(worker, counter(worker, 1000.5, 130))
    assert totals(bench.rows(everything=True)) == [130]


def test_a_worker_that_came_back_is_counted_on() -> None:
    bench = Bench(window_s=1, forget_s=60)
    worker = restarted(0)
    bench.export(worker, counter(worker, 0.5, 100))
    bench.rows(at_s=1000)
    bench.export(worker, counter(worker, 1000.5, 130))
    bench.export(worker, counter(worker, 1001.5, 131))
    assert totals(bench.rows(everything=True)) == [130, 131]


def test_a_worker_that_is_no_longer_remembered_is_never_counted_twice() -> None:
    bench = Bench(window_s=1, forget_s=60, max_series=1)
    first, second = restarted(0), restarted(1)
    bench.export(first, counter(first, 0.5, 100))
    bench.rows(at_s=100)
    bench.export(second, counter(second, 100.5, 10, start_s=100))
    assert totals(bench.rows(at_s=200)) == [110]
    bench.rows(at_s=200)
    bench.export(first, counter(first, 200.5, 100))
    bench.export(first, counter(first, 201.5, 105))
    assert totals(bench.rows(everything=True))[-1] == 115


def test_a_rank_that_was_forgotten_is_not_waited_for() -> None:
    bench = Bench(forget_s=60, wait_s=1000)
    for worker in (RANK0, RANK1):
        bench.export(worker, steps(worker, {1: 1.0, 2: 1.0}), at_s=1)
    bench.export(RANK0, steps(RANK0, {3: 1.0, 4: 1.0}, at_s=100), at_s=100)
    assert [step for step, _ in by_step(bench.rows(at_s=100.5))] == [1, 2, 3]


def test_an_absurd_policy_version_is_written_and_is_no_version() -> None:
    bench = Bench()
    for at_s, version in enumerate((math.inf, 1e300)):
        absurd = steps(SOLO, {1: version}, name="rl.policy.version", at_s=at_s)
        bench.export(SOLO, absurd, at_s=1)
        (row,) = bench.rows(everything=True)
        assert row.values["trainer/policy/version"] == version
        assert row.policy_version is None


def test_measurements_with_and_without_a_step_may_come_together() -> None:
    bench = Bench(window_s=5)
    series = Series(SOLO, "loss")
    bench.export(SOLO, Measurements(series, [T0, T0 + 1, T0 + 2], [1.0, 2.0, 3.0], [1, None, 2]))
    rows = bench.rows(everything=True)
    assert sorted(row.values["trainer/loss"] for row in rows) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("workers", [1, 300])
@pytest.mark.parametrize("reduction", list(Reduction))
def test_few_values_and_many_reduce_alike(workers: int, reduction: Reduction) -> None:
    bench = Bench()
    values = [float(index % 7) for index in range(workers)]
    for index, value in enumerate(values):
        worker = Worker("trainer", str(index), index=index)
        bench.export(worker, steps(worker, {1: value}, reduction=reduction), at_s=1)
    ((_, found),) = by_step(bench.rows(everything=True))
    assert found == pytest.approx(Moments.of(values).result(reduction))


def test_what_is_remembered_point_by_point_is_bounded_and_what_is_older_is_counted() -> None:
    bench = Bench(max_remembered=1000, window_s=1)
    for second in range(20):
        made = {second + n / 100: 1.0 for n in range(100)}
        bench.export(GENERATOR0, levels(GENERATOR0, made))
        bench.aligner.take_dedup()
    bench.export(GENERATOR0, levels(GENERATOR0, {0.5: 9.0}), at_s=20)
    assert bench.aligner.sample_counts.too_old == 1
    bench.export(GENERATOR0, levels(GENERATOR0, {19.5: 9.0}), at_s=20)
    assert bench.aligner.sample_counts.duplicate == 1
    assert bench.aligner.intake.series.memory.forgotten_ns > T0


def test_a_series_of_two_scopes_is_one_key_and_two_counters() -> None:
    bench = Bench(window_s=1)
    for place, scope in enumerate(("a", "b")):
        series = Series(GENERATOR0, "tokens", instrument=Instrument.COUNTER, scope=scope)
        for at, total in ((T0 + S, 10), (T0 + 2 * S, 30)):
            point = SumPoint(series, T0 + place, at, total, Temporality.CUMULATIVE)
            bench.export(GENERATOR0, point)
    rows = bench.rows(everything=True)
    assert [row.values["generator/tokens"] for row in rows if "generator/tokens" in row.values][
        -1
    ] == 60


def test_keys_are_bounded_over_the_life_of_a_run_and_known_ones_are_still_taken() -> None:
    bench = Bench(max_keys=3, window_s=1)
    for number in range(5):
        worker = Worker("env", f"e{number}")
        bench.export(worker, levels(worker, {number: 1.0}, name=f"m{number}"))
    assert bench.aligner.sample_counts.too_many_series == 2
    again = Worker("env", "again")
    bench.export(again, levels(again, {5: 1.0}, name="m0"))
    assert bench.aligner.sample_counts.too_many_series == 2
    assert bench.aligner.sample_counts.taken == 4


def test_windows_that_wait_are_bounded_and_the_oldest_are_closed() -> None:
    bench = Bench(max_open_windows=3, window_s=1, wait_s=1000)
    other = Worker("generator", "silent", index=1)
    bench.export(other, levels(other, {0: 1.0}))
    bench.export(GENERATOR0, levels(GENERATOR0, {float(n): n for n in range(10)}), at_s=0)
    rows = bench.rows()
    assert len(rows) == 7
    assert len(bench.rows(everything=True)) == 3


def test_workers_that_only_say_that_they_live_are_bounded() -> None:
    bench = Bench(max_series=10)
    for number in range(100):
        bench.export(Worker("env", f"e{number}"), at_s=1)
    assert len(to_bytes(bench.aligner)) < 3_000


@pytest.mark.parametrize("window_s", [0.5, 30])
def test_windows_of_another_length_after_a_restart_are_not_late(window_s: float) -> None:
    bench = Bench(window_s=5)
    bench.export(SOLO, levels(SOLO, {1: 1.0, 7: 2.0}))
    bench.rows(everything=True)
    bench.aligner.intake.settings = AlignSettings(window_s=window_s)
    bench.export(SOLO, levels(SOLO, {100: 3.0}))
    assert bench.aligner.sample_counts.late == 0
    assert [row.values["trainer/depth"] for row in bench.rows(everything=True)] == [3.0]


def test_one_nan_of_a_counter_shows_and_leaves_the_total_as_it_was() -> None:
    bench = Bench(window_s=2)
    bench.export(GENERATOR0, counter(GENERATOR0, 1, 100))
    bench.export(GENERATOR0, counter(GENERATOR0, 1.5, math.nan))
    restarted = Worker("generator", "g1", index=0)
    bench.export(restarted, counter(restarted, 5.9, 10, start_s=5))
    first, second = bench.rows(everything=True)
    assert math.isnan(first.values["generator/tokens/rate"])
    assert [row.values["generator/tokens"] for row in (first, second)] == [100, 110]


def test_a_restarted_trainer_without_an_index_moves_the_axis_on() -> None:
    bench = Bench()
    before, after = Worker("trainer", "before"), Worker("trainer", "after")
    bench.export(before, steps(before, {1: 1.0, 2: 1.0}), at_s=1)
    bench.export(after, steps(after, {3: 1.0}, at_s=60), levels(after, {61: 1.0}), at_s=62)
    depths = [row for row in bench.rows(everything=True) if "trainer/depth" in row.values]
    assert [row.step for row in depths] == [3]


def test_the_axis_stays_with_the_first_rank_when_another_one_joins() -> None:
    bench = Bench()
    joined = Worker("trainer", "c", index=2)
    bench.export(RANK0, steps(RANK0, {5: 1.0}), at_s=1)
    bench.export(joined, steps(joined, {4: 1.0}, at_s=1.5), at_s=2)
    bench.export(RANK0, steps(RANK0, {6: 1.0}, at_s=3), at_s=3)
    bench.export(joined, steps(joined, {5: 1.0}, at_s=3.5), levels(joined, {4: 1.0}), at_s=4)
    depths = [row for row in bench.rows(everything=True) if "trainer/depth" in row.values]
    assert [row.step for row in depths] == [6]


def test_a_bridge_whose_clock_is_set_back_holds_nothing_open_for_so_long() -> None:
    bench = Bench(worker_timeout_s=15, start_wait_s=1)
    bench.export(RANK0, steps(RANK0, {1: 1.0}), levels(RANK0, {1: 1.0}), at_s=3600)
    assert bench.rows(at_s=1) == []
    rows = bench.rows(at_s=17)
    assert (by_step(rows), by_step(rows, "trainer/depth")) == ([(1, 1.0)], [(1, 1.0)])


def test_the_log_of_what_was_taken_is_bounded_though_workers_come_and_go() -> None:
    bench = Bench(max_series=1, max_remembered=20)
    logs: list[int] = []
    for n in range(300):
        worker = Worker("vllm", str(n))
        bench.export(worker, levels(worker, {20.0 * n: 1.0}), at_s=20.0 * n)
        log = bench.aligner.take_dedup()
        assert log is not None
        logs = [
            ns
            for ns in [*logs, log.newest_ns]
            if ns > bench.aligner.intake.series.memory.forgotten_ns
        ]
    assert len(logs) <= 22


def test_a_restart_does_not_change_what_is_forgotten() -> None:
    bench, again = Bench(max_remembered=300), Bench()
    bodies = []
    for second in range(50):
        made = {second + n / 10: 1.0 for n in range(10)}
        bench.export(SOLO, levels(SOLO, made))
        log = bench.aligner.take_dedup()
        assert log is not None
        bodies.append(log.body)
    again.aligner = revived(bench.aligner)
    for body in bodies:
        again.aligner.restore_dedup(body)
    for second in range(50, 80):
        for one in (bench, again):
            one.export(SOLO, levels(SOLO, {second + n / 10: 1.0 for n in range(10)}))
            one.aligner.take_dedup()
    assert (
        again.aligner.intake.series.memory.forgotten_ns
        == bench.aligner.intake.series.memory.forgotten_ns
        > T0
    )


def test_what_a_worker_counted_before_it_was_forgotten_for_good_is_counted_as_too_old() -> None:
    bench = Bench(window_s=1, forget_s=60, max_series=1)
    first, second, third = restarted(0), restarted(1), restarted(2)
    bench.export(first, counter(first, 0.5, 100))
    bench.rows(at_s=100)
    bench.export(second, counter(second, 100.5, 10, start_s=100))
    bench.rows(at_s=200)
    bench.export(first, counter(first, 200.5, 100))
    assert (bench.aligner.sample_counts.taken, bench.aligner.sample_counts.too_old) == (2, 1)
    bench.rows(at_s=300)
    bench.export(third, counter(third, 300.5, 10, start_s=300))
    assert (bench.aligner.sample_counts.taken, bench.aligner.sample_counts.too_old) == (3, 1)


def test_a_total_that_comes_again_or_is_overtaken_is_not_taken() -> None:
    bench = Bench(window_s=1)
    for at_s, total in ((1, 10), (3, 30), (3, 30), (2, 20), (4, 30)):
        bench.export(GENERATOR0, counter(GENERATOR0, at_s, total))
    sample_counts = bench.aligner.sample_counts
    assert (sample_counts.taken, sample_counts.duplicate) == (3, 2)
    assert totals(bench.rows(everything=True))[-1] == 30


def test_a_total_goes_on_after_a_restart() -> None:
    bench = Bench(window_s=1)
    bench.export(GENERATOR0, counter(GENERATOR0, 0.5, 10))
    assert totals(bench.rows(everything=True)) == [10]
    bench.aligner = revived(bench.aligner)
    bench.export(GENERATOR0, counter(GENERATOR0, 1.5, 15))
    assert totals(bench.rows(everything=True)) == [15]


def test_a_total_of_nothing_is_written_alike_before_and_after_a_restart() -> None:
    bench = Bench(window_s=1)
    bench.export(GENERATOR0, counter(GENERATOR0, 0.5, 0.0))
    before = totals(bench.rows(everything=True))
    bench.aligner = revived(bench.aligner)
    group = bench.aligner.intake.series.keys.groups[0]
    assert [repr(total) for total in before] == [repr(group.total)]
