"""Trouble in some steps: of one worker whose peers have small trouble, and of all for a while."""

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, SpanFacts
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import Series, made
from tests.unit.diagnose.test_evidence import causes, in_steps, role, steady

SMALL = ((12, 31), (17, 44), (22, 52), (27, 61))


@pytest.mark.parametrize(("times", "is_told"), [(7.0, True), (1.6, False)])
def test_small_trouble_of_all_hides_large_trouble_of_one_no_more(
    times: float, *, is_told: bool
) -> None:
    own = in_steps(26, 38, 49, 58, times=times)
    others = [in_steps(*some, times=1.6) for some in SMALL]
    history = made(step_s=lambda step: 1.5 + own(step), spans=role("train", own, *others))
    assert causes(history) == ([(Kind.STRAGGLER, "trainer/0", 26)] if is_told else [])


@pytest.mark.parametrize(("times", "is_told"), [(12.0, True), (2.0, False)])
def test_a_stall_of_all_in_neighbouring_steps_is_told_if_no_busy_machine_makes_it(
    times: float, *, is_told: bool
) -> None:
    load = in_steps(37, 39, 42, 44, times=times)
    spans = role("load_data", load, load, load) | role("train", steady, steady, steady)
    history = made(63, step_s=lambda step: 0.6 + load(step), spans=spans)
    assert causes(history) == ([(Kind.SLOW_DATA, None, 37)] if is_told else [])


@pytest.mark.parametrize(("since", "is_told"), [(60, True), (78, False)])
def test_what_a_step_has_beside_its_parts_is_work_if_it_stays_long(
    since: int, *, is_told: bool
) -> None:
    def rest(step: int) -> float:
        return 3.0 if step >= since else 0.05

    parts: dict[tuple[str, str, int], Series] = role("train", *[steady] * 3)
    history = made(step_s=lambda step: 0.5 + rest(step), spans=parts | role("rl.loop", *[rest] * 3))
    assert bool(causes(history)) == is_told


@pytest.mark.parametrize(("steps", "says_part"), [(1_000, False), (100, True)])
def test_trouble_that_has_just_begun_in_a_long_run_is_not_told_to_cost_nothing(
    steps: int, *, says_part: bool
) -> None:
    own = in_steps(*range(steps - 16, steps, 5), times=6.0)
    history = made(
        steps, step_s=lambda step: 2.5 + own(step), spans=role("train", own, *[steady] * 4)
    )
    (cause,) = diagnose(history).causes
    assert ("% of the time of all steps" in cause.words) == says_part
    assert "a step takes 3 s, not 3:" not in cause.words


@pytest.mark.parametrize(("usual_s", "is_told"), [(3e-4, False), (0.3, True)])
def test_work_that_took_longer_for_a_while_is_told_if_steps_did(
    usual_s: float, *, is_told: bool
) -> None:
    """What a step has beside its parts doubles by the clock's own accidents."""

    def took_s(step: int) -> float:
        return usual_s * (2.2 if 40 <= step < 46 else 1.0)

    spans = role("generate", *[steady] * 3, name="generator")
    spans |= role("unaccounted", *[took_s] * 3, name="generator")
    found = diagnose(made(80, step_s=lambda _: 0.8, spans=spans), passed=True).causes
    assert [one.kind for one in found] == [Kind.SLOW_GENERATION] * is_told


@pytest.mark.parametrize(("usual_s", "is_told"), [(0.006, False), (0.06, True)])
def test_work_of_steps_that_are_told_together_counts_once_for_each(
    usual_s: float, *, is_told: bool
) -> None:
    """One report has the work of five steps, of which each takes longer by one piece only."""

    def took_s(step: int) -> float:
        return usual_s * (2.0 if 80 <= step < 120 else 1.0)

    steps, together = 200, 5
    spans = []
    for step in range(together - 1, steps, together):
        seconds = took_s(step)
        facts = "trainer", "train", "trainer/0", False, together, together * seconds, seconds, 0
        spans.append(SpanFacts(step, *facts))
    reports = Facts(0, 0, [], [], {}, spans, [], [])
    found = diagnose(made(steps, after=[(0.0, reports)]), passed=True).causes
    assert [(one.kind, one.since) for one in found] == [(Kind.SLOW_TRAINING, 84)] * is_told


@pytest.mark.parametrize(("steps", "is_told"), [((50, 64, 78), False), ((68, 73, 78), True)])
def test_of_many_workers_one_is_slow_in_three_near_steps_by_chance(
    steps: tuple[int, int, int], *, is_told: bool
) -> None:
    own = in_steps(*steps)
    history = made(step_s=lambda step: 0.5 + own(step), spans=role("train", own, *[steady] * 29))
    assert causes(history) == [(Kind.STRAGGLER, "trainer/0", steps[0])] * is_told
