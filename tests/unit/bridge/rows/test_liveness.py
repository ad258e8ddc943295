"""Exports as leases: who is there, who should be, who has failed, and how long recovery took."""

import itertools
from collections.abc import Mapping, Sequence

import pytest

from otel_rl.bridge.rows.run_values import ChangeThrottle
from otel_rl.records import (
    Decoded,
    Departure,
    ExperimentStatus,
    Export,
    Measurements,
    Row,
    Series,
    Worker,
    WorkerFailure,
)
from tests.unit.bridge.rows.liveness_bench import LEASE_S, T0, Bench, S, generator


@pytest.fixture
def bench() -> Bench:
    return Bench()


def last_values(rows: Sequence[Row]) -> Mapping[str, float]:
    return {key: value for row in rows for key, value in row.values.items()}


# Who is there


def test_a_worker_that_never_came_is_visible_from_the_first_moment_on(bench: Bench) -> None:
    bench.start(*(generator(index, count=4) for index in range(3)))
    bench.look()
    assert bench.standing == (4, 3, 0, None)


def test_a_role_that_knows_no_count_expects_as_many_as_there_were(bench: Bench) -> None:
    workers = [generator(None, f"{n}", count=None) for n in range(3)]
    bench.start(*workers)
    bench.run(3)
    assert bench.standing == (3, 3, 0, None)
    bench.kill(workers[0])
    bench.run(60)
    assert bench.standing == (3, 2, 1, None)


def test_a_forked_helper_is_no_worker_of_a_role_with_indexes(bench: Bench) -> None:
    helper = generator(None, "helper", count=None)
    bench.start(generator(0, count=1), helper)
    bench.run(3)
    assert bench.standing == (1, 1, 0, None)


def test_a_larger_count_comes_with_the_workers_that_know_it(bench: Bench) -> None:
    bench.start(generator(0, count=2))
    bench.start(generator(1, count=4))
    bench.look()
    assert bench.standing == (4, 2, 0, None)


# Failures


def test_a_lease_that_ends_without_a_goodbye_is_a_failure(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(LEASE_S - 1)
    assert bench.standing == (3, 3, 0, None)
    bench.run(3)
    assert bench.standing == (3, 2, 1, None)


def test_an_error_is_kept_with_its_worker_its_type_and_its_step(bench: Bench) -> None:
    bench.start(generator(0, count=1))
    bench.run(2)
    bench.living.clear()
    departure = Departure(
        generator(0, count=1), T0 + 3 * S, failed=True, error="ValueError", message="no", step=7
    )
    bench.add(Decoded((), [Export(departure.worker, 0)], departures=[departure]))
    bench.look()
    (failure,) = bench.aligner.failures
    assert failure == WorkerFailure("generator/0", T0 + 3 * S, "ValueError", "no", 7, True)
    assert failure.as_crash == "crashed: generator/0, ValueError at step 7"
    bench.restart_bridge(away_s=1)
    assert bench.aligner.failures == (failure,)


ERROR = Departure(
    generator(0, count=1),
    T0 + 2 * S,
    failed=True,
    error="ValueError",
    message="no",
    step=7,
    has_ended=False,
)
AS_CRASH = "generator/0, ValueError at step 7"


def with_error(bench: Bench, newest_step: int | None = None) -> None:
    """A worker one of whose steps an exception has left."""
    bench.start(generator(0, count=1))
    bench.run(2)
    values = [] if newest_step is None else [newest_step]
    points = [
        Measurements(Series(generator(0, count=1), "loss"), [T0 + 2 * S], [1.0], [step])
        for step in values
    ]
    bench.add(Decoded(points, [Export(ERROR.worker, 0)], departures=[ERROR]))
    bench.restart_bridge(away_s=0)
    bench.look()
    assert not bench.aligner.failures


def test_a_worker_that_is_killed_after_an_error_failed_by_it(bench: Bench) -> None:
    with_error(bench, newest_step=7)
    bench.kill(ERROR.worker)
    bench.aligner.end(failed=True)
    assert [*map(str, bench.aligner.failures)] == [AS_CRASH]


def test_a_worker_that_goes_on_after_an_error_has_not_failed_by_it(bench: Bench) -> None:
    with_error(bench, newest_step=8)
    bench.kill(ERROR.worker)
    bench.aligner.end(failed=True)
    gone = "generator/0 ended without an exit report"
    assert [str(one).startswith(gone) for one in bench.aligner.failures] == [True]


@pytest.mark.parametrize("failed", [False, True])
def test_an_error_that_the_program_has_caught_counts_if_the_command_fails(
    bench: Bench, *, failed: bool
) -> None:
    with_error(bench)
    bench.now_s += 1
    bench.say_goodbye(ERROR.worker)
    bench.aligner.end(failed=failed)
    assert [*map(str, bench.aligner.failures)] == ([AS_CRASH] if failed else [])
    bench.look(everything=True)
    ended = ExperimentStatus.CRASHED if failed else ExperimentStatus.COMPLETE
    assert bench.aligner.status is ended


def test_a_killed_worker_is_named_and_its_replacement_told(bench: Bench) -> None:
    bench.start(generator(0), generator(1))
    bench.run(3)
    bench.kill(generator(1))
    bench.run(LEASE_S + 2)
    assert [*map(str, bench.aligner.failures)] == ["generator/1 ended without an exit report"]
    bench.restart_bridge(away_s=1)
    bench.start(generator(1, "second"))
    bench.look()
    (failure,) = bench.aligner.failures
    assert failure.recovery_s == LEASE_S + 2  # while the bridge was away, no time passed


def test_a_worker_that_is_replaced_before_it_is_missed_is_named_too(bench: Bench) -> None:
    bench.start(generator(0), generator(1))
    bench.run(3)
    bench.kill(generator(1))
    bench.run(2)
    bench.start(generator(1, "second"))
    bench.run(LEASE_S)
    (failure,) = bench.aligner.failures
    assert str(failure) == "generator/1 ended without an exit report; replaced after 2.0 s"


def test_a_process_that_was_only_stopped_is_not_told_as_replaced(bench: Bench) -> None:
    bench.start(generator(0), generator(1))
    bench.run(3)
    bench.kill(generator(1))  # stopped: no export comes
    bench.run(LEASE_S + 2)
    bench.start(generator(1))  # the same one
    bench.restart_bridge(away_s=1)
    bench.look()
    (failure,) = bench.aligner.failures
    assert failure.is_same
    assert str(failure) == f"generator/1 fell silent; reported again after {LEASE_S + 2:.1f} s"


def test_an_export_from_before_it_was_stopped_makes_a_process_no_other_one(bench: Bench) -> None:
    """A process that is stopped in the middle of an export sends that one first."""
    bench.start(generator(0), generator(1))
    bench.run(3)
    stopped_s = bench.now_s
    bench.kill(generator(1))
    bench.run(LEASE_S + 2)
    bench.export(generator(1), at_s=stopped_s)
    bench.run(1)
    bench.start(generator(1))
    bench.look()
    (failure,) = bench.aligner.failures
    assert failure.is_same


def test_of_many_failures_the_last_are_kept(bench: Bench) -> None:
    for life in range(40):
        worker = generator(0, f"life-{life}", count=1)
        bench.start(worker)
        bench.run(1)
        bench.say_goodbye(worker, failed=True)
    bench.look()
    assert len(bench.aligner.failures) == 32
    assert bench.standing[2] == 40


FAILURES = [
    WorkerFailure("trainer/0", 1_000 * S),  # gone long before
    WorkerFailure("trainer/1", 9_000 * S),
    WorkerFailure("trainer/2", 9_001 * S, "RuntimeError"),
    WorkerFailure("trainer/3", 9_002 * S, "ConnectionError"),
    WorkerFailure("generator/0", 8_999 * S, "ValueError", recovery_s=1.0),
]


@pytest.mark.parametrize("failures", [FAILURES, FAILURES[::-1]])
def test_the_first_error_of_the_end_is_the_cause(failures: Sequence[WorkerFailure]) -> None:
    first = WorkerFailure.first_cause(failures)
    assert first is not None
    assert first.worker == "trainer/2"


def test_a_goodbye_that_comes_again_is_one(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    for _ in range(2):
        bench.say_goodbye(generator(1), failed=True)
    bench.look()
    assert bench.standing == (3, 2, 1, None)


def test_what_comes_after_a_goodbye_and_was_sent_before_brings_nobody_back(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.say_goodbye(generator(1))
    bench.run(2)
    bench.export(generator(1), at_s=5.0)
    bench.run(60)
    assert bench.standing == (2, 2, 0, None)


def test_what_a_collector_sends_again_for_a_dead_worker_brings_nobody_back(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(60)
    bench.export(generator(1), at_s=4.0)
    bench.run(60)
    assert bench.standing == (3, 2, 1, None)


def test_a_process_that_says_later_who_it_is_has_not_failed(bench: Bench) -> None:
    guessed = Worker("worker", "one", index=None, count=None)
    bench.start(guessed)
    bench.run(3)
    bench.kill(guessed)
    bench.start(generator(0, "one", count=1))
    bench.run(60)
    assert bench.standing == (1, 1, 0, None)
    assert bench.aligner.roles["worker"].failures == 0


@pytest.mark.parametrize("every_s", [20, 60])
def test_a_worker_that_exports_seldom_is_not_missed_between_its_exports(
    bench: Bench, every_s: float
) -> None:
    bench.start(generator(0, count=1), every_s=every_s)
    bench.run(400)
    assert bench.standing == (1, 1, 0, None)


# Recovery


def test_a_new_instance_in_the_place_of_a_dead_one_makes_the_role_whole(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(4)
    bench.start(generator(1, "second"))
    bench.run(8)
    assert bench.standing == (3, 3, 1, 4.0)


def test_a_place_that_is_filled_after_the_lease_is_counted_from_the_last_sign(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(40)
    bench.start(generator(1, "second"))
    bench.look()
    assert bench.standing == (3, 3, 1, 40.0)


def failures_over_time(bench: Bench) -> list[float]:
    """The values of a chart of ``failures`` over time, without repeats of a value."""
    key = "service/generator/failures"
    rows = sorted((row for row in bench.rows if key in row.values), key=lambda row: row.time_ns)
    return [value for value, _ in itertools.groupby(row.values[key] for row in rows)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_a_failure_is_in_the_chart_even_if_the_worker_was_replaced_before_it_was_missed(
    bench: Bench, failed: bool, restarts: bool
) -> None:
    bench.start(*(generator(n) for n in range(3)))
    bench.run(20)
    if failed:
        bench.say_goodbye(generator(1), failed=True)
        bench.now_s += 0.5  # before anybody looks
    else:
        bench.kill(generator(1))
        bench.run(2)
    bench.start(generator(1, "second"))
    if restarts:
        bench.restart_bridge(away_s=1)
    bench.run(30)
    assert failures_over_time(bench) == [0, 1]


def test_two_that_were_replaced_at_once_are_two_failures(bench: Bench) -> None:
    bench.start(*(generator(n) for n in range(3)))
    bench.run(20)
    bench.kill(generator(1), generator(2))
    bench.run(2)
    bench.start(generator(1, "second"), generator(2, "second"))
    bench.run(30)
    assert failures_over_time(bench) == [0, 2]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("after_s", [1, 6, 8, 12])
def test_the_last_word_after_a_replacement_is_who_is_there_now(
    after_s: float, restarts: bool
) -> None:
    bench = Bench(lease_s=6)
    bench.start(generator(0, count=1))
    bench.run(1)
    # A row of a time before the last sign that still waits for its worker when the next one comes.
    told_ns = T0 + int((bench.now_s - 0.2) * S)
    queue = Measurements(Series(generator(0, count=1), "queue"), [told_ns], [7.0], [None])
    bench.add(Decoded([queue], [Export(generator(0, count=1), told_ns)]))
    bench.kill(generator(0, count=1))
    bench.run(after_s)
    if restarts:
        bench.restart_bridge(away_s=3)
    bench.start(generator(0, "second", count=1))
    bench.run(30)
    written = [row.values for row in bench.rows if "service/generator/alive" in row.values]
    assert written[-1]["service/generator/alive"] == 1


def test_a_restart_of_the_bridge_notes_no_second_time_that_a_run_goes_on(bench: Bench) -> None:
    bench.start(generator(0, count=2))
    bench.run(3)
    bench.say_goodbye(generator(0, count=2))
    bench.run(1)
    bench.start(generator(0, "second", count=2))
    bench.restart_bridge(away_s=0)
    bench.start(generator(1, "third", count=2))
    bench.run(10)
    notes = [row for row in bench.rows if "otel_rl/bridge/continued" in row.labels]
    assert len(notes) == 1


def test_any_new_instance_fills_a_place_where_nobody_knows_an_index(bench: Bench) -> None:
    workers = [generator(None, f"{n}", count=None) for n in range(3)]
    bench.start(*workers)
    bench.run(5)
    bench.kill(workers[1])
    bench.run(4)
    bench.start(generator(None, "new", count=None))
    bench.run(30)
    assert bench.standing == (3, 3, 1, 4.0)


def test_another_index_does_not_fill_the_place(bench: Bench) -> None:
    bench.start(generator(0), generator(1))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(30)
    bench.start(generator(2))
    bench.run(5)
    assert bench.standing == (3, 2, 1, None)


def test_a_worker_that_was_only_away_recovers_itself(bench: Bench) -> None:
    bench.start(generator(0, count=1))
    bench.run(5)
    bench.kill(generator(0, count=1))
    bench.run(30)
    bench.start(generator(0, count=1))
    bench.look()
    assert bench.standing == (1, 1, 1, 30.0)


def test_two_living_workers_of_one_index_are_no_failure(bench: Bench) -> None:
    bench.start(generator(0, "a", count=1))
    bench.run(5)
    bench.start(generator(0, "b", count=1))
    bench.run(60)
    assert bench.standing == (1, 1, 0, None)


def test_the_goodbye_of_one_of_two_with_one_index_leaves_the_place_filled(bench: Bench) -> None:
    bench.start(generator(0, "a", count=2), generator(0, "b", count=2), generator(1, count=2))
    bench.run(5)
    bench.say_goodbye(generator(0, "a", count=2))
    bench.run(5)
    assert bench.standing == (2, 2, 0, None)
    bench.kill(generator(0, "b", count=2))
    bench.run(60)
    assert bench.standing == (2, 1, 1, None)


# When nobody can be heard


@pytest.mark.parametrize("away_s", [5, 3600])
def test_nobody_is_missed_for_the_time_in_which_the_bridge_was_away(
    bench: Bench, away_s: float
) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.restart_bridge(away_s)
    bench.run(60)
    assert bench.standing == (3, 3, 0, None)


def test_a_worker_that_died_with_the_bridge_is_missed_after_it_is_back(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.restart_bridge(3600)
    bench.run(LEASE_S - 1)
    assert bench.standing == (3, 3, 0, None)
    bench.run(3)
    assert bench.standing == (3, 2, 1, None)


def test_failures_are_not_counted_again_after_a_restart(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(60)
    bench.restart_bridge(10)
    bench.run(60)
    assert bench.standing == (3, 2, 1, None)


# What the run shows


def test_the_run_shows_it_though_nobody_reports_anything(bench: Bench) -> None:
    bench.start(*map(generator, range(2)))
    bench.run(10)
    bench.kill(*map(generator, range(2)))
    bench.run(60)
    assert last_values(bench.rows) == {
        "service/generator/expected": 3,
        "service/generator/alive": 0,
        "service/generator/failures": 2,
    }
    # One when they had come, one when they were gone: not one for each, nor one each second.
    assert len(bench.rows) == 2
    assert bench.rows[-1].time_ns <= T0 + int(bench.now_s * S)


def test_recovery_is_in_seconds(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(5)
    bench.kill(generator(1))
    bench.run(4)
    bench.start(generator(1, "second"))
    bench.run(20)
    assert last_values(bench.rows)["service/generator/recovery_s"] == 4.0


def test_the_last_row_says_how_it_ended(bench: Bench) -> None:
    bench.start(*map(generator, range(3)))
    bench.run(20)
    bench.say_goodbye(generator(0))
    bench.look(everything=True)
    assert last_values(bench.rows)["service/generator/alive"] == 2


# How the experiment stands


def test_an_experiment_runs_until_all_have_said_goodbye(bench: Bench) -> None:
    found = [bench.aligner.status]
    bench.start(generator(0, count=1))
    bench.look()
    found.append(bench.aligner.status)
    bench.say_goodbye(generator(0, count=1))
    bench.look()
    found.append(bench.aligner.status)
    assert found == [None, ExperimentStatus.RUNNING, ExperimentStatus.COMPLETE]


def test_an_experiment_whose_last_worker_died_has_crashed(bench: Bench) -> None:
    bench.start(generator(0, count=2), generator(1, count=2))
    bench.run(3)
    bench.say_goodbye(generator(0, count=2))
    bench.kill(generator(1, count=2))
    bench.run(60)
    assert bench.aligner.status is ExperimentStatus.CRASHED


@pytest.mark.parametrize(
    ("failed", "status", "failures"),
    [(True, ExperimentStatus.CRASHED, 1), (False, ExperimentStatus.COMPLETE, 0)],
)
def test_those_who_are_known_to_be_gone_have_no_lease_any_more(
    bench: Bench, *, failed: bool, status: ExperimentStatus, failures: int
) -> None:
    bench.start(generator(0, count=2), generator(1, count=2))
    bench.run(3)
    bench.say_goodbye(generator(0, count=2))
    bench.aligner.end(failed=failed)
    bench.look(everything=True)
    assert bench.aligner.status is status
    found = last_values(bench.rows)
    assert found["service/generator/alive"] == 0
    assert found["service/generator/failures"] == failures


def test_who_ends_without_a_goodbye_in_a_run_that_ends_well_is_silent_and_no_failure(
    bench: Bench,
) -> None:
    bench.start(generator(0, count=3), generator(1, count=3), generator(2, count=3))
    bench.run(3)
    bench.say_goodbye(generator(0, count=3))
    bench.aligner.end(failed=False)
    bench.look(everything=True)
    assert bench.aligner.roles["generator"].silent == 2
    found = last_values(bench.rows)
    assert found["service/generator/silent"] == 2
    assert found["service/generator/failures"] == 0


@pytest.mark.parametrize("replacement_says_goodbye", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_who_was_replaced_before_the_end_has_failed_though_its_lease_had_not_ended(
    bench: Bench, *, failed: bool, replacement_says_goodbye: bool
) -> None:
    others = generator(0, count=2)
    again = generator(1, "again", count=2)
    bench.start(others, generator(1, count=2))
    bench.run(3)
    bench.kill(generator(1, count=2))
    bench.run(2)
    bench.start(again)
    bench.run(1)
    bench.say_goodbye(others)
    if replacement_says_goodbye:
        bench.say_goodbye(again)
    bench.aligner.end(failed=failed)
    bench.look(everything=True)
    standing = bench.aligner.roles["generator"]
    assert standing.failures == 1 + (failed and not replacement_says_goodbye)
    # A replacement that says no goodbye is silent in a run that ends well.
    assert standing.silent == (None if failed or replacement_says_goodbye else 1)
    assert standing.recovery_s == 2.0
    first = bench.aligner.failures[0]
    assert (first.worker, first.recovery_s) == ("generator/1", 2.0)
    ended = ExperimentStatus.CRASHED if failed else ExperimentStatus.COMPLETE
    assert bench.aligner.status is ended


def test_two_that_end_together_with_one_index_are_silent(bench: Bench) -> None:
    bench.start(generator(0, "a", count=1), generator(0, "b", count=1))
    bench.run(3)
    bench.aligner.end(failed=False)
    bench.look(everything=True)
    standing = bench.aligner.roles["generator"]
    assert (standing.failures, standing.silent) == (0, 2)


def test_a_stock_sdk_says_no_goodbye_and_is_not_silent(bench: Bench) -> None:
    bench.export(generator(0, count=1), sends_exit_report=False)
    bench.aligner.end(failed=False)
    bench.look(everything=True)
    assert bench.aligner.roles["generator"].silent is None
    assert "service/generator/silent" not in last_values(bench.rows)


def spans_of(bench: Bench, worker: Worker) -> None:
    bench.add(Decoded((), [Export(worker, 0)]))


@pytest.mark.parametrize("index", [1, None])
def test_a_stock_sdk_that_has_sent_spans_of_its_start_only_is_no_failure(
    bench: Bench, index: int | None
) -> None:
    engine = Worker("generator", "engine", index=index, count=None)
    other = Worker("generator", "server", index=None if index is None else 0, count=None)
    bench.start(other)
    spans_of(bench, engine)
    bench.run(5)
    spans_of(bench, engine)
    bench.look()
    assert bench.standing == (2, 2, 0, None)
    bench.run(60)
    assert bench.standing == (1, 1, 0, None)
    bench.restart_bridge(1)
    spans_of(bench, engine)
    bench.look()
    assert bench.standing == (2, 2, 0, None)


def test_a_stock_sdk_that_has_sent_spans_of_steps_is_a_failure_however_short_it_lived(
    bench: Bench,
) -> None:
    others = Worker("generator", "stock", index=0, count=None)
    for _ in range(5):
        bench.add(Decoded((), [Export(others, 0, has_work=True)]))
        bench.start(generator(1, count=2))
        bench.run(5)
    bench.start(generator(1, count=2))
    bench.run(60)
    assert last_values(bench.rows)["service/generator/failures"] == 1


def test_a_stock_sdk_that_has_sent_spans_of_its_work_is_a_failure_when_it_sends_none(
    bench: Bench,
) -> None:
    environment = Worker("env", "stock", index=None, count=None)
    bench.start(generator(0, count=1))
    for _ in range(50):
        spans_of(bench, environment)
        bench.run(5)
    bench.run(60)
    assert last_values(bench.rows)["service/env/failures"] == 1


def test_spans_that_come_after_the_known_end_of_all_bring_nobody_back(bench: Bench) -> None:
    engine = Worker("generator", "engine", index=None, count=None)
    spans_of(bench, engine)
    bench.aligner.end(failed=False)
    spans_of(bench, engine)
    bench.look()
    assert bench.aligner.status is ExperimentStatus.COMPLETE


def test_an_experiment_that_went_on_without_a_dead_worker_is_complete(bench: Bench) -> None:
    bench.start(generator(0, count=2), generator(1, count=2))
    bench.run(3)
    bench.kill(generator(1, count=2))
    bench.run(60)
    bench.say_goodbye(generator(0, count=2))
    bench.look()
    assert bench.aligner.status is ExperimentStatus.COMPLETE


def test_time_alone_may_bring_a_row_as_long_as_somebody_lives(bench: Bench) -> None:
    bench.start(generator(0, count=1))
    bench.run(10)
    assert bench.aligner.is_watching
    bench.say_goodbye(generator(0, count=1))
    bench.run(10)
    assert not bench.aligner.is_watching


def test_a_bridge_that_has_ended_in_order_misses_nobody(bench: Bench) -> None:
    bench.start(generator(0, count=1))
    bench.run(10)
    bench.look(everything=True)
    assert not bench.aligner.is_watching


def test_after_a_downtime_of_the_bridge_exporters_come_back_one_after_the_other(
    bench: Bench,
) -> None:
    """They wait for longer after each attempt that has failed, and partly by chance."""
    workers = [generator(index, count=4) for index in range(4)]
    bench.start(*workers)
    bench.run(3)
    bench.kill(*workers)  # they wait
    bench.restart_bridge(away_s=10)
    for after_s, worker in zip((1, 8, 13, 12), workers, strict=True):
        bench.run(after_s)
        assert not bench.aligner.failures
        bench.start(worker)
    bench.run(3)
    assert bench.standing == (4, 4, 0, None)


def test_a_worker_that_dies_after_a_downtime_of_the_bridge_is_missed_as_soon_as_ever(
    bench: Bench,
) -> None:
    bench.start(generator(0), generator(1))
    bench.run(3)
    bench.kill(generator(0))
    bench.restart_bridge(away_s=10)
    bench.run(10)
    bench.start(generator(0))
    bench.run(3)
    bench.kill(generator(1))
    bench.run(LEASE_S + 1)
    assert [one.worker for one in bench.aligner.failures] == ["generator/1"]


# Who is missed when, and when that is written: on either side of each limit.


@pytest.mark.parametrize(("silence_s", "failures"), [(590, 0), (610, 1)])
def test_a_worker_that_exports_very_seldom_is_missed_after_ten_minutes(
    silence_s: float, failures: int
) -> None:
    bench = Bench()
    for _ in range(3):
        bench.export(generator(0, count=1))
        bench.now_s += 1_000
    bench.now_s += silence_s - 1_000
    bench.look()
    assert bench.standing[2] == failures


def test_a_goodbye_that_comes_again_does_not_end_a_worker_that_is_back() -> None:
    bench = Bench()
    worker = generator(0, count=1)
    bench.export(worker)
    goodbye = Decoded((), [Export(worker, 0)], departures=[Departure(worker, T0 + S, failed=False)])
    bench.now_s = 1
    bench.add(goodbye)
    bench.now_s = 5
    bench.export(worker)
    bench.look()
    assert bench.standing[1] == 1
    bench.add(goodbye)
    bench.look()
    assert bench.standing[1] == 1


@pytest.mark.parametrize(
    ("failed", "status"), [(False, ExperimentStatus.COMPLETE), (True, ExperimentStatus.CRASHED)]
)
def test_a_run_ends_as_its_last_worker_does(failed: bool, status: ExperimentStatus) -> None:
    bench = Bench()
    bench.start(generator(0, count=1))
    bench.run(3)
    bench.say_goodbye(generator(0, count=1), failed=failed)
    bench.look()
    assert bench.aligner.status is status


def test_a_change_waits_five_seconds_for_a_row_of_its_own() -> None:
    notice = ChangeThrottle()
    values = {"service/generator/alive": 1.0}
    assert [notice.needs_a_row(values, at_s * S) for at_s in (0, 4, 6)] == [False, False, True]
    notice.take(values, 6 * S)
    assert not notice.needs_a_row(values, 100 * S)


def test_what_does_not_change_is_repeated_every_ten_seconds_in_rows_that_are_written_anyway() -> (
    None
):
    notice = ChangeThrottle()
    values = {"service/generator/alive": 1.0}
    taken = [bool(notice.take(values, at_s * S)) for at_s in (0, 1, 9, 11, 12, 22)]
    assert taken == [True, False, False, True, False, True]
