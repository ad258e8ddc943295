"""The second exam: its simulations are runs, its truth fits them, its judge is fair."""

from itertools import pairwise
from statistics import mean

import pytest

from exams.second.examine import examined
from exams.second.judge import Look, judged
from exams.second.run import draw, simulate
from exams.second.scenario import Scenario
from exams.second.scenarios import SCENARIOS
from otel_rl.diagnose.result import Diagnosis, Kind, Verdict
from tests.support.slow import slow_after


def _named(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


def _diagnosis(verdict: Verdict) -> Diagnosis:
    return Diagnosis(0, 60, verdict, (), (), None, (), "", (), ())


def test_every_trouble_begins_within_the_run_and_at_a_worker_that_exists() -> None:
    for run in (draw(scenario, 5) for scenario in SCENARIOS):
        assert all(one.step < run.program.steps - 10 for one in run.troubles)
        assert all((one.index or 0) < run.program.sizes[one.role] for one in run.troubles)


# The programs of the exam report no outcomes and no digests of weights. These kinds are drawn in
# test_outcomes and test_wrong_weights beside the tests of a diagnosis.
DRAWN_ELSEWHERE = {Kind.POISONED_REWARDS, Kind.WRONG_WEIGHTS}


def test_every_kind_is_asked_for() -> None:
    kinds = {kind for one in SCENARIOS for _, answer in one.troubles if answer
             for kind in answer.kinds}  # fmt: skip
    assert kinds == {str(kind) for kind in Kind} - {str(kind) for kind in DRAWN_ELSEWHERE}


@pytest.mark.parametrize(
    "name",
    ["lockstep.all_train_slowly", "async.all_generate_slowly", "agents.all_engines_slow"],
)
def test_steps_take_longer_from_the_troubles_first_step_on(name: str) -> None:
    run = draw(_named(name), 3)
    ends = [end for _, end in simulate(run).step_ends]
    took = [after - before for before, after in pairwise(ends)]
    onset = run.onset or 0
    assert mean(took[onset:]) > 1.2 * mean(took[3 : onset - 1])


@pytest.mark.parametrize(
    "name", ["lockstep.rank_hangs_in_training", "async.trainer_hangs", "agents.engine_hangs"]
)
def test_a_hang_stops_all_steps_and_the_run_is_watched_after_it(name: str) -> None:
    run = draw(_named(name), 3)
    world = simulate(run)
    last, end_s = world.step_ends[-1]
    assert last + 1 >= (run.onset or 0)
    assert world.ends_s > end_s + 20 * run.program.step_s


def test_a_run_is_the_same_each_time_it_is_drawn() -> None:
    run = draw(_named("agents.tool_slow"), 4)
    assert simulate(run).records == simulate(draw(_named("agents.tool_slow"), 4)).records


@pytest.mark.slow
def test_a_case_is_played_to_a_bridge_that_sees_its_steps() -> None:
    run = draw(_named("lockstep.one_rank_trains_slowly"), 2)
    mark, looks, _ = examined(run)
    assert looks[-1].said.last == run.program.steps - 1
    assert mark.name == run.scenario.name


@pytest.mark.parametrize("seed", slow_after(1, [1, 2]))
@pytest.mark.parametrize(
    "name",
    slow_after(
        1,
        [
            "async.one_generator_hangs_in_short_steps",
            "lockstep.rank_frozen_awhile_in_short_steps",
            "async.one_generates_slowly_in_short_steps",
            "async.one_generator_hangs_awhile_in_short_steps",
        ],
    ),
)
def test_a_worker_in_trouble_is_named_in_steps_of_a_quarter_second(name: str, seed: int) -> None:
    run = draw(_named(name), seed)
    mark, _, _ = examined(run)
    assert run.program.step_s < 1.0
    assert mark.is_right
    assert not mark.alarms


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["generation", "sync", "training"])
def test_the_rank_that_hangs_is_named_and_not_the_controller_that_waits_for_it(phase: str) -> None:
    run = draw(_named(f"lockstep.called_rank_hangs_in_{phase}"), 601)
    mark, looks, _ = examined(run)
    assert mark.is_right, looks[-1].said.causes


def test_silence_about_a_sick_run_is_wrong() -> None:
    run = draw(_named("lockstep.sync_slow"), 1)
    mark = judged(run, [Look(100.0, 70, _diagnosis(Verdict.HEALTHY))], 50.0)
    assert (mark.is_right, mark.is_silent) == (False, True)


def test_a_healthy_run_is_right_without_a_cause() -> None:
    run = draw(_named("async.plain"), 1)
    assert judged(run, [Look(100.0, 70, _diagnosis(Verdict.CANNOT_TELL))], 0.0).is_right


@pytest.mark.parametrize(
    ("name", "seed"),
    slow_after(
        3,
        [
            ("async.all_generators_hang", 730512),  # the trainers wait for samples
            ("async.scorers_hang", 399253),  # samples are there at once, as a rule
            # Those who make samples at their own pace are in no step together:
            ("async.all_generators_hang", 30414),
            ("async.scorers_hang", 118705),
            ("async.scorers_hang", 570174),  # who makes them has gone on for a while
            ("async.all_generators_hang", 12),  # the buffer has nothing to tell
            ("async.scorers_hang", 12),  # no weights are pushed any more
        ],
    ),
)
def test_who_only_waits_for_samples_is_not_named_when_their_makers_hang(
    name: str, seed: int
) -> None:
    mark, looks, _ = examined(draw(_named(name), seed))
    assert mark.is_right, looks[-1].said.causes


def test_a_scorer_that_is_called_often_in_a_step_is_named_and_not_its_callers() -> None:
    mark, looks, _ = examined(draw(_named("lockstep.one_scorer_slow"), 730512))
    assert mark.is_right, looks[-1].said.causes


@pytest.mark.slow
def test_a_hang_is_told_though_the_last_calls_before_it_took_long_by_chance() -> None:
    mark, looks, _ = examined(draw(_named("agents.engine_hangs"), 918273))
    assert not mark.is_silent
    assert [cause.kind for cause in looks[-1].said.causes] == [Kind.STALL]


@pytest.mark.slow
def test_scorers_that_leave_and_come_back_until_the_end_of_the_run_are_not_called_frozen() -> None:
    """The last rows expect none of them, because the run ends."""
    mark, _, _ = examined(draw(_named("async.scorers_scale"), 918273))
    assert mark.is_right, mark.alarms


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lockstep.plain_called", "lockstep.evaluation_moves_away"])
def test_a_caller_that_often_waits_behind_others_has_no_slow_messages(name: str) -> None:
    """Its longest waits are no longer than theirs."""
    mark, _, _ = examined(draw(_named(name), 246813))
    assert mark.is_right, mark.alarms
