"""Environments of trials that a sweep's launcher starts."""

from otel_rl.worker.identity.names import parse_resource_attributes
from otel_rl.worker.identity.sweep_trial import is_within, sweep_environment

RUN = {
    "OTEL_RL_TRIAL": "monday",
    "OTEL_RESOURCE_ATTRIBUTES": "team.name=a%2Cb,rl.trial.name=monday",
}


def test_a_trial_of_a_sweep_follows_the_trial_of_its_command() -> None:
    found = sweep_environment(RUN, "lr=1 0")
    assert found["OTEL_RL_TRIAL"] == "monday-lr=1 0"
    resource = parse_resource_attributes(found["OTEL_RESOURCE_ATTRIBUTES"])
    assert resource == {"team.name": "a,b", "rl.trial.name": "monday-lr=1 0"}


def test_a_sweep_within_a_trial_has_trials_of_its_own() -> None:
    outer = RUN | sweep_environment(RUN, "job-0")
    inner = outer | sweep_environment(outer, "study-0")
    assert inner["OTEL_RL_TRIAL"] == "monday-job-0-study-0"
    for name in ("job-0", "study-0"):
        assert is_within(inner, name)
    assert not is_within(inner, "job-1")
    assert not is_within(RUN, "job-0")


def test_without_a_trial_in_the_environment_the_launchers_name_is_the_trial() -> None:
    found = sweep_environment({}, "lr_0")
    assert found == {"OTEL_RL_SWEEP": "lr_0", "OTEL_RL_TRIAL": "lr_0"}


def test_a_name_is_made_valid_and_tells_trials_apart() -> None:
    assert sweep_environment({}, "a\nb")["OTEL_RL_TRIAL"] == "ab"
    assert sweep_environment({}, "\n")["OTEL_RL_TRIAL"] == "trial"
    long = sweep_environment(RUN, "x" * 200 + "_00001")["OTEL_RL_TRIAL"]
    assert len(long) == 128
    assert long.endswith("_00001")
    assert long != sweep_environment(RUN, "y" + "x" * 199 + "_00001")["OTEL_RL_TRIAL"]
