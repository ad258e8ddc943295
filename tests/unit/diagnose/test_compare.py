"""Two sides of runs: what is sure, what is not, and what cannot be told."""

import random
from collections.abc import Callable, Mapping, Sequence
from math import exp, sqrt

import pytest

from otel_rl.diagnose.compare import (
    MEAN_TIME,
    TIME_PER_STEP,
    About,
    Comparison,
    Limit,
    common_measures,
    compared,
)
from otel_rl.diagnose.history.run_history import RunHistory
from tests.unit.diagnose.made import Series, made

STEPS = 200
DURATION = "seconds of a step"
REWARD = "trainer/reward/mean"


Draw = Callable[[random.Random, int], float]


def run(seed: str, rows: Mapping[str, Draw], *, steps: int = STEPS) -> RunHistory:
    """A run whose values are drawn; those of DURATION are how long its steps take."""
    chance = random.Random(seed)
    values = {key: [of(chance, step) for step in range(steps)] for key, of in rows.items()}
    step_s: Series = values.pop(DURATION, [1.0] * steps).__getitem__
    return made(steps, step_s=step_s, rows={key: of.__getitem__ for key, of in values.items()})


def constant(chance: random.Random, _: int) -> float:
    return chance.uniform(1, 2)


def timed(seed: str, slower: float = 1.0, *, noise: float = 0.04, alike: float = 0.5) -> RunHistory:
    """A run whose steps grow, as answers do, with checkpoints, rare hiccups and noise in waves."""
    wave = [0.0]

    def seconds(chance: random.Random, step: int) -> float:
        wave[0] = alike * wave[0] + sqrt(1 - alike**2) * chance.gauss(0, noise)
        odd = (3.0 if step % 25 == 24 else 1.0) * (2.0 if chance.random() < 0.01 else 1.0)
        return slower * (1 + 0.5 * step / STEPS) * odd * exp(wave[0])

    return run(seed, {DURATION: seconds})


def of_name(found: Sequence[Comparison], name: str) -> Comparison:
    (one,) = (one for one in found if one.name == name)
    return one


def test_a_step_that_is_5_percent_slower_is_seen_and_equal_ones_are_not_told_apart() -> None:
    pairs = [(timed(f"a{n}"), timed(f"b{n}"), timed(f"c{n}", 1.05)) for n in range(20)]
    slower = [of_name(compared([a], [c]), TIME_PER_STEP) for a, _, c in pairs]
    equal = [of_name(compared([a], [b]), TIME_PER_STEP) for a, b, _ in pairs]
    assert sum(one.is_sure and one.change > 0 for one in slower) >= 18
    assert sum(one.is_sure for one in equal) <= 1
    assert sum(one.low <= 0.05 <= one.high for one in slower) >= 18


def test_steps_that_are_alike_for_long_prove_less_than_their_number() -> None:
    found = [
        of_name(compared([timed(f"a{n}", alike=0.95)], [timed(f"b{n}", alike=0.95)]), TIME_PER_STEP)
        for n in range(40)
    ]
    assert sum(one.is_sure for one in found) <= 4


def test_a_change_that_nobody_feels_is_none() -> None:
    slower = of_name(
        compared([timed("a", noise=0.001)], [timed("b", 1.005, noise=0.001)]), TIME_PER_STEP
    )
    assert slower.low > 0
    assert not slower.is_sure


def test_rare_steps_that_take_long_are_in_the_mean() -> None:
    def rarely(chance: random.Random, step: int) -> float:
        return chance.uniform(0.95, 1.05) + 10.0 * (step % 5 == 0)

    even = run("a", {DURATION: lambda chance, _: chance.uniform(0.95, 1.05)})
    found = compared([even], [run("b", {DURATION: rarely})])
    assert of_name(found, MEAN_TIME).low > 1.5
    assert of_name(found, TIME_PER_STEP).high < 0.05
    seeds = [[run(f"{n}", {DURATION: draw}) for n in range(3)] for draw in (constant, rarely)]
    assert of_name(compared(*seeds), MEAN_TIME).is_sure


def test_few_steps_cannot_tell() -> None:
    runs = [run(seed, {DURATION: constant}, steps=20) for seed in "ab"]
    found = of_name(compared(runs[:1], runs[1:]), TIME_PER_STEP)
    assert found.why_not == "20 common steps, of 40 that it takes"
    assert not found.is_sure


def learned(seed: str, end: float) -> RunHistory:
    of_seed = random.Random(seed).gauss(0, 0.02)
    return run(
        seed,
        {REWARD: lambda chance, step: (end + of_seed) * step / STEPS + chance.gauss(0, 0.02)},
    )


def test_learning_takes_three_seeds_a_side() -> None:
    for seeds, words in ((1, "one seed a side: cannot tell"), (2, "2 seeds a side: cannot tell")):
        sides = [[learned(f"{end}{n}", end) for n in range(seeds)] for end in (0.4, 0.8)]
        assert of_name(compared(*sides), REWARD).why_not == words
    better, worse = ([learned(f"{end}{n}", end) for n in range(4)] for end in (0.8, 0.4))
    found = of_name(compared(worse, better), REWARD)
    assert found.is_sure
    assert found.about is About.LEARNING
    assert found.low < found.change < found.high
    same = of_name(compared(worse, [learned(f"same{n}", 0.4) for n in range(4)]), REWARD)
    assert not same.is_sure


def test_learning_is_aligned_by_a_total() -> None:
    """The second program takes twice the tokens a step: at equal tokens it has learned less."""

    def side(tokens: int) -> list[RunHistory]:
        return [
            run(
                f"{tokens}{n}",
                {
                    REWARD: lambda chance, step: step / STEPS + chance.gauss(0, 0.01),
                    "trainer/tokens": lambda _, step: float(tokens * step),
                },
            )
            for n in range(3)
        ]

    by_step = of_name(compared(side(1), side(2)), REWARD)
    by_tokens = of_name(compared(side(1), side(2), axis="trainer/tokens"), REWARD)
    assert not by_step.is_sure
    assert by_tokens.is_sure
    assert by_tokens.change == pytest.approx(-0.5, abs=0.05)


def test_only_what_all_runs_have_is_compared_and_other_keys_when_they_are_asked_for() -> None:
    one = run("a", {DURATION: constant, "trainer/own": constant, "trainer/alone": constant})
    other = run("b", {DURATION: constant, "trainer/own": constant})
    assert "trainer/alone" not in common_measures([one, other])
    assert "trainer/own" not in {found.name for found in compared([one], [other])}
    assert "trainer/own" in {found.name for found in compared([one], [other], also=["trainer/own"])}


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("time_per_step>+5%", Limit(TIME_PER_STEP, 0.05, is_more=True)),
        (" reward/mean < -10 % ", Limit("reward/mean", 0.1, is_more=False)),
        ("a>b>2.5%", Limit("a>b", 0.025, is_more=True)),
    ],
)
def test_a_limit_is_read(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit


@pytest.mark.parametrize("text", ["time_per_step", "x>5", "x>-5%", "x<+5%", ">5%"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="%"):
        Limit.parse(text)


@pytest.mark.parametrize(
    ("change", "low", "text", "is_broken"),
    [
        (0.06, 0.02, "x>5%", True),
        (0.06, -0.01, "x>5%", False),
        (0.04, 0.02, "x>5%", False),
        (-0.06, -0.08, "x>5%", False),
        (-0.06, -0.08, "x<-5%", True),
    ],
)
def test_a_limit_is_broken_by_a_sure_change(
    change: float, low: float, text: str, *, is_broken: bool
) -> None:
    found = Comparison("x", About.TIME, 1.0, 1.0 + change, change, low, change + 0.04)
    assert Limit.parse(text).is_broken_by(found) == is_broken
