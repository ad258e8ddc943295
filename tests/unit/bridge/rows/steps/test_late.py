"""For how long rows wait, and for whom: on either side of each limit."""

import pytest

from otel_rl.records import Decoded, Export, Measurements, Series, Worker
from otel_rl.semconv import names
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
    levels,
    steps,
)

GENERATOR = Worker("generator", "g", index=0, count=1)


def behind(**settings: float) -> Bench:
    """Rank 1 lives and has not come past the first step."""
    bench = Bench(worker_timeout_s=1_000, **settings)
    bench.export(RANK0, steps(RANK0, {1: 1.0}), at_s=0)
    bench.export(RANK1, steps(RANK1, {1: 1.0}), at_s=0)
    bench.rows(at_s=0)
    return bench


def test_a_step_that_is_incomplete_waits_as_long_as_was_set_after_its_newest_sample() -> None:
    bench = behind(wait_s=10)
    bench.export(RANK0, steps(RANK0, {2: 1.0, 3: 1.0}, at_s=20), at_s=20)
    assert by_step(bench.rows(at_s=29.9)) == [(1, 1.0)]
    assert by_step(bench.rows(at_s=30.1)) == [(2, 1.0), (3, 1.0)]


def test_a_window_that_is_incomplete_waits_as_long_as_was_set_after_its_newest_sample() -> None:
    bench = Bench(worker_timeout_s=1_000, wait_s=10, window_s=1)
    bench.export(RANK1, levels(RANK1, {0.1: 1.0}), at_s=0.1)
    bench.export(RANK0, levels(RANK0, {20.5: 5.0}), at_s=20.5)
    assert 5.0 not in values(bench, 30.4)
    assert 5.0 in values(bench, 30.6)


def values(bench: Bench, at_s: float, key: str = "trainer/depth") -> list[float]:
    return [row.values[key] for row in bench.rows(at_s=at_s) if key in row.values]


def test_what_comes_for_a_closed_step_is_late_also_for_the_newest_and_after_an_older_one() -> None:
    bench = Bench()
    bench.export(SOLO, steps(SOLO, dict.fromkeys(range(1, 7), 1.0)), at_s=1)
    assert [step for step, _ in by_step(bench.rows(at_s=1))] == [1, 2, 3, 4, 5]
    for late, step in enumerate((5, 2, 4), 1):
        bench.export(SOLO, steps(SOLO, {step: 9.0}, name=f"more{step}"), at_s=1 + late)
        assert bench.aligner.sample_counts.late == late
        bench.rows(at_s=30 * late)


def test_an_export_that_was_overtaken_is_late_and_goes_back_to_no_step() -> None:
    bench = Bench()
    loss, kl = Series(SOLO, "loss"), Series(SOLO, "kl")

    def measured(series: Series, step: int, at_s: float) -> Measurements:
        return Measurements(series, [T0 + int(at_s * S)], [1.0], [step])

    bench.export(SOLO, measured(loss, 7, 1), measured(kl, 7, 2), at_s=2)
    bench.export(SOLO, measured(loss, 8, 17), measured(kl, 8, 18), at_s=18)
    assert [step for step, _ in by_step(bench.rows(at_s=18))] == [7]
    bench.export(SOLO, measured(loss, 8, 8), measured(kl, 7, 9), at_s=19)
    assert bench.aligner.sample_counts.late == 1


def test_what_comes_for_a_closed_window_is_late_also_for_the_newest_and_after_an_older_one() -> (
    None
):
    bench = Bench(window_s=1, wait_s=5)
    bench.export(SOLO, levels(SOLO, {n + 0.5: 1.0 for n in range(6)}), at_s=6)
    bench.rows(at_s=20)
    for late, at_s in enumerate((5.6, 1.6, 4.6), 1):
        bench.export(SOLO, levels(SOLO, {at_s: 9.0}), at_s=20 * late)
        assert bench.aligner.sample_counts.late == late
        bench.rows(at_s=20 * late + 10)


def test_steps_that_wait_are_bounded_and_the_lowest_are_closed() -> None:
    bench = behind(wait_s=1_000, max_open_steps=3)
    bench.export(RANK0, steps(RANK0, dict.fromkeys(range(2, 7), 1.0), at_s=1), at_s=1)
    assert [step for step, _ in by_step(bench.rows(at_s=1))] == [1, 2, 3]


def test_a_row_has_the_time_of_the_latest_sample_of_its_step() -> None:
    bench = Bench()
    for step in (1, 2):
        points = [
            Measurements(Series(SOLO, name), [T0 + (10 * step + at_s) * S], [1.0], [step])
            for name, at_s in (("loss", 1), ("kl", 3), ("lr", 2))
        ]
        bench.aligner.add(Decoded(points, []), received_ns=T0 + 10 * step * S)
    assert [row.time_ns for row in bench.rows(everything=True)] == [T0 + 13 * S, T0 + 23 * S]


def test_a_step_waits_no_longer_because_the_clock_was_set_back() -> None:
    bench = Bench(worker_timeout_s=10_000, wait_s=10)
    bench.export(RANK1, steps(RANK1, {1: 1.0}), at_s=0)
    bench.export(RANK0, steps(RANK0, {2: 1.0}), at_s=3_600)
    bench.rows(at_s=1)
    assert (2, 1.0) in by_step(bench.rows(at_s=12))


def test_a_worker_lives_no_longer_because_the_clock_was_set_back() -> None:
    bench = Bench(worker_timeout_s=15, wait_s=10_000)
    bench.export(RANK1, steps(RANK1, {1: 1.0}), at_s=3_600)
    bench.export(RANK0, steps(RANK0, {1: 1.0}), at_s=3_600)
    bench.rows(at_s=1)
    bench.export(RANK0, steps(RANK0, {2: 1.0, 3: 1.0}), at_s=10)
    assert by_step(bench.rows(at_s=15.5)) == []
    assert (2, 1.0) in by_step(bench.rows(at_s=16.5))


def test_an_export_that_does_not_say_how_far_it_came_settles_nothing() -> None:
    bench = Bench(wait_s=1_000)
    two = [steps(SOLO, {1: 1.0, 2: 1.0}), steps(SOLO, {1: 1.0}, name="reward")]
    bench.export(SOLO, *two, at_s=1)
    assert by_step(bench.rows(at_s=1)) == []
    bench.aligner.add(Decoded((), [Export(SOLO, 0)]), received_ns=T0 + 2 * S)
    assert by_step(bench.rows(at_s=2)) == []


@pytest.mark.parametrize(("again_s", "is_closed"), [(1.2, False), (1.3, True)])
def test_a_step_is_settled_by_an_export_that_long_after_it_was_gone_past(
    again_s: float, is_closed: bool
) -> None:
    bench = Bench(wait_s=1_000)
    two = [steps(SOLO, {1: 1.0, 2: 1.0}), steps(SOLO, {1: 1.0}, name="reward")]
    bench.export(SOLO, *two, at_s=1)
    bench.export(SOLO, levels(SOLO, {1.1: 0.0}), at_s=again_s)
    assert bool(by_step(bench.rows(at_s=again_s))) is is_closed


def test_a_window_is_over_when_everybody_has_come_to_its_end() -> None:
    bench = Bench(window_s=1, wait_s=1_000)
    bench.export(SOLO, levels(SOLO, {0.5: 3.0}), at_s=0.5)
    bench.aligner.add(Decoded((), [Export(SOLO, T0 + S)]), received_ns=T0 + S)
    assert values(bench, 1.0) == [3.0]


def test_a_window_waits_for_a_new_worker_until_it_has_said_how_far_it_is() -> None:
    bench = Bench(window_s=1, wait_s=30)
    bench.aligner.add(Decoded((), [Export(RANK1, 0)]), received_ns=T0 + S)
    bench.export(RANK0, levels(RANK0, {1.5: 3.0, 5.5: 4.0}), at_s=5.5)
    assert values(bench, 5.5) == []


def test_a_window_does_not_wait_for_the_dead() -> None:
    bench = Bench(window_s=1, wait_s=1_000, worker_timeout_s=10)
    bench.export(RANK1, levels(RANK1, {0.5: 1.0}), at_s=0.5)
    bench.export(RANK0, levels(RANK0, {12.5: 3.0, 14.5: 4.0}), at_s=14.5)
    assert 3.0 in values(bench, 14.5)


def test_a_rate_is_over_the_time_in_which_a_worker_counted() -> None:
    bench = Bench(window_s=10)
    bench.export(SOLO, counter(SOLO, 2.0, 0, start_s=1.0), at_s=2)
    bench.export(SOLO, counter(SOLO, 9.0, 700, start_s=1.0), at_s=9)
    other = Worker("trainer", "other", index=1, count=1)
    bench.export(other, counter(other, 1.0, 0, start_s=0.5), at_s=1)
    bench.export(other, counter(other, 9.9, 890, start_s=0.5), at_s=9.9)
    (rate,) = [
        row.values["trainer/tokens/rate"]
        for row in bench.rows(everything=True)
        if "trainer/tokens/rate" in row.values
    ]
    assert rate == pytest.approx(700 / 8 + 890 / 9.4, rel=0.01)


def test_a_log_is_as_new_as_its_newest_point() -> None:
    bench = Bench()
    bench.export(SOLO, levels(SOLO, {1: 1.0, 5: 1.0, 3: 1.0}), at_s=5)
    log = bench.aligner.take_dedup()
    assert log is not None
    assert log.newest_ns == T0 + 5 * S


def test_what_happens_at_the_moment_of_a_step_is_of_that_step() -> None:
    bench = Bench()
    told = Measurements(Series(SOLO, "loss"), [T0 + S, T0 + 2 * S], [1.0, 1.0], [4, 5])
    bench.export(SOLO, told, levels(SOLO, {2: 7.0}), at_s=2)
    assert by_step(bench.rows(everything=True), "trainer/depth") == [(5, 7.0)]


def test_a_step_that_is_told_again_of_an_earlier_time_began_then() -> None:
    bench = Bench()
    series = Series(SOLO, "loss")
    bench.export(SOLO, Measurements(series, [T0 + S, T0 + 5 * S], [1.0, 1.0], [4, 5]), at_s=5)
    bench.export(SOLO, Measurements(series, [T0 + 3 * S], [1.0], [5]), at_s=6)
    bench.export(SOLO, levels(SOLO, {4: 7.0}), at_s=6)
    assert by_step(bench.rows(everything=True), "trainer/depth") == [(5, 7.0)]


def test_measurements_of_one_point_and_one_time_are_different_ones() -> None:
    bench = Bench()
    same = Measurements(Series(SOLO, "loss", "", (), None), [T0 + S] * 3, [1.0, 2.0, 6.0], [1] * 3)
    bench.export(SOLO, same, at_s=1)
    bench.export(SOLO, same, at_s=1)
    assert by_step(bench.rows(everything=True)) == [(1, 3.0)]
    assert bench.aligner.sample_counts.duplicate == 3


def test_steps_are_told_by_trainers_where_there_are_any() -> None:
    bench = Bench()
    bench.export(GENERATOR, steps(GENERATOR, {900: 1.0}), at_s=1)
    bench.export(SOLO, steps(SOLO, {4: 1.0}, at_s=1), at_s=1)
    bench.export(SOLO, levels(SOLO, {2: 7.0}), at_s=2)
    assert by_step(bench.rows(everything=True), "trainer/depth") == [(4, 7.0)]


def test_a_generator_that_has_stepped_gives_way_to_a_trainer() -> None:
    bench = Bench()
    bench.export(GENERATOR, steps(GENERATOR, {900: 1.0}), at_s=1)
    version = Measurements(Series(SOLO, names.RL_POLICY_VERSION), [T0 + S], [3.0], [None])
    bench.export(SOLO, version, at_s=1)
    bench.export(SOLO, levels(SOLO, {2: 7.0}), at_s=2)
    (row,) = [row for row in bench.rows(everything=True) if "trainer/depth" in row.values]
    assert (row.step, row.policy_version) == (0, 3)


def test_rows_of_one_moment_come_in_order_of_time() -> None:
    bench = Bench(window_s=1)
    bench.export(SOLO, levels(SOLO, {1.5: 1.0, 3.5: 1.0}), at_s=3.5)
    bench.export(SOLO, steps(SOLO, {1: 1.0}, at_s=2.5), at_s=3.6)
    times = [row.time_ns for row in bench.rows(everything=True)]
    assert times == sorted(times)


def test_a_restarted_aligner_knows_what_it_took() -> None:
    bench = Bench()
    bench.export(SOLO, steps(SOLO, {1: 1.0}), at_s=1)
    log = bench.aligner.take_dedup()
    assert log is not None
    again = revived(bench.aligner)
    again.restore_dedup(log.body)
    bench.aligner = again
    bench.export(SOLO, steps(SOLO, {1: 1.0}), at_s=2)
    assert by_step(bench.rows(everything=True)) == [(1, 1.0)]
    assert bench.aligner.sample_counts.duplicate == 1
