"""Rewards that are gained without what they stand for, and those that are earned."""

import math
import random

import pytest

from otel_rl.diagnose.detectors.reward_hacking import held_out_scores
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind, Observed, Verdict
from tests.unit.diagnose.made import AT, Series, made

REWARD, SCORE = "trainer/reward/mean", "trainer/eval/math/score"
LENGTH, REPEATED = "trainer/episode/length", "trainer/rollout/repetition"


def noisy(of: Series, sigma: float, name: str = "") -> Series:
    return lambda step: of(step) + random.Random(f"{name} {step}").gauss(0, sigma)


def begun(step: int) -> float:
    """How far a change in twelve steps has come."""
    return max(0.0, min(1.0, (step - AT) / 12))


def learns(step: int) -> float:
    return 0.2 + 0.3 * step / 80


def leaps(step: int) -> float:
    return learns(step) + 0.3 * begun(step)


EARNED = noisy(leaps, 0.012, "reward")


def causes(rows: dict[str, Series]) -> list[tuple[Kind, int | None]]:
    return [(one.kind, one.since) for one in diagnose(made(rows=rows)).causes]


def is_hacking(rows: dict[str, Series]) -> bool:
    ((kind, since),) = causes(rows)
    return kind is Kind.REWARD_HACKING and abs((since or 0) - AT) <= 6


def test_a_held_out_score_that_falls_while_the_reward_rises_is_told() -> None:
    score = noisy(lambda step: learns(step) * (1 - 0.5 * begun(step)), 0.012, "score")
    assert is_hacking({REWARD: EARNED, SCORE: score})


SIGNS: dict[str, tuple[str, Series]] = {
    "answers repeat themselves": (
        REPEATED,
        noisy(lambda step: 0.04 + 0.3 * begun(step), 0.006, "repeats"),
    ),
    "answers become much shorter": (
        LENGTH,
        noisy(lambda step: 300 * (1 - 0.8 * begun(step)), 4, "short"),
    ),
}


@pytest.mark.parametrize(("what", "sign"), SIGNS.items(), ids=SIGNS)
def test_a_sign_while_the_reward_leaps_is_told_where_a_score_does_not_gain(
    what: str, sign: tuple[str, Series]
) -> None:
    score = noisy(lambda step: 0.4, 0.02, "score")
    assert is_hacking({REWARD: EARNED, SCORE: score, sign[0]: sign[1]})


@pytest.mark.parametrize(("what", "sign"), SIGNS.items(), ids=SIGNS)
def test_without_a_score_it_cannot_be_told_and_what_was_seen_is(
    what: str, sign: tuple[str, Series]
) -> None:
    found = diagnose(made(rows={REWARD: EARNED, sign[0]: sign[1]}))
    assert (found.verdict, [*found.causes]) == (Verdict.HEALTHY, [])
    (one,) = (one for one in found.observations if one.kind is Observed.UNPROVEN_REWARD)
    assert not one.is_beyond
    assert one.words.startswith(
        "cannot tell whether the reward is earned; log a held-out score, or what the reward stands "
        f"for. Seen: {what} since step "
    )
    assert f"({sign[0]} from " in one.words
    assert f"while {REWARD} went from " in one.words


def test_a_score_of_few_evaluations_is_enough() -> None:
    history = made(rows={REWARD: EARNED})
    for step in range(0, 80, 6):
        score = learns(step) * (1 - 0.7 * begun(step))
        history.rows[SCORE].add(step, float(step), score + random.Random(step).gauss(0, 0.01))
    assert [one.kind for one in diagnose(history).causes] == [Kind.REWARD_HACKING]


def longer(step: int) -> float:
    return 300 * (1 + 1.2 * begun(step))


@pytest.mark.parametrize(("gained", "is_told"), [(0.0, True), (0.15, False)])
def test_longer_answers_are_no_trick_if_a_score_that_had_grown_less_and_less_gains_by_them(
    gained: float, *, is_told: bool
) -> None:
    history = made(rows={REWARD: EARNED, LENGTH: noisy(longer, 4, "longer")})
    for step in range(3, 80, 4):
        score = 0.2 + 0.25 * (1 - math.exp(-step / 15)) + gained * begun(step)
        history.rows[SCORE].add(step, float(step), score + random.Random(step).gauss(0, 0.01))
    kinds = [one.kind for one in diagnose(history).causes]
    assert kinds == ([Kind.REWARD_HACKING] if is_told else [])


HONEST: dict[str, dict[str, Series]] = {
    "the score rises with it": {SCORE: noisy(leaps, 0.012, "score")},
    "the score stays": {SCORE: noisy(lambda step: 0.4, 0.02, "score")},
    "the score is noisy": {SCORE: noisy(learns, 0.12, "score")},
    "answers grow": {LENGTH: noisy(longer, 5, "length")},
    "answers grow and the score rises": {
        LENGTH: noisy(longer, 5, "length"),
        SCORE: noisy(leaps, 0.012, "score"),
    },
    "answers become a little shorter": {
        LENGTH: noisy(lambda step: 300 * (1 - 0.3 * begun(step)), 5, "length")
    },
    "few words are repeated": {REPEATED: noisy(lambda step: 0.01 + 0.04 * begun(step), 0.002, "r")},
    "one of three scores falls": {
        SCORE: noisy(lambda step: learns(step) * (1 - 0.5 * begun(step)), 0.012, "score"),
        "trainer/eval/code/score": noisy(leaps, 0.012, "code"),
        "trainer/eval/chat/score": noisy(learns, 0.012, "chat"),
    },
}


@pytest.mark.parametrize("rows", HONEST.values(), ids=HONEST)
def test_a_reward_is_earned_if(rows: dict[str, Series]) -> None:
    assert causes({REWARD: EARNED, **rows}) == []


def test_a_score_that_falls_with_the_reward_is_no_trick() -> None:
    falls = noisy(lambda step: leaps(step) * (1 - 0.7 * begun(step)), 0.012, "falls")
    kinds = {kind for kind, _ in causes({REWARD: falls, SCORE: falls})}
    assert Kind.REWARD_HACKING not in kinds


def test_a_seasonal_reward_and_a_score_in_turns_are_no_trick() -> None:
    def seasons(step: int) -> float:
        return 0.08 * (1, 0.7, 0, -0.7, -1, -0.7, 0, 0.7)[step // 3 % 8]

    rows = {
        REWARD: noisy(lambda step: learns(step) + seasons(step), 0.012, "reward"),
        SCORE: noisy(lambda step: learns(step) - seasons(step), 0.012, "score"),
    }
    assert causes(rows) == []


@pytest.mark.parametrize(
    ("key", "is_score"),
    [
        ("trainer/val-core/openai/gsm8k/reward/mean_x40_1", True),
        ("trainer/eval/all/avg_score", True),
        ("trainer/eval/aime", True),
        ("trainer/eval_reward", True),
        ("trainer/rewards/accuracy_reward/mean", True),
        ("trainer/eval/aime/avg_x40_16", True),
        ("trainer/reward/mean", False),
        ("trainer/eval/loss/mean", False),
        ("trainer/val-aux/gsm8k/response_length/mean_x40_1", False),
        ("trainer/value/mean", False),
        ("trainer/timing_s/testing", False),
        ("trainer/eval/score/rank_min", False),
    ],
)
def test_scores_are_known_by_their_names(key: str, *, is_score: bool) -> None:
    history = RunHistory(())
    history.rows[key].add(1, 1.0, 0.5)
    assert bool(held_out_scores(history)) == is_score


TRUE = "trainer/reward/true"


def stairs(seed: str, steps: int = 42) -> list[float]:
    """The score of a scripted policy on its last episodes: it moves now and then, and stays."""
    chance, value = random.Random(seed), 0.0
    values: list[float] = []
    while len(values) < steps:
        value = min(1.0, max(0.0, value + chance.choice([0.3, 0.2, 0.1, 0.1, -0.1, -0.1])))
        values += [value] * chance.randint(3, 7)
    return values[:steps]


def twins(seed: str) -> tuple[list[float], list[float], list[float]]:
    """One reward, and what it stands for: earned, and not earned since a shortcut was found."""
    chance, earned = random.Random(f"of {seed}"), stairs(seed)
    found, worth = chance.randint(8, 26), chance.uniform(0.15, 0.5)
    bonus = [worth * (step >= found) for step in range(len(earned))]
    return [a + b for a, b in zip(earned, bonus, strict=True)], earned, bonus


def of_twins(paid: list[float], true: list[float] | None = None) -> set[Kind]:
    rows: dict[str, Series] = {REWARD: paid.__getitem__}
    if true is not None:
        rows[TRUE] = true.__getitem__
    return {one.kind for one in diagnose(made(len(paid), rows=rows)).causes}


def test_of_twins_with_one_curve_the_true_reward_tells_which_one_is_a_trick() -> None:
    drawn = [twins(str(n)) for n in range(40)]
    tricks = [Kind.REWARD_HACKING in of_twins(paid, true=true) for paid, true, _ in drawn]
    assert sum(tricks) >= 0.8 * len(drawn)
    assert not any(Kind.REWARD_HACKING in of_twins(paid, true=paid) for paid, *_ in drawn)
    assert not any(Kind.REWARD_HACKING in of_twins(paid) for paid, *_ in drawn)


def test_a_score_of_other_tasks_that_rises_less_than_the_reward_proves_nothing() -> None:
    rows: dict[str, Series] = {
        REWARD: noisy(lambda step: 0.1 + 0.01 * step, 0.01, "paid"),
        SCORE: noisy(lambda step: 0.1 + 0.006 * step, 0.01, "score"),
    }
    assert causes(rows) == []


def test_a_shortcut_that_is_found_at_once_is_no_reward_of_another_scale() -> None:
    paid = [0.1 if step < 20 else 0.8 for step in range(42)]
    assert of_twins(paid, true=[0.1] * 42) == {Kind.REWARD_HACKING}
    assert of_twins(paid, true=paid) == set()
    assert of_twins(paid) == {Kind.REWARD_BUG}


def test_a_reward_that_also_pays_for_the_form_of_answers_is_earned() -> None:
    def verified(step: int) -> float:
        return 0.1 + 0.8 * (1 - math.exp(-step / 60))

    noise = [random.Random(step).gauss(0, 0.01) for step in range(200)]
    rows: dict[str, Series] = {
        REWARD: lambda step: (
            verified(step) + 0.2 * min(1.0, max(0.0, (step - 15) / 15)) + noise[step]
        ),
        "trainer/reward/verified": lambda step: verified(step) + noise[step],
    }
    assert [one.kind for one in diagnose(made(200, rows=rows)).causes] == []
