"""Costs of causes: as in a simulation without the fault, and in the devices that a run has."""

from dataclasses import replace

import pytest

from exams.first.case import draw
from exams.what_if.simulated import told_of
from otel_rl.diagnose.costs import Cost, cost_of, ranked_by_cost
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Evidence, Kind
from tests.support.slow import slow_after
from tests.unit.diagnose.made import AT, Series, changed, made

SEED = 20
LARGEST_ERROR = 0.08  # of a step
PEERS = 4
TRAIN = changed(0.5, 1.5)
STEP = changed(1.0, 2.0)


def run(step_s: Series = STEP, **phases: Series) -> RunHistory:
    """Trainers, of which the last has these times of phases; its peers stay as they were."""
    spans = {
        ("trainer", phase, index): of if index == PEERS - 1 else (lambda _, of=of: of(0))
        for phase, of in phases.items()
        for index in range(PEERS)
    }
    return made(step_s=step_s, spans=spans)


def straggler(before: float = 0.5, after: float = 1.5) -> Cause:
    worker = f"trainer/{PEERS - 1}"
    evidence = [Evidence("time of one train", "phase/trainer/train", worker, before, after, "s")]
    return Cause(Kind.STRAGGLER, "slow", "trainer", worker, "train", since=AT, evidence=evidence)


def known(history: RunHistory, cause: Cause, *, is_only: bool = False) -> Cost:
    cost = cost_of(history, cause, is_only=is_only)
    assert cost is not None
    return cost


@pytest.mark.parametrize("number", slow_after(2, [118, 127, 23, 66, 77, 92, 121, 133, 174]))
def test_a_told_cost_is_that_of_the_simulation_without_the_fault(number: int) -> None:
    told = told_of(draw(SEED, number))
    assert told.error is not None
    assert abs(told.error) < LARGEST_ERROR, told


def test_a_cost_is_in_hours_of_the_gpus_that_workers_report() -> None:
    history = run(train=TRAIN)
    by_workers = known(history, straggler())
    assert (by_workers.unit, by_workers.devices) == ("worker", PEERS)
    for step in range(3):
        history.rows["gpu/count"].add(step, 0.0, 16.0)
    by_gpus = known(history, straggler())
    assert (by_gpus.unit, by_gpus.devices) == ("GPU", 16)
    assert by_gpus.lost_hours == pytest.approx(4 * by_workers.lost_hours)


def test_all_phases_in_which_a_worker_became_slow_are_its_cost() -> None:
    step_s = changed(1.5, 3.5)
    one = known(run(step_s, train=TRAIN, forward=lambda _: 0.5), straggler())
    both = known(run(step_s, train=TRAIN, forward=TRAIN), straggler())
    assert one.without_s == pytest.approx(2.5)
    assert both.without_s == pytest.approx(1.5)


def test_no_step_is_shorter_than_steps_were_before_the_cause() -> None:
    cost = known(run(changed(1.0, 1.2), train=TRAIN), straggler())
    assert cost.without_s == pytest.approx(1.0, rel=0.01)


def test_work_that_no_step_waits_for_costs_nothing() -> None:
    assert cost_of(run(lambda _: 2.0, train=TRAIN), straggler()) is None


@pytest.mark.parametrize(("is_only", "is_told"), [(True, True), (False, False)])
def test_a_fault_without_a_phase_costs_what_steps_are_longer_if_it_is_the_only_one(
    *, is_only: bool, is_told: bool
) -> None:
    cause = Cause(Kind.THROTTLED, "throttled", "trainer", "trainer/1", since=AT)
    found = cost_of(run(train=lambda _: 0.5), cause, is_only=is_only)
    assert (found is not None) is is_told
    assert found is None or found.without_s == pytest.approx(1.0)


def test_a_fault_of_the_learning_costs_no_time() -> None:
    cause = Cause(Kind.NAN, "NaN", "trainer", "trainer/1", since=AT)
    assert cost_of(run(train=TRAIN), cause, is_only=True) is None


def test_a_slow_replica_that_no_step_waits_for_loses_its_own_time() -> None:
    (cause,) = ranked_by_cost(run(lambda step: 2.0 + 0.1 * (step % 2), train=TRAIN), [straggler()])
    assert cause.words == "slow; steps are not longer; 50% of its worker time is lost"


def test_what_makes_steps_longer_comes_before_what_a_buffer_hides() -> None:
    history = run(train=TRAIN, other=changed(0.1, 0.2))
    hidden = replace(straggler(0.1, 0.1), worker="trainer/0", phase="other", strength=1.0)
    first, second = ranked_by_cost(history, [hidden, straggler()])
    assert (first.phase, second.phase) == ("train", "other")
    assert "time lost so far" in first.words
    assert second.words == "slow; steps are not longer by it; 0% of its worker time is lost"
