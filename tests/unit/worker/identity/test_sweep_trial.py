"""Environments of trials that a sweep's launcher starts."""

from otel_rl.worker.identity.names import parse_resource_attributes
from otel_rl.worker.identity.sweep_trial import sweep_environment

RUN = {
    "OTEL_RL_TRIAL": "monday",
    "OTEL_RESOURCE_ATTRIBUTES": "team.name=a%2Cb,rl.trial.name=monday",
}


def test_a_trial_of_a_sweep_follows_the_trial_of_its_command() -> None:
    found = sweep_environment(RUN, "lr=1 0")
    assert found["OTEL_RL_TRIAL"] == "monday-lr=1 0"
    resource = parse_resource_attributes(found["OTEL_RESOURCE_ATTRIBUTES"])
    assert resource == {"team.name": "a,b", "rl.trial.name": "monday-lr=1 0"}


def test_the_next_trial_takes_the_place_of_the_one_before() -> None:
    first = RUN | sweep_environment(RUN, "0")
    assert sweep_environment(first, "1")["OTEL_RL_TRIAL"] == "monday-1"
    assert sweep_environment(first, "0")["OTEL_RL_TRIAL"] == "monday-0"


def test_without_a_trial_in_the_environment_the_launchers_name_is_the_trial() -> None:
    found = sweep_environment({}, "lr_0")
    assert found == {"OTEL_RL_SWEEP": "", "OTEL_RL_TRIAL": "lr_0"}
    assert sweep_environment(found, "lr_1")["OTEL_RL_TRIAL"] == "lr_1"


def test_a_name_is_made_valid_and_keeps_its_end_which_tells_trials_apart() -> None:
    assert sweep_environment({}, "a\nb")["OTEL_RL_TRIAL"] == "ab"
    assert sweep_environment({}, "\n")["OTEL_RL_TRIAL"] == "trial"
    long = sweep_environment(RUN, "x" * 200 + "_00001")["OTEL_RL_TRIAL"]
    assert len(long) == 128
    assert long.endswith("_00001")
