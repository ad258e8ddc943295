"""Environments of trials that a sweep's launcher starts."""

from otel_rl.run_id import run_id
from otel_rl.worker.identity.names import (
    WorkerNames,
    parse_resource_attributes,
    worker_names,
)
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


def test_another_launch_of_a_sweep_has_other_trials() -> None:
    found = sweep_environment({"OTEL_RL_LAUNCH": "slurm-7"}, "lr_0")
    assert found["OTEL_RL_TRIAL"] == "slurm-7-lr_0"
    of_worker = {"OTEL_RL_LAUNCH": "slurm-7", "OTEL_RL_DEFAULT_TRIAL": "said"}
    assert sweep_environment(of_worker, "lr_0")["OTEL_RL_TRIAL"] == "said-lr_0"


def test_a_trial_of_a_sweep_counts_above_the_name_that_the_program_gives_each() -> None:
    environ = RUN | {"OTEL_RL_TYPED": "experiment"}
    found = environ | sweep_environment(environ, "lr_0")
    assert found["OTEL_RL_TYPED"] == "experiment,trial"
    assert worker_names(found, given=WorkerNames("e", "ppo")).trial == "monday-lr_0"


def test_the_run_s_id_follows_the_trial() -> None:
    attributes = f"rl.experiment.name=e,rl.trial.name=monday,rl.run.id={run_id('e', 'monday')}"
    found = sweep_environment(RUN | {"OTEL_RESOURCE_ATTRIBUTES": attributes}, "lr_0")
    resource = parse_resource_attributes(found["OTEL_RESOURCE_ATTRIBUTES"])
    assert resource["rl.run.id"] == run_id("e", "monday-lr_0")


def test_a_name_is_made_valid_and_tells_trials_apart() -> None:
    assert sweep_environment(RUN, "a\nb")["OTEL_RL_TRIAL"] == "monday-ab"
    assert sweep_environment(RUN, "\n")["OTEL_RL_TRIAL"] == "monday-trial"
    long = sweep_environment(RUN, "x" * 200 + "_00001")["OTEL_RL_TRIAL"]
    assert len(long) == 128
    assert long.endswith("_00001")
    assert long != sweep_environment(RUN, "y" + "x" * 199 + "_00001")["OTEL_RL_TRIAL"]
