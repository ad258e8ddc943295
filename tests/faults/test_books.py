"""The oracle notices what it is there to notice."""

import pytest

from tests.faults.books import Books
from tests.faults.reading import Count, Mark, Reading

KEY = "workers/trainer/0/id/exact"
MARKS = tuple(Mark(KEY, float(value), value) for value in range(3))


def books(*, acknowledged: int = 3) -> Books:
    kept = Books()
    kept.offer(Reading(MARKS, ()))
    kept.acknowledge(Reading(MARKS[:acknowledged], ()))
    return kept


def row(number: int, value: float, **more: float) -> dict[str, float]:
    return {"_step": number, "step": value, "_timestamp": 1.0, KEY: value, **more}


WHOLE = [row(0, 0), row(1, 1), row(2, 2)]


def test_a_whole_run_is_sound() -> None:
    assert books().judge(WHOLE).is_sound


def test_what_was_acknowledged_and_is_missing_is_lost() -> None:
    assert books().judge(WHOLE[:2]).lost == 1


def test_what_was_never_acknowledged_may_be_missing() -> None:
    assert books(acknowledged=2).judge(WHOLE[:2]).is_sound


def test_what_was_never_acknowledged_may_not_be_there_twice() -> None:
    assert books(acknowledged=2).judge([*WHOLE, row(3, 2)]).duplicated == 1


def test_what_is_there_twice_is_duplicated() -> None:
    assert books().judge([*WHOLE, row(3, 2)]).duplicated == 1


def test_what_nobody_sent_is_unexpected() -> None:
    assert books().judge([*WHOLE, row(3, 99)]).unexpected == 1


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ([WHOLE[0], WHOLE[1], row(3, 2)], "rows out of place"),
        ([WHOLE[0], WHOLE[1], row(2, 2, step=7)], "at a wrong step"),
        ([WHOLE[0], WHOLE[1], {"_step": 2, "step": 2, KEY: 2.0}], "rows without step or time"),
    ],
)
def test_a_row_that_is_wrong_is_a_problem(history: list[dict[str, float]], problem: str) -> None:
    (found,) = books().judge(history).problems
    assert problem in found


def count(start_ns: int, time_ns: int, value: int, *, is_delta: bool) -> Count:
    name = "delta" if is_delta else "cumulative"
    return Count(f"env/count/{name}", f"one/{name}", start_ns, time_ns, value, is_delta)


COUNTS = (
    count(1, 2, 5, is_delta=True),
    count(2, 3, 5, is_delta=True),
    count(1, 2, 5, is_delta=False),
    count(1, 3, 8, is_delta=False),
    count(9, 10, 2, is_delta=False),  # another life
)


@pytest.mark.parametrize(
    ("delta", "cumulative", "sound"),
    [(10, 10, True), (15, 10, False), (5, 10, False), (10, 8, False), (10, 15, False)],
)
def test_a_total_is_what_the_acknowledged_points_add_up_to(
    delta: float, cumulative: float, sound: bool
) -> None:
    kept = Books()
    kept.offer(Reading((), COUNTS))
    kept.acknowledge(Reading((), COUNTS))
    kept.acknowledge(Reading((), COUNTS[:2]))  # the same again
    shown = {"env/count/delta": delta, "env/count/cumulative": cumulative}
    assert kept.judge([{"_step": 0, "step": 0, "_timestamp": 1.0, **shown}]).is_sound is sound


def test_a_total_that_falls_is_a_problem() -> None:
    kept = Books()
    kept.offer(Reading((), COUNTS[:1]))
    kept.acknowledge(Reading((), COUNTS[:1]))
    history = [
        {"_step": n, "step": 0, "_timestamp": 1.0, "env/count/delta": total}
        for n, total in enumerate((6.0, 5.0))
    ]
    assert not kept.judge(history).is_sound


def test_a_complaint_is_a_problem() -> None:
    kept = books()
    kept.complain("the bridge answered 500")
    assert kept.judge(WHOLE).problems == ["the bridge answered 500"]
