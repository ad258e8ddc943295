"""Failures that are trained on, and groups that teach nothing; and batches that are only hard."""

import math
import random
from collections.abc import Callable

import pytest

from otel_rl.diagnose.detectors import outcomes
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.result import Cause, Kind
from tests.support.slow import examples
from tests.unit.diagnose.made import AT, changed, made
from tests.unit.diagnose.taught import Lesson, lesson

CASES = examples(60)
SLOPE = 12
"""Steps by which the middle of a slope may be missed; a share that jumps is told at its step."""
INNOCENT = examples(180)
NEW = {Kind.POISONED_REWARDS, Kind.DEAD_GROUPS}


def poisoned(seed: int) -> tuple[Lesson, int]:
    """A run whose environments fail from a step on, with outcomes."""
    run, chance = lesson(seed), random.Random(f"poisoned {seed}")
    at, share = int(run.steps * chance.uniform(0.2, 0.8)), chance.uniform(0.15, 0.95)
    usual = chance.choice((0.0, 0.0, 0.01, 0.03))
    run.fails = lambda step: share if step >= at else usual
    return run, at


def silent(seed: int) -> tuple[Lesson, int]:
    """The same without outcomes: calls fail, and rewards fall."""
    run, at = poisoned(seed)
    chance = random.Random(f"silent {seed}")
    share = chance.uniform(0.4, 0.95)
    run.is_told, run.has_groups = False, False
    run.skill = lambda step: 0.5 + 0.5 * step / run.steps
    run.fails = lambda step: share if step >= at else 0.01
    run.length = lambda step: 200.0 - 80 * (step >= at)
    return run, at


def scored(seed: int) -> tuple[Lesson, int]:
    """The same of a program that scores each sample with its reward alone."""
    run, at = silent(seed)
    run.is_scored = True
    return run, at


def dead(seed: int) -> tuple[Lesson, int | None]:
    """A run whose groups have no signal: prompts far too hard, or rewards that are all the same."""
    run, chance = lesson(seed), random.Random(f"dead {seed}")
    at = int(run.steps * chance.uniform(0.2, 0.8))
    match seed % 3:
        case 0:
            run.steps, at = at + 70, at + 15
            run.harder = lambda step: 8.0 * max(0.0, min(1.0, (step - at) / 24 + 0.5))
        case 1:
            run.skill = lambda step: 0.3
            run.same = lambda step: 0.97 if step >= at else 0.0
        case _:
            run.harder = lambda step: 7.0
            return run, None
    return run, at


def causes(run: Lesson) -> list[Cause]:
    return [*diagnose(run.history(), passed=True).causes]


def missed(make: Callable[[int], tuple[Lesson, int | None]], kind: Kind) -> list[int]:
    """Seeds of which the first cause is not this one at its step."""
    wrong, slope = [], SLOPE if kind is Kind.DEAD_GROUPS else 2
    for seed in range(CASES):
        run, at = make(seed)
        found = causes(run)
        near = (
            bool(found)
            and found[0].kind is kind
            and ((at is None) == (found[0].since is None))
            and (at is None or abs((found[0].since or 0) - at) <= slope + run.mixed)
        )
        if not near:
            wrong.append(seed)
    return wrong


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (poisoned, Kind.POISONED_REWARDS),
        (silent, Kind.POISONED_REWARDS),
        (scored, Kind.POISONED_REWARDS),
        (dead, Kind.DEAD_GROUPS),
    ],
)
def test_drawn_faults_are_named_first_at_their_step(
    make: Callable[[int], tuple[Lesson, int | None]], kind: Kind
) -> None:
    assert len(missed(make, kind)) <= 0.05 * CASES


def hard_batches(run: Lesson, chance: random.Random) -> None:
    odd = {chance.randrange(20, run.steps) for _ in range(4)}
    run.harder = lambda step: 5.0 if step in odd else 0.0


def hard_from_then_on(run: Lesson, chance: random.Random) -> None:
    at = run.steps // 2
    run.harder = lambda step: 1.5 if step >= at else 0.0
    run.own_errors = lambda step: 0.1 if step >= at else 0.04
    run.length = lambda step: 320.0 if step >= at else 200.0
    run.is_told = False


def easy_batches(run: Lesson, chance: random.Random) -> None:
    odd = {chance.randrange(20, run.steps) for _ in range(4)}
    run.harder = lambda step: -6.0 if step in odd else 0.0


def solved_in_the_end(run: Lesson, chance: random.Random) -> None:
    run.skill = lambda step: -1 + 8 * step / run.steps


def failures_that_are_masked(run: Lesson, chance: random.Random) -> None:
    at, share = run.steps // 2, chance.uniform(0.2, 0.6)
    run.fails = lambda step: share if step >= at else 0.0
    run.is_masked, run.is_told = True, chance.random() < 0.5


def few_failures(run: Lesson, chance: random.Random) -> None:
    share = chance.uniform(0.002, 0.02)
    run.fails = lambda step: share


def errors_of_the_policy(run: Lesson, chance: random.Random) -> None:
    run.is_told = False
    run.own_errors = lambda step: 0.5 - 0.4 * step / run.steps


def a_hard_batch_with_errors(run: Lesson, chance: random.Random) -> None:
    odd = {chance.randrange(20, run.steps) for _ in range(4)}
    run.is_told = False
    run.harder = lambda step: 3.0 if step in odd else 0.0
    run.own_errors = lambda step: 0.5 if step in odd else 0.05


def nothing(run: Lesson, chance: random.Random) -> None:
    return


HARMLESS = (
    hard_batches,
    hard_from_then_on,
    easy_batches,
    solved_in_the_end,
    failures_that_are_masked,
    few_failures,
    errors_of_the_policy,
    a_hard_batch_with_errors,
    nothing,
)


def test_nothing_of_the_kind_is_said_of_hard_and_easy_batches() -> None:
    told = []
    for seed in range(INNOCENT):
        run, change = lesson(1_000 + seed), HARMLESS[seed % len(HARMLESS)]
        change(run, random.Random(f"harmless {seed}"))
        told += [(seed, change.__name__, one.words) for one in causes(run) if one.kind in NEW]
    assert len({seed for seed, *_ in told}) <= INNOCENT // 60, told


def test_the_environment_and_the_reason_are_told_with_the_share() -> None:
    run = lesson(3)
    run.fails, run.mixed = lambda step: 0.9 if step >= 30 else 0.0, 0
    (cause,) = [one for one in causes(run) if one.kind is Kind.POISONED_REWARDS]
    assert (cause.since, cause.role) == (30, "env")
    assert "of swe have failed (environment_failed: session_reset)" in cause.words


def test_one_step_is_enough_when_most_samples_have_failed() -> None:
    run = lesson(4)
    run.mixed, last = 0, run.steps - 1
    run.fails = lambda step: 0.9 if step >= last else 0.0
    assert [one.since for one in causes(run) if one.kind is Kind.POISONED_REWARDS] == [last]


def test_failures_that_are_over_are_told_with_their_end() -> None:
    run = lesson(5)
    run.mixed = 0
    run.fails = lambda step: 0.9 if 20 <= step < 35 else 0.0
    (cause,) = [one for one in causes(run) if one.kind is Kind.POISONED_REWARDS]
    assert (cause.since, cause.until) == (20, 34)


def test_that_prompts_are_solved_is_told_and_is_no_fault() -> None:
    run = lesson(6)
    run.skill = lambda step: -1 + 9 * step / run.steps
    found = diagnose(run.history())
    assert Kind.DEAD_GROUPS not in {one.kind for one in found.causes}
    assert any("teach no more" in words for words in found.changes)


@pytest.mark.parametrize("reward", [0.05, 0.97])
def test_the_reward_tells_whether_groups_are_right_where_nothing_else_does(reward: float) -> None:
    rows = {"trainer/frac_reward_zero_std": lambda step: 0.9, "trainer/reward": lambda _: reward}
    kinds = {one.kind for one in diagnose(made(rows=rows)).causes}
    assert (Kind.DEAD_GROUPS in kinds) == (reward < 0.5)


@pytest.mark.parametrize(("since", "is_told"), [(AT, False), (AT - 10, True)])
def test_groups_whose_answers_are_the_same_nonsense_follow_from_a_policy_of_nan(
    since: int, *, is_told: bool
) -> None:
    """A policy of NaN answers all prompts alike; groups without a signal before it do not."""
    history = made(
        rows={"trainer/group/no_signal": changed(0.1, 0.98, since)},
        workers={("trainer/grad_norm", "trainer/1"): changed(1.0, math.nan)},
    )
    found = [cause.kind for cause in diagnose(history).causes]
    assert found == [Kind.NAN] + [Kind.DEAD_GROUPS] * is_told


def test_failed_spans_of_a_sandbox_and_a_reward_that_falls_are_poison() -> None:
    run = {"trainer/reward/mean": lambda step: changed(0.6, 0.15)(step) + 0.02 * (step % 3)}
    spans = {("env", "sandbox_exec", 0): lambda step: 0.1}
    history = made(rows=run, spans=spans, times={"env/sandbox_exec": 16})
    (place,) = [one for one in history.spans if one.role == "env"]
    for step in range(AT, 80):
        history.failed[place]["env/0"].add(step, float(step), 12)
    (cause,) = [one for one in diagnose(history).causes if one.kind is Kind.POISONED_REWARDS]
    assert cause.since == AT


def test_one_failure_among_the_few_samples_of_a_step_is_noise() -> None:
    failed = {("env/sample/poisoned", "env/0"): lambda step: float(step in {21, 47, 48, 70})}
    rows = {"env/sample/poisoned": failed["env/sample/poisoned", "env/0"]}
    assert [one.kind for one in diagnose(made(rows=rows, workers=failed)).causes] == []


def test_the_first_of_several_steps_of_an_export_is_told() -> None:
    key, share = "env/sample/poisoned", changed(0.0, 0.4)
    history = made(rows={key: share})
    mean_of, size_of = Track(), Track()
    history.workers[key], history.measurements[key] = {"env/0": mean_of}, {"env/0": size_of}
    for last in range(2, 80, 8):  # a worker's own figures are those of a second, rows of a step
        steps = range(max(0, last - 7), last + 1)
        mean = sum(map(share, steps)) / len(steps)
        mean_of.add(last, float(last), mean)
        size_of.add(last, float(last), 32.0 * len(steps))
    (cause,) = [one for one in diagnose(history).causes if one.kind is Kind.POISONED_REWARDS]
    assert cause.since == AT
    assert "40% of samples" in cause.words


def test_groups_that_have_a_signal_again_at_the_end_are_no_cause_and_no_error() -> None:
    shares = [0.9] * 27 + [0.6, 0.6, 0.9]
    history = made(len(shares), rows={"trainer/frac_reward_zero_std": lambda step: shares[step]})
    assert [*outcomes.dead_groups(history)] == []
