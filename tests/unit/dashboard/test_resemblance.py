"""Own names of a program: where their charts stand, and which one stands for the run."""

import pytest

from otel_rl.dashboard.arrange import arrange
from otel_rl.dashboard.resemblance import headlines, resembled
from otel_rl.records import KeySpec
from otel_rl.semconv import names


def own(key: str) -> KeySpec:
    role, _, name = key.partition("/")
    return KeySpec(key, name, role, axis="step")


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("reward", names.RL_REWARD_MEAN),
        ("charts/episodic_return", names.RL_REWARD_MEAN),
        ("rollout/ep_rew_mean", names.RL_REWARD_MEAN),
        ("critic/rewards/mean", names.RL_REWARD_MEAN),
        ("rewards/format", names.RL_REWARD_STD),
        ("actor/entropy/max", ""),
        ("eval/pass@8", names.RL_REWARD_STD),
        ("actor.pg_loss", names.RL_TRAIN_LOSS),
        ("losses/approx_kl", names.RL_POLICY_KL_REFERENCE),
        ("grad_norm", names.RL_TRAIN_GRAD_NORM),
        ("step_time", names.RL_ITERATION_DURATION),
        ("reward_time", ""),
        ("timing_s/reward", ""),
        ("calls", ""),
        ("closs_check", ""),
    ],
)
def test_a_name_resembles_a_metric_by_its_words(name: str, like: str) -> None:
    assert resembled(name) == like


def test_charts_of_learning_stand_first_whatever_they_are_called() -> None:
    keys = [
        "trainer/mine",
        "trainer/kl/max",
        "trainer/kl",
        "trainer/loss",
        "trainer/reward",
        "eval/accuracy",
    ]
    duration = KeySpec("trainer/iteration/duration", names.RL_ITERATION_DURATION, "trainer")
    found = [
        (section.title, [panel.keys[0] for panel in section.panels])
        for section in arrange([*map(own, keys), duration])
    ]
    assert found == [
        ("Learning", ["trainer/reward", "eval/accuracy", "trainer/loss", "trainer/kl"]),
        ("Step time", ["trainer/iteration/duration"]),
        ("Your metrics", ["trainer/kl/max", "trainer/mine"]),
    ]


def test_a_registered_metric_stands_before_own_names_like_it() -> None:
    registered = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer")
    (section,) = arrange([own("trainer/actor/score"), registered])
    assert [panel.keys[0] for panel in section.panels] == [registered.key, "trainer/actor/score"]


def test_an_own_reward_stands_for_the_run_before_its_loss_and_an_evaluation() -> None:
    keys = [*map(own, ("trainer/loss", "eval/reward", "trainer/reward", "trainer/reward_time"))]
    assert [(word, spec.key) for word, spec in headlines(keys)] == [
        ("reward", "trainer/reward"),
        ("reward", "eval/reward"),
        ("loss", "trainer/loss"),
    ]


def test_the_registered_reward_comes_before_own_names() -> None:
    registered = KeySpec("generator/reward/mean", names.RL_REWARD_MEAN, "generator")
    assert headlines([own("trainer/reward"), registered])[0] == ("reward", registered)


def test_neither_a_statistic_nor_a_single_worker_stands_for_the_run() -> None:
    spread = KeySpec("trainer/reward/std", "reward", "trainer", statistic="std")
    one = KeySpec("workers/trainer/0/reward", "reward", "trainer", worker="0")
    assert headlines([spread, one]) == []
