"""Names of the run of a command: typed, of the environment, or invented."""

import argparse
from collections.abc import Mapping

import pytest

from otel_rl.cli.environment import reporting_environment
from otel_rl.cli.run_names import RunNames, run_names
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey


def names(environ: Mapping[str, str] | None = None, **typed: str) -> RunNames:
    return run_names(argparse.Namespace(**typed), environ or {}, default_experiment="train")


def environment(base: Mapping[str, str], found: RunNames) -> dict[str, str]:
    return reporting_environment(base, http="127.0.0.1:1", names=found)


def test_what_is_typed_is_told_as_typed_and_with_its_value() -> None:
    given = {"OTEL_RL_EXPERIMENT": "env", "OTEL_RL_ROLE": "trainer"}
    told = environment(given, names(given, experiment="typed", project="p"))
    assert told["OTEL_RL_TYPED"] == "experiment,project"
    assert (told["OTEL_RL_EXPERIMENT"], told["OTEL_RL_PROJECT"]) == ("typed", "p")
    assert told["OTEL_RL_ROLE"] == "trainer"


def test_a_name_of_the_environment_stays_there_and_is_not_typed() -> None:
    given = {"OTEL_RL_EXPERIMENT": "env"}
    told = environment(given, names(given))
    assert told["OTEL_RL_EXPERIMENT"] == "env"
    assert "OTEL_RL_TYPED" not in told


def test_what_nobody_named_is_invented_for_other_sdks_and_is_no_variable_of_a_name() -> None:
    found = names()
    told = environment({}, found)
    assert found.key == ExperimentKey("train", found.launch)
    assert not {"OTEL_RL_EXPERIMENT", "OTEL_RL_TRIAL", "OTEL_RL_NAME"} & told.keys()
    assert told["OTEL_RL_LAUNCH"] == found.launch
    assert told["OTEL_RL_DEFAULT_EXPERIMENT"] == "train"
    assert told["OTEL_RESOURCE_ATTRIBUTES"] == (
        f"rl.experiment.name=train,rl.trial.name={found.launch}"
    )


def test_a_launch_of_the_environment_is_kept() -> None:
    found = names({"OTEL_RL_LAUNCH": "job-7"})
    assert found.key.trial == found.directory == "job-7"


@pytest.mark.parametrize("launch", ["../up", "a/b", ".hidden", "a b"])
def test_a_launch_that_is_no_name_of_a_directory_has_one_of_its_own(launch: str) -> None:
    found = names({"OTEL_RL_LAUNCH": launch})
    assert found.key.trial == launch
    assert found.directory.isalnum()


def test_launches_of_one_second_differ() -> None:
    assert len({names().launch for _ in range(100)}) == 100


def test_a_name_is_the_trial_too_unless_that_is_typed() -> None:
    assert names(name="seed-1").key.trial == "seed-1"
    assert names(name="seed-1", trial="t").key.trial == "t"
    assert names({"OTEL_RL_TRIAL": "env"}, name="seed-1").typed["trial"] == "seed-1"


def test_only_what_no_program_can_change_is_certain() -> None:
    assert names(experiment="e", trial="t").are_certain
    assert not names({"OTEL_RL_EXPERIMENT": "e"}, trial="t").are_certain
    assert not names(experiment="e").are_certain


def test_a_named_trial_has_the_journal_of_its_run_and_others_that_of_the_launch() -> None:
    assert names(trial="t").directory == names({"OTEL_RL_TRIAL": "t"}).directory
    assert names().directory != names().directory


@pytest.mark.parametrize(
    ("found", "third"),
    [
        (names(trial="t"), "t-3"),
        (names({"OTEL_RL_TRIAL": "t"}), "t-3"),
        (names({"OTEL_RL_LAUNCH": "l"}), "l-3"),
    ],
)
def test_what_is_in_use_gets_the_next_number_in_the_same_place(found: RunNames, third: str) -> None:
    *_, last = (one for one, _ in zip(found.alternatives(), range(3), strict=False))
    assert last.key.trial == third
    assert last.typed.keys() == found.typed.keys()
    assert last.known.keys() == found.known.keys()


def test_a_command_inside_another_one_is_a_run_of_its_own() -> None:
    outer = names({}, experiment="e", trial="t")
    around = environment({}, outer) | {"OTEL_RL_DEFAULT_TRIAL": "t"}  # as a worker leaves it
    inner = names(around)
    assert inner.known == {"experiment": "e"}
    assert inner.key.trial == inner.launch != outer.launch
    assert not {"OTEL_RL_TRIAL", "OTEL_RL_DEFAULT_TRIAL"} & environment(around, inner).keys()


def test_names_of_the_resource_attributes_are_of_the_environment() -> None:
    given = {"OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=e%2F1,service.name=s"}
    found = names(given)
    assert found.known == {"experiment": "e/1"}
    told = environment(given, found)["OTEL_RESOURCE_ATTRIBUTES"].split(",")
    assert {"rl.experiment.name=e%2F1", "service.name=s"} < {*told}


@pytest.mark.parametrize("option", ["experiment", "trial", "role", "project", "name"])
def test_an_empty_name_is_refused_with_its_option(option: str) -> None:
    with pytest.raises(ConfigError, match=f"--{option}"):
        run_names(argparse.Namespace(**{option: ""}), {}, default_experiment="train")
