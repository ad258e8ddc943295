"""Who is missed when, and when that is written: on either side of each limit."""

import pytest

from otel_rl.bridge.rows.run_values import ChangeThrottle
from otel_rl.records import Decoded, Departure, ExperimentStatus, Export
from tests.unit.bridge.rows.liveness.liveness_bench import T0, Bench, S, generator


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
