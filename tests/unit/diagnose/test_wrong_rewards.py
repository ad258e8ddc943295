"""Rewards that are computed differently, in batches that mix samples of before and after."""

import math
import random
from collections import deque
from collections.abc import Iterator

import pytest

from otel_rl.diagnose.classify import Subject, rows_about
from otel_rl.diagnose.detectors.learning import wrong_rewards
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import Diagnosis, Kind
from otel_rl.diagnose.stats.jumps import jump
from tests.unit.diagnose.made import AT, Series, changed, made
from tests.unit.diagnose.test_evidence import jittered

# Of a run of the demo whose scorers give 0 from its 27th step on: the first samples of it were
# used in the 28th, and the last of those before in the 30th.
LEARNED = [0.041, 0.042, 0.037, 0.037, 0.037, 0.041, 0.046, 0.047, 0.048, 0.044, 0.048, 0.058]
LEARNED += [0.056, 0.064, 0.070, 0.070, 0.094, 0.074, 0.091, 0.094, 0.096, 0.112, 0.111, 0.105]
LEARNED += [0.133, 0.146, 0.154]
MIXED = [0.069, 0.016, 0.026]
WRONG = [*LEARNED, *MIXED, *[0.0] * 40]

KL = [0.0, 0.056, 0.139, 0.078, 0.070, 0.083, 0.088, 0.115, 0.138, 0.126, 0.141, 0.132, 0.155]
KL += [0.192, 0.222, 0.227, 0.292, 0.310, 0.382, 0.427, 0.491, 0.557, 0.518, 0.577, 0.631, 0.728]
KL += [0.772, 0.815, 0.853, 0.894, 0.905, 0.887, 0.935, 1.008, 0.989, 0.996, 0.987, 0.987, 0.958]
KL += [0.867, 0.911, 0.935, 0.967, 0.869, 0.894, 0.933, 0.892, 0.980, 0.955, 0.913, 0.908, 0.862]
KL += [0.883, 0.852, 0.822, 0.743, 0.782, 0.778, 0.764, 0.729, 0.680, 0.752, 0.728, 0.749, 0.713]
KL += [0.698, 0.707, 0.676, 0.631, 0.647]


def told(values: list[float], age: float, kl: list[float] | None = None) -> list[Kind]:
    rows: dict[str, Series] = {
        "trainer/reward/mean": lambda step: values[step],
        "trainer/policy/staleness": jittered(lambda _: age),
    }
    if kl is not None:
        rows["trainer/policy/kl/reference"] = lambda step: kl[step]
    return [cause.kind for cause in diagnose(made(len(values), rows=rows)).causes]


@pytest.mark.parametrize(
    ("age", "kind"), [(1.5, Kind.REWARD_BUG), (0.0, Kind.REWARD_DROP)], ids=["old", "fresh"]
)
def test_rewards_that_jump_within_the_age_of_samples_are_wrong(age: float, kind: Kind) -> None:
    assert told(WRONG, age) == [kind]


@pytest.mark.parametrize(("above", "is_found"), [(0.22, False), (0.28, True)])
def test_a_jump_over_several_steps_is_half_of_all_that_rewards_have_gone_through(
    above: float, *, is_found: bool
) -> None:
    def reward(step: int) -> float:
        return above * min(1.0, max(0, step - 27) / 4) + (step < 4) * 0.5

    rows = {"trainer/reward/mean": jittered(lambda step: 1.0 - reward(step), 0.003)}
    ((_, track),) = rows_about(made(rows=rows), Subject.REWARD_MEAN)
    assert (jump(track, mixed=3) is not None) == is_found


@pytest.mark.parametrize(("apart", "is_found"), [(1, True), (4, False)])
def test_rewards_of_several_steps_each_rise_for_longer_than_batches_are_mixed(
    apart: int, *, is_found: bool
) -> None:
    values = [0.1 + 0.002 * (n % 3) for n in range(20)] + [0.3, 0.5, 0.6]
    values += [0.75 + 0.002 * (n % 3) for n in range(20)]
    track = Track()
    for n, value in enumerate(values):
        track.add(apart * n, float(n), value)
    assert (jump(track, mixed=4) is not None) == is_found


def test_steps_of_one_export_are_in_order_though_their_rows_were_not() -> None:
    """An SDK gives the measurements of all steps of an export the time of the export."""
    facts = []
    for at in range(0, 60, 2):
        time_ns = (1_000 + at) * 1_000_000_000
        rewards = {step: 1.0 if step >= AT else 0.4 + step / 999 for step in (at + 1, at)}
        rows = [
            RowFacts(step, time_ns, {"trainer/rewards/mean": mean})
            for step, mean in rewards.items()
        ]
        facts.append(Facts(time_ns, at + 1, rows))
    (cause,) = diagnose(RunHistory(facts)).causes
    assert (cause.kind, cause.since) == (Kind.REWARD_BUG, AT)


def test_values_of_mixed_batches_lie_between_the_levels() -> None:
    outside = [*LEARNED, 0.3, 0.016, 0.026, *[0.0] * 40]
    assert told(WRONG, 1.5) == [Kind.REWARD_BUG]
    assert told(outside, 1.5) == [Kind.REWARD_DROP]


def test_a_kl_that_grew_while_the_policy_learned_is_not_why_rewards_are_wrong() -> None:
    assert told(WRONG, 1.5, KL) == [Kind.REWARD_BUG]
    assert told(WRONG, 0.0, KL) == [Kind.REWARD_DROP]


def test_a_policy_that_jumps_with_its_rewards_is_why_they_fall() -> None:
    kl = [0.1 + 0.001 * (step % 3) + 0.9 * (step >= 27) for step in range(len(WRONG))]
    assert Kind.REWARD_BUG not in told(WRONG, 1.5, kl)


# Of a bandit that learns by asynchronous REINFORCE: its generators paused in steps 6 to 12, and
# samples of step 13 are the first of what had been learned meanwhile.
PAUSED = [0.49, 0.46, 0.46, 0.48, 0.55, 0.57, 0.57, 0.58, 0.63, 0.63, 0.72, 0.69, 0.87, 0.91, 0.86]
PAUSED += [0.91, 0.88, 0.9, 0.9, 0.89, 0.93, 0.9, 0.89, 0.9, 0.91, 0.9, 0.91, 0.91, 0.91, 0.91]
PAUSED += [0.89, 0.91, 0.89, 0.91, 0.89, 0.9, 0.89, 0.91, 0.9, 0.92]
AGES = [0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 4.0, 5.0, 5.5, 6.0, 7.0, 0.0, 1.0, 1.0, 1.0, 2.0]
AGES += [0.0, 1.0, 1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, *[2.5] * 12]


def of_ages(ages: list[float]) -> list[Kind]:
    rows: dict[str, Series] = {
        "trainer/reward/mean": lambda step: PAUSED[step],
        "staleness": lambda step: ages[step],
    }
    return [cause.kind for cause in diagnose(made(len(PAUSED), rows=rows)).causes]


def test_samples_of_a_policy_that_learned_while_generators_paused_are_no_wrong_rewards() -> None:
    assert of_ages(AGES) == []


def bandit(seed: int, steps: int = 40) -> tuple[list[float], list[float]]:
    """Rewards and ages of a bandit of ten arms, by asynchronous REINFORCE.

    Its generators fill a buffer before the first step, have a pace of their own, and pause twice.
    """
    chance, arms, batch = random.Random(f"bandit-{seed}"), range(10), 64
    pace, rate = chance.choice([(4, 5, 6), (3, 4, 5), (2, 4, 4), (6, 8)]), chance.choice([4, 8, 12])
    paused = {
        step
        for first in chance.sample(range(2, 30), 2)
        for step in range(first, first + chance.randrange(3, 12))
    }
    logits, rewards, ages = [0.0] * 10, list[float](), list[float]()
    samples = deque[tuple[int, int, float]](maxlen=512)

    def shares() -> list[float]:
        weights = [math.exp(logit) for logit in logits]
        return [weight / sum(weights) for weight in weights]

    def make(times: int) -> None:
        for arm in chance.choices(arms, shares(), k=16 * times):
            samples.append((len(rewards), arm, chance.gauss(arm / 10, 0.1)))

    make(chance.choice([0, 8, 16, 32]))
    while len(rewards) < steps:
        if len(rewards) not in paused or len(samples) < batch:
            make(chance.choice(pace))
        if len(samples) < batch:
            continue
        used, chosen = [samples.popleft() for _ in range(batch)], shares()
        mean = sum(reward for *_, reward in used) / batch
        for _, arm, reward in used:
            for other in arms:
                logits[other] += rate * (reward - mean) / batch * ((other == arm) - chosen[other])
        ages.append(sum(len(rewards) - version for version, *_ in used) / batch)
        rewards.append(mean)
    return rewards, ages


def of_rewards(rewards: list[float], ages: list[float]) -> bool:
    rows: dict[str, Series] = {
        "trainer/reward/mean": lambda step: rewards[step],
        "staleness": lambda step: ages[step],
    }
    causes = wrong_rewards(made(len(rewards), rows=rows))
    return any(cause.kind is Kind.REWARD_BUG for cause in causes)


def test_what_a_policy_has_learned_while_generators_paused_is_no_wrong_reward() -> None:
    assert [seed for seed in range(100) if of_rewards(*bandit(seed))] == []


def drawn_ages(chance: random.Random, how: str, steps: int) -> list[float]:
    """Mean ages of samples: by chance, or of generators that get each fourth version or so."""
    if how == "by chance":
        return [chance.uniform(0, 6) for _ in range(steps)]
    age, ages = 0.0, list[float]()
    for _ in range(steps):
        age = age + 1 if chance.random() < 0.75 else chance.choice([0.0, 1.0])
        ages.append(age)
    return ages


@pytest.mark.parametrize("how", ["by chance", "sawtooth"])
@pytest.mark.parametrize("wrong", [0.0, -1.0, 2.5], ids=["none", "reversed", "times"])
def test_rewards_that_are_wrong_are_named_whatever_the_age_of_samples(
    how: str, wrong: float
) -> None:
    missed = []
    for seed in range(40):
        chance = random.Random(f"{how}-{wrong}-{seed}")
        steps = chance.randrange(40, 80)
        since = chance.randrange(16, steps - 6)
        rewards = [
            (0.3 + 0.004 * step + chance.gauss(0, 0.01)) * (wrong if step >= since else 1.0)
            for step in range(steps)
        ]
        if not of_rewards(rewards, drawn_ages(chance, how, steps)):
            missed.append(seed)
    assert missed == []


class Read(list[float]):
    """Values that count how often all of them are read."""

    times = 0

    def __iter__(self) -> Iterator[float]:
        self.times += 1
        return super().__iter__()


def reads(steps: int) -> int:
    values = Read(WRONG[step % len(WRONG)] for step in range(steps))
    jump(Track([*range(steps)], [0.0] * steps, values), mixed=4)
    return values.times


def test_a_long_series_is_read_no_more_often_than_a_short_one() -> None:
    assert reads(400) == reads(200)


HARDER = 60


def harder(step: int, at: int = HARDER) -> float:
    """A reward that falls at once, and is learned again."""
    return 0.58 if step < at else 0.3 + 0.25 * (1 - math.exp((at - step) / 30))


def of_level(level: Series, steps: int) -> Diagnosis:
    rows = {"driver/mean_reward": jittered(harder), "driver/curriculum_level": level}
    return diagnose(made(steps, rows=rows))


@pytest.mark.parametrize("steps", [HARDER + 6, HARDER + 12, HARDER + 50])
def test_harder_tasks_that_the_program_tells_are_no_wrong_rewards(steps: int) -> None:
    found = of_level(changed(1.0, 2.0, HARDER), steps)
    assert not found.causes
    assert found.changes == ["driver/curriculum_level is 2 since step 60, 1 before"]


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(lambda step: 1.0, id="no other level"),
        pytest.param(changed(1.0, 2.0, HARDER - 20), id="another level before"),
        pytest.param(lambda step: float(step >= HARDER) + step % 3, id="a value that moves"),
    ],
)
def test_rewards_that_jump_without_another_setting_are_wrong(level: Series) -> None:
    found = of_level(level, HARDER + 50)
    assert [one.kind for one in found.causes] == [Kind.REWARD_BUG]
    assert not found.changes


@pytest.mark.parametrize(
    "key",
    ["driver/reward/max", "driver/frac_reward_zero_std", "driver/parse_errors", "critic/score/min"],
)
def test_what_is_measured_is_no_setting_even_if_it_stays_the_same_for_long(key: str) -> None:
    rows = {"driver/mean_reward": jittered(harder), key: changed(1.0, 0.0, HARDER)}
    found = diagnose(made(HARDER + 50, rows=rows))
    assert [one.kind for one in found.causes] == [Kind.REWARD_BUG]


def test_a_counter_that_stood_still_is_no_setting() -> None:
    rows = {
        "driver/mean_reward": jittered(harder),
        "maker/preemptions": changed(1.0, 2.0, HARDER),
        "maker/preemptions/rate": lambda step: float(step == HARDER),
    }
    found = diagnose(made(HARDER + 50, rows=rows))
    assert [one.kind for one in found.causes] == [Kind.REWARD_BUG]


# Of a healthy run: by chance its spread is twice near one value for some steps.
SPREAD = [0.202, 0.196, 0.213, 0.185, 0.207, 0.206, 0.207, 0.203, 0.207, 0.198, 0.200, 0.206]
SPREAD += [0.197, 0.201, 0.199, 0.197, 0.199, 0.199, 0.200, 0.211, 0.215, 0.217, 0.211, 0.210]
SPREAD += [0.208, 0.209, 0.190, 0.181, 0.184, 0.190, 0.186]


@pytest.mark.parametrize(("lower", "is_told"), [(0.0, False), (0.06, True)])
def test_a_spread_of_rewards_that_comes_back_to_where_it_was_is_no_jump(
    lower: float, *, is_told: bool
) -> None:
    values = [*SPREAD[:26], *(value - lower for value in SPREAD[26:])]
    rows: dict[str, Series] = {
        "trainer/reward/std": lambda step: values[step],
        "trainer/policy/staleness": jittered(lambda _: 2.0),
    }
    found = [cause.kind for cause in diagnose(made(len(values), rows=rows)).causes]
    assert found == [Kind.REWARD_BUG] * is_told


@pytest.mark.parametrize(
    ("mean", "kind"),
    [(lambda _: 0.0, Kind.REWARD_BUG), (jittered(lambda _: 0.2), Kind.DEAD_GROUPS)],
    ids=["all rewards", "those of a group"],
)
def test_where_all_rewards_are_one_value_it_is_not_the_prompts(mean: Series, kind: Kind) -> None:
    """Groups have no signal either way; of too hard prompts one and another is still solved."""
    rows: dict[str, Series] = {
        "trainer/reward/mean": lambda step: (
            jittered(lambda _: 0.22)(step) if step < AT else mean(step)
        ),
        "trainer/reward/std": lambda step: jittered(lambda _: 0.13)(step) if step < AT else 0.0,
        "trainer/group/no_signal": jittered(changed(0.1, 0.98)),
    }
    assert [cause.kind for cause in diagnose(made(rows=rows)).causes] == [kind]


@pytest.mark.parametrize(
    "name",
    ["rollout/ep_rew_mean", "env_runners/episode_return_mean", "charts/episodic_return"],
)
def test_returns_of_episodes_are_rewards_whatever_a_framework_calls_them(name: str) -> None:
    rows = {f"trainer/{name}": jittered(changed(150.0, 15.0), 0.02)}
    (cause,) = diagnose(made(rows=rows)).causes
    assert (cause.kind, cause.since) == (Kind.REWARD_BUG, AT)
    shorter = {"trainer/rollout/ep_len_mean": jittered(changed(180.0, 20.0), 0.02)}
    (cause,) = diagnose(made(rows=rows | shorter)).causes
    assert cause.kind is Kind.REWARD_DROP


def test_an_entropy_collapses_from_where_it_leaves_its_trend() -> None:
    """It sinks all along, as policies do while they learn."""

    def entropy(step: int) -> float:
        trend = 1.3 - 0.005 * min(step, 70)
        return max(0.02, trend * 0.75 ** max(0, step - 69))

    def reward(step: int) -> float:
        return 0.2 + 0.004 * min(step, 70) - 0.004 * max(0, step - 70)

    rows = {
        "trainer/policy/entropy": jittered(entropy, 0.005),
        "trainer/reward/mean": jittered(reward, 0.01),
    }
    (cause,) = diagnose(made(120, rows=rows)).causes
    assert cause.kind is Kind.ENTROPY_COLLAPSE
    assert cause.since is not None
    assert abs(cause.since - 70) <= 3


@pytest.mark.parametrize(
    "odd",
    [
        lambda step: 0.4 * (40 <= step < 60),
        lambda step: 0.4 * (step >= 40) - 0.3 * (step == 25),
    ],
    ids=["a wrong reward that is mended", "one odd batch before"],
)
def test_what_goes_back_is_no_stair_that_excuses_a_wrong_reward(odd: Series) -> None:
    rows: dict[str, Series] = {
        "trainer/reward/mean": jittered(lambda step: 0.5 + odd(step), 0.02),
        "trainer/policy/entropy": jittered(lambda _: 1.0, 0.02),
    }
    causes = diagnose(made(80, rows=rows), passed=True).causes
    assert Kind.REWARD_BUG in [cause.kind for cause in causes]


@pytest.mark.parametrize(
    ("scorer", "is_wrong"),
    [("trainer/rewards/accuracy_reward/mean", True), ("trainer/eval/score", False)],
)
def test_a_scorer_that_is_a_part_of_the_reward_proves_nothing(
    scorer: str, *, is_wrong: bool
) -> None:
    rows: dict[str, Series] = {
        "trainer/reward/mean": jittered(changed(0.3, 0.9, 40), 0.02),
        scorer: jittered(changed(0.3, 0.9, 40), 0.02),
        "trainer/policy/entropy": jittered(lambda _: 1.0, 0.02),
    }
    found = [cause.kind for cause in diagnose(made(80, rows=rows)).causes]
    assert (Kind.REWARD_BUG in found) == is_wrong
