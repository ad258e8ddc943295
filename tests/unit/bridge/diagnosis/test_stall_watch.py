"""A stall is noticed when a diagnosis would see it: with phases that tell of it, and without."""

import pytest

from otel_rl.bridge.diagnosis.scheduler import StallWatch

_NS = 1_000_000_000


def noticed_s(told: list[tuple[float, int]]) -> list[float]:
    watch = StallWatch()
    return [at_s for at_s, step in told if watch.notices(int(at_s * _NS), step)]


def going(step_s: float, until_s: float, *, begin_s: float = 1.0) -> list[tuple[float, int]]:
    """What is told each second of a run with steps of equal length."""
    return [(begin_s + s, int(s / step_s)) for s in range(int(until_s) + 1)]


def standing(step: int, since_s: float, until_s: float) -> list[tuple[float, int]]:
    return [(float(s), step) for s in range(int(since_s), int(until_s) + 1)]


@pytest.mark.parametrize(
    ("step_s", "limits_s"),
    [
        (0.05, [10, 12, 15, 20]),
        (0.2, [10, 12, 15, 20]),
        (1, [10, 12, 15, 20]),
        (5, [10, 20, 50, 60, 75, 100]),
        (20, [20, 40, 200, 240, 300, 400]),
    ],
)
def test_a_stall_is_noticed_after_one_two_and_ten_steps_or_ten_seconds_and_again(
    step_s: float, limits_s: list[float]
) -> None:
    steps = going(step_s, 40 * step_s + 20)
    last_s, step = next(one for one in steps if one[1] == steps[-1][1])
    noticed = noticed_s(steps + standing(step, steps[-1][0] + 1, last_s + 3 * limits_s[-1]))
    assert [at_s - last_s for at_s in noticed] == pytest.approx([1 + s for s in limits_s], abs=1)


def test_each_stall_is_noticed() -> None:
    first = going(1.0, 30)
    again = [(50.0 + s, 31 + s) for s in range(30)]
    told = [*first, *standing(30, 32, 44), *again, *standing(60, 80, 330)]
    found = noticed_s(told)
    others_s = [at_s - 79 for at_s in found if at_s > 50]
    assert found[0] < 50
    # a pause of 19 s was no end
    assert others_s == pytest.approx([10, 19, 38, 1.2 * 38, 1.5 * 38, 2 * 38], abs=1)


def test_a_run_of_which_nothing_arrives_is_not_noticed() -> None:
    steps = going(0.2, 30)
    assert noticed_s([*steps, *[steps[-1]] * 100]) == []


def test_a_new_attempt_begins_anew() -> None:
    told = [*going(1.0, 30), *going(1.0, 5, begin_s=40.0), *standing(5, 46, 100)]
    assert noticed_s(told) == []  # six steps are too few


def test_a_stall_is_noticed_though_a_save_has_taken_longer() -> None:
    told = [*going(20.0, 400), *standing(20, 402, 480)]  # the save of step 20 takes 80 s
    told += [(480.0 + s, 21 + int(s / 20)) for s in range(401)]
    noticed = noticed_s([*told, *standing(41, 881, 950)])
    assert noticed[-1] == pytest.approx(880 + 1.2 * 20, abs=1)


def test_a_stall_is_noticed_until_a_diagnosis_that_knows_of_a_later_step_sees_it() -> None:
    steps = going(1.0, 30)
    first_s, *others_s = noticed_s([*steps, *standing(30, 32, 60)])
    since_s = 31 + 1.5  # a leading worker has told the next step then
    assert first_s - since_s < 10
    assert any(10 <= at_s - since_s <= 13 for at_s in others_s)
