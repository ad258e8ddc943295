"""Silence of a stock SDK, which sends nothing while nothing changes, and no exit report."""

import pytest

from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.records import ExperimentStatus, Worker
from tests.unit.bridge.rows.liveness_bench import T0, Bench, S, generator

STEP_S = 77.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def report(bench: Bench, *workers: Worker, has_progress: bool = True) -> None:
    for worker in workers:
        bench.export(worker, at_s=None if has_progress else -T0 / S, sends_exit_report=False)


def steps(bench: Bench, count: int, *workers: Worker, bursts: int = 1) -> None:
    """Report some times within a few seconds, then nothing for the rest of a long step."""
    for _ in range(count):
        for _ in range(bursts):
            report(bench, *workers)
            bench.run(2)
        bench.run(STEP_S - 2 * bursts)


def test_a_worker_that_reports_again_was_silent_and_has_not_failed(bench: Bench) -> None:
    steps(bench, 1, generator(0, count=1), bursts=5)
    assert bench.standing == (1, 0, 1, None)
    report(bench, generator(0, count=1))
    bench.look()
    assert bench.standing == (1, 1, 0, None)
    assert not bench.aligner.failures


def test_one_whose_reports_tell_no_progress_has_not_failed_either(bench: Bench) -> None:
    steps(bench, 1, generator(0, count=1), bursts=5)
    report(bench, generator(0, count=1), has_progress=False)
    bench.look()
    assert bench.standing == (1, 1, 0, None)


def test_its_pauses_are_known_then_however_many_reports_come_between_them(bench: Bench) -> None:
    steps(bench, 1, generator(0, count=1), bursts=5)
    steps(bench, 1, generator(0, count=1), bursts=30)
    steps(bench, 3, generator(0, count=1), bursts=30)
    assert bench.standing == (1, 1, 0, None)


def test_of_two_without_an_index_the_one_that_stays_away_has_failed(bench: Bench) -> None:
    here, gone = generator(None, "here", count=None), generator(None, "gone", count=None)
    report(bench, gone)
    steps(bench, 1, here, gone, bursts=4)
    report(bench, here)
    bench.look()
    assert bench.standing == (2, 1, 1, None)
    assert [one.worker for one in bench.aligner.failures] == ["generator/0"]


def test_one_whose_place_another_has_taken_has_failed(bench: Bench) -> None:
    steps(bench, 1, generator(0, "first", count=1), bursts=4)
    report(bench, generator(0, "second", count=1))
    report(bench, generator(0, "first", count=1))
    bench.look()
    assert bench.standing[2] == 1


def news(bench: Bench) -> Facts:
    bench.run(5)
    kept = bench.aligner.take_history(T0 + int(bench.now_s * S), everything=True)
    assert kept is not None
    return Facts.decode(kept.body)


def test_the_history_withdraws_the_loss(bench: Bench) -> None:
    steps(bench, 1, generator(0, count=1), bursts=5)
    missed = news(bench)
    report(bench, generator(0, count=1))
    again = news(bench)
    assert (missed.lost, missed.returned) == (["generator/0"], [])
    assert (again.lost, again.returned) == ([], ["generator/0"])
    history = RunHistory([missed, again])
    assert (history.losses, history.failures) == ([], [])
    assert RunHistory([missed]).failures[0].worker == "generator/0"


def test_a_run_that_ends_silently_has_not_crashed(bench: Bench) -> None:
    report(bench, generator(0, count=1))
    bench.run(2)
    report(bench, generator(0, count=1))
    bench.run(200)
    assert bench.aligner.status is ExperimentStatus.COMPLETE
