"""One order of precedence for what a worker is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.errors import ConfigError
from otel_rl.worker.identity.names import WorkerNames, names_an_experiment, worker_names

GIVEN, KNOWN = WorkerNames(role="said"), WorkerNames(role="known")
VARIABLE = {"OTEL_RL_ROLE": "variable"}
ATTRIBUTE = {"OTEL_RESOURCE_ATTRIBUTES": "rl.worker.role=attribute"}
TORCHRUN = {"ROLE_RANK": "0", "ROLE_NAME": "torchrun"}


def test_a_role_is_that_of_the_first_source_that_has_one() -> None:
    everything = VARIABLE | ATTRIBUTE | TORCHRUN
    sources = [
        worker_names(everything, "trainer-1", given=GIVEN, known=KNOWN, default_role="worker"),
        worker_names(everything, "trainer-1", known=KNOWN, default_role="worker"),
        worker_names(ATTRIBUTE | TORCHRUN, "trainer-1", known=KNOWN, default_role="worker"),
        worker_names(TORCHRUN, "trainer-1", known=KNOWN, default_role="worker"),
        worker_names(TORCHRUN, "trainer-1", default_role="worker"),
        worker_names({}, "trainer-1", default_role="worker"),
        worker_names({}, "MainProcess", default_role="worker"),
        worker_names({}, "MainProcess"),
    ]
    assert [source.role for source in sources] == [
        "said", "variable", "attribute", "known", "torchrun", "trainer", "worker", None,
    ]  # fmt: skip


def test_an_experiment_is_that_of_the_first_source_that_has_one() -> None:
    environ = {
        "OTEL_RL_EXPERIMENT": "variable",
        "OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=attribute",
    }
    said, known = WorkerNames("said"), WorkerNames("known")
    assert worker_names(environ, given=said, known=known).experiment == "said"
    assert worker_names(environ, known=known).experiment == "variable"
    assert (
        worker_names({**environ, "OTEL_RL_EXPERIMENT": ""}, known=known).experiment == "attribute"
    )
    assert worker_names({}, known=known).experiment == "known"
    assert worker_names({}).experiment is None


def test_a_framework_s_trial_is_one_of_its_own_experiment() -> None:
    known = WorkerNames("project", "name")
    assert worker_names({}, known=known) == known
    assert worker_names({"OTEL_RL_EXPERIMENT": "e"}, known=known).trial is None
    assert worker_names({}, given=WorkerNames("mine"), known=known).trial is None
    assert worker_names({"OTEL_RL_TRIAL": "t"}, known=known) == WorkerNames("project", "t")


def test_a_name_that_counts_is_checked() -> None:
    with pytest.raises(ConfigError, match="OTEL_RL_ROLE: must not hold control characters"):
        worker_names({"OTEL_RL_ROLE": "a\nb"})
    assert worker_names({"OTEL_RL_ROLE": "a\nb"}, given=GIVEN).role == "said"


names = st.none() | st.sampled_from(["a", "b"])


@given(said=names, variable=names, known=names)
def test_a_source_that_says_nothing_changes_nothing(
    said: str | None, variable: str | None, known: str | None
) -> None:
    environ = {"OTEL_RL_ROLE": variable} if variable else {}
    found = worker_names(environ, given=WorkerNames(role=said), known=WorkerNames(role=known)).role
    assert found == next((name for name in (said, variable, known) if name), None)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, False),
        ({"OTEL_RL_EXPERIMENT": ""}, False),
        ({"OTEL_RL_EXPERIMENT": "e"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=e,rl.trial.name=t"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "rl.trial.name=t"}, False),
    ],
)
def test_an_environment_can_be_asked_for_an_experiment(
    environ: dict[str, str], named: bool
) -> None:
    assert names_an_experiment(environ) == named
