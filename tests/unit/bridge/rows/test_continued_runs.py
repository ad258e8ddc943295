"""A run that goes on after its end has a note that says so."""

import pytest

from otel_rl.bridge.rows.messages import CONTINUED
from tests.unit.bridge.rows.liveness_bench import Bench, generator


@pytest.fixture
def bench() -> Bench:
    """A run of one worker, which lives."""
    bench = Bench()
    bench.start(generator(0, count=1))
    bench.run(3)
    return bench


def notes(bench: Bench) -> list[str]:
    bench.look()
    return [row.labels[CONTINUED] for row in bench.rows if CONTINUED in row.labels]


def another(bench: Bench, index: int = 0, count: int = 1) -> None:
    bench.start(generator(index, f"later-{bench.now_s}", count=count))
    bench.run(3)


def test_another_job_after_an_orderly_end_is_noted_once(bench: Bench) -> None:
    bench.say_goodbye(generator(0, count=1))
    bench.run(3)
    bench.start(*(generator(index, f"later-{index}", count=2) for index in range(2)))
    bench.run(3)
    (note,) = notes(bench)
    assert "had ended and goes on" in note


def test_each_further_job_is_noted(bench: Bench) -> None:
    worker = generator(0, count=1)
    for life in range(3):
        bench.say_goodbye(worker)
        bench.run(3)
        worker = generator(0, f"life-{life}", count=1)
        bench.start(worker)
        bench.run(3)
    assert len(notes(bench)) == 3


def test_workers_that_are_started_again_after_a_failure_go_on(bench: Bench) -> None:
    bench.say_goodbye(generator(0, count=1), failed=True)
    bench.run(3)
    another(bench)
    assert notes(bench) == []


def test_a_worker_that_comes_while_another_one_lives_is_no_other_job(bench: Bench) -> None:
    bench.start(generator(1, count=2))
    bench.run(3)
    bench.say_goodbye(generator(0, count=1))
    bench.run(3)
    another(bench, 0, 2)
    assert notes(bench) == []


def test_processes_of_one_launch_may_come_one_after_the_other(bench: Bench) -> None:
    bench.aligner.reports.is_one_launch = True
    bench.say_goodbye(generator(0, count=1))
    bench.run(3)
    another(bench)
    assert notes(bench) == []


@pytest.mark.parametrize(("failed", "word"), [(False, "ended"), (True, "crashed")])
def test_a_job_under_a_later_bridge_is_noted_however_the_first_one_ended(
    bench: Bench, *, failed: bool, word: str
) -> None:
    bench.say_goodbye(generator(0, count=1), failed=failed)
    bench.run(3)
    bench.restart_bridge(away_s=1)
    bench.aligner.reports.is_one_launch = True
    another(bench)
    (note,) = notes(bench)
    assert note.startswith(f"The run had {word} and goes on")


def test_a_run_that_a_killed_bridge_left_has_not_ended(bench: Bench) -> None:
    bench.restart_bridge(away_s=1)
    another(bench)
    assert notes(bench) == []
