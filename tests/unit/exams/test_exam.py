"""The exam's judge can fail, and its runs depend on nothing but the seed."""

from collections.abc import Sequence

import pytest

from exams.first.case import draw, examine
from exams.first.judge import Look, Named, judged
from exams.first.report import figures
from exams.first.truth import Fault, Truth
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Diagnosis, Kind, Verdict

SEED = 5
STRAGGLER = Fault("slow worker", frozenset({"straggler"}), 30, "actor", "actor/2", 100.0)
NAN = Fault("nan", frozenset({"nan"}), 50, "ppo", "ppo/0", 300.0)
FOUND = Named("straggler", "actor", "actor/2", 31)


def all_is_well(history: RunHistory, /, *, passed: bool, silent_s: float) -> Diagnosis:
    return Diagnosis(history.first, history.last, Verdict.HEALTHY, [], [], None)


def always_a_crash(history: RunHistory, /, *, passed: bool, silent_s: float) -> Diagnosis:
    crash = Cause(Kind.CRASH, "crash", role="nobody", worker="nobody/0")
    return Diagnosis(history.first, history.last, Verdict.CAUSE, [crash], [], None)


def looks(*causes: Named, at_s: float = 130.0) -> Sequence[Look]:
    verdict = Verdict.CAUSE if causes else Verdict.HEALTHY
    return [Look(at_s, verdict, causes, is_last=False), Look(400.0, verdict, causes, is_last=True)]


HANG = Fault("hang", frozenset({"stall"}), 30, "actor", "actor/2", 100.0, visible_s=120.0)
STALL = Named("stall", "actor", "actor/2", 30)


@pytest.mark.parametrize(
    ("at_s", "from_symptom", "from_visible"), [(110, 1, 1), (130, 0, 1), (140, 0, 0)]
)
def test_a_hang_is_timed_from_its_symptom_and_from_when_it_can_be_seen(
    at_s: float, from_symptom: int, from_visible: int
) -> None:
    mark = judged(1, Truth((HANG,)), looks(STALL, at_s=at_s))
    found = figures([mark], seed=1, commit="x")
    assert found["hangs"] == 1
    assert found["hangs_in_time"] == from_symptom
    assert found["hangs_seen_in_time"] == from_visible


@pytest.mark.slow
def test_a_drawn_hang_can_be_seen_after_it_begins() -> None:
    hangs = (draw(SEED, number) for number in range(60))
    mark = next(
        examine(case, all_is_well)
        for case in hangs
        if case.truth.faults and case.truth.faults[0].name == "hang"
    )
    fault = mark.truth.faults[0]
    assert fault.visible_s is not None
    assert fault.symptom_s is not None
    assert abs(fault.visible_s - fault.symptom_s) < 120


@pytest.mark.slow
def test_rules_that_always_say_healthy_find_no_fault_and_raise_no_alarm() -> None:
    marks = [examine(draw(SEED, number), all_is_well) for number in range(8)]
    found = figures(marks, seed=SEED, commit="x")
    assert found["right_first"] == 0
    assert found["false_alarms"] == 0
    assert found["p90_s"] is None


@pytest.mark.slow
def test_rules_that_always_name_a_cause_raise_an_alarm_in_each_healthy_run() -> None:
    marks = [examine(draw(SEED, number), always_a_crash) for number in (0, 5)]
    assert all(mark.truth.is_healthy and mark.is_false_alarm for mark in marks)


@pytest.mark.slow
def test_the_rules_are_examined_with_a_few_cases() -> None:
    marks = [examine(draw(SEED, number), diagnose) for number in range(8)]
    found = figures(marks, seed=SEED, commit="x")
    assert (found["cases"], found["healthy"]) == (8, 2)
    assert all(mark.said for mark in marks)
    assert not any(mark.about["refused"] for mark in marks)


def test_a_trainer_that_was_killed_is_named_though_it_waits_for_samples_in_most_steps() -> None:
    """Those who make samples were heard of for two more reports."""
    mark = examine(draw(640213, 214), diagnose)
    assert (mark.right_first, mark.right_worker) == (True, True), mark.said


def test_a_case_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    one, again, other = draw(1, 7), draw(1, 7), draw(2, 7)
    assert (one.program, one.how, one.truth) == (again.program, again.how, again.truth)
    assert one.program != other.program


def test_a_right_first_cause_counts_with_its_worker_onset_and_time() -> None:
    mark = judged(1, Truth((STRAGGLER,)), looks(FOUND))
    assert (mark.right_first, mark.right_worker, mark.right_onset) == (True, True, True)
    assert mark.told_s == 30.0


@pytest.mark.parametrize(
    "wrong",
    [
        FOUND._replace(kind="nan"),
        FOUND._replace(role="judge"),
    ],
)
def test_a_cause_of_another_kind_or_role_is_wrong(wrong: Named) -> None:
    mark = judged(1, Truth((STRAGGLER,)), looks(wrong))
    assert not mark.right_first
    assert mark.told_s is None


def test_another_worker_is_the_wrong_worker() -> None:
    mark = judged(1, Truth((STRAGGLER,)), looks(FOUND._replace(worker="actor/1")))
    assert (mark.right_first, mark.right_worker) == (True, False)


@pytest.mark.parametrize(("since", "is_right"), [(27, True), (33, True), (26, False), (34, False)])
def test_an_onset_is_right_within_three_steps(since: int, *, is_right: bool) -> None:
    mark = judged(1, Truth((STRAGGLER,)), looks(FOUND._replace(since=since)))
    assert mark.right_onset is is_right


def test_the_right_cause_in_second_place_is_not_first() -> None:
    other = Named("crash", "ppo", "ppo/1", 3)
    assert not judged(1, Truth((STRAGGLER,)), looks(other, FOUND)).right_first


def test_of_two_faults_both_have_to_be_named() -> None:
    truth = Truth((STRAGGLER, NAN))
    named = Named("nan", "ppo", "ppo/0", 50)
    assert judged(1, truth, looks(FOUND)).right_second is False
    assert judged(1, truth, looks(named, FOUND)).right_second is True


def test_a_cause_before_the_first_symptom_is_an_alarm() -> None:
    mark = judged(1, Truth((STRAGGLER,)), looks(FOUND, at_s=50.0))
    assert mark.is_false_alarm
    assert mark.told_s is None


def test_one_look_with_a_cause_is_an_alarm_of_a_healthy_run() -> None:
    of_run, after = looks(FOUND)[0], looks()[1]
    assert judged(1, Truth(), [of_run, after]).is_false_alarm
