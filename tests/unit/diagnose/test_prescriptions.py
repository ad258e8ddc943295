"""What to try: each setting is told to whom it helps, and to nobody else."""

from otel_rl.diagnose.prescriptions import prescribed, prescriptions
from otel_rl.diagnose.result import Kind

PACKAGES = ["TRL==1.16.0", "torch==2.15.0", "stable_baselines3==2.9.2"]


def test_only_settings_of_the_frameworks_of_the_run_are_told() -> None:
    told = [*prescribed(Kind.KL_GROWTH, PACKAGES)]
    assert [words.partition(":")[0] for words in told] == [
        "trl, `GRPOConfig.beta`",
        "stable-baselines3, `PPO.target_kl`",
    ]
    assert [*prescribed(Kind.KL_GROWTH, ["torch==2.15.0"])] == []
    assert [*prescribed(Kind.CLOCK_SKEW, PACKAGES)] == []


def test_each_says_what_to_do_and_what_shows_that_it_helped() -> None:
    for one in prescriptions():
        assert all(word and not word.endswith(".") for word in (one.action, one.then)), one
        assert any(one.framework in words for words in prescribed(min(one.causes), [one.framework]))


def test_no_setting_is_told_twice_for_a_cause() -> None:
    told = [(kind, one.setting) for one in prescriptions() for kind in one.causes]
    assert len(told) == len(set(told))
