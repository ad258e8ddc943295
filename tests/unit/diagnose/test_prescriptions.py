"""What to try: each setting is told to whom it helps, and to nobody else."""

import re

import pytest

from otel_rl.diagnose.prescriptions import Prescription, prescribed, prescriptions
from otel_rl.diagnose.result import Kind
from otel_rl.semconv.names import METRICS

PACKAGES = ["TRL==1.16.0", "torch==2.15.0", "stable_baselines3==2.9.2"]


@pytest.mark.parametrize("kind", Kind)
def test_each_cause_has_something_to_try_in_any_framework(kind: Kind) -> None:
    (general,) = (one for one in prescriptions() if kind in one.causes and not one.framework)
    assert [*prescribed(kind, [])] == [str(general)]
    assert not general.setting


def test_each_says_what_to_do_what_that_changes_and_what_shows_it() -> None:
    for one in prescriptions():
        parts = (one.action, one.then, one.check)
        assert all(part and not part.endswith(".") for part in parts), one
        assert bool(one.framework) == bool(one.setting), one


def test_what_shows_that_it_helped_are_metrics_that_there_are() -> None:
    named = {
        name for one in prescriptions() for name in re.findall(r"`(r(?:l|pc)\..+?)`", one.check)
    }
    assert named - {*METRICS} == set()
    assert len(named) > 10


@pytest.mark.parametrize(
    "one", [one for one in prescriptions() if one.framework], ids=lambda one: one.setting
)
def test_a_setting_of_the_framework_that_runs_comes_first(one: Prescription) -> None:
    for kind in one.causes:
        *settings, general = prescribed(kind, [f"{one.framework}==1.0"])
        assert settings
        assert all(words.startswith(f"{one.framework}, `") for words in settings)
        assert [general] == [*prescribed(kind, ["torch==2.15.0"])]


def test_only_settings_of_the_frameworks_of_the_run_are_told() -> None:
    told = [*prescribed(Kind.KL_GROWTH, PACKAGES)][:-1]
    assert [words.partition(":")[0] for words in told] == [
        "trl, `GRPOConfig.beta`",
        "stable-baselines3, `PPO.target_kl`",
    ]


def test_of_a_framework_on_ray_no_setting_of_rllib_is_told() -> None:
    assert "PPOConfig" in next(prescribed(Kind.ENTROPY_COLLAPSE, ["ray==2.60.0"]))
    told = [*prescribed(Kind.ENTROPY_COLLAPSE, ["ray==2.60.0", "verl==0.9.1"])]
    assert not any("PPOConfig" in words for words in told)


def test_no_setting_is_told_twice_for_a_cause() -> None:
    told = [(kind, one.setting) for one in prescriptions() for kind in one.causes]
    assert len(told) == len(set(told))
