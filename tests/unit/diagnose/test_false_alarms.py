"""Runs of exams that were once told wrong: a cause in a healthy one, or the wrong worker."""

import pytest

from exams.first.case import draw, examine
from otel_rl.diagnose.engine import diagnose

SEED = 4610233


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(205, id="a smaller batch makes samples that grow older do so faster"),
        pytest.param(
            70,
            id="scorers of a queue begin their next piece when there is one",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            230,
            id="who comes last into a collective waits a little longer by chance",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_cause_is_named_at_any_look(number: int) -> None:
    mark = examine(draw(SEED, number), diagnose)

    assert mark.truth.is_healthy
    assert not mark.is_false_alarm, mark.said


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(255, id="more workers"),
        pytest.param(150, id="a process that joins late", marks=pytest.mark.slow),
    ],
)
def test_samples_that_grow_older_faster_with_other_workers_are_no_alarm(number: int) -> None:
    mark = examine(draw(141421, number), diagnose)

    assert mark.truth.is_healthy
    assert not mark.is_false_alarm, mark.said


def test_who_waits_for_the_last_in_a_collective_is_not_slow_if_that_one_reports_no_wait() -> None:
    mark = examine(draw(918273, 232), diagnose)

    assert mark.truth.faults[0].worker == "actor_train/0"
    assert mark.right_worker, mark.said
