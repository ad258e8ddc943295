"""One order of precedence for what a worker is called."""

from collections.abc import Collection
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.errors import ConfigError
from otel_rl.worker.identity.names import (
    NO_NAMES,
    WorkerNames,
    names_an_experiment,
    run_word,
    unnamed_trial,
    worker_names,
)

GIVEN = WorkerNames(role="said")

NAMES = ("experiment", "trial", "role", "project", "name")
SOURCES = ("typed", "code", "variable", "attribute", "W&B", "invented", "framework")


def found(name: str, sources: Collection[str]) -> str | None:
    """The name of a worker of whom each of the sources says another one."""
    environ: dict[str, str] = {}
    own, attribute = f"OTEL_RL_{name.upper()}", dict(zip(NAMES, ATTRIBUTES, strict=True))[name]
    if "variable" in sources:
        environ[own] = "variable"
    if "typed" in sources:
        environ |= {own: "typed", "OTEL_RL_TYPED": f"tag,{name}"}
    if "attribute" in sources:
        environ["OTEL_RESOURCE_ATTRIBUTES"] = f"{attribute}=attribute"
    if "invented" in sources:
        environ["OTEL_RL_DEFAULT_EXPERIMENT"] = environ["OTEL_RL_LAUNCH"] = "invented"
        environ.setdefault("OTEL_RESOURCE_ATTRIBUTES", f"{attribute}=invented")
    said, stated, known = (
        WorkerNames(**{name: source}) if source in sources and name in RUN else NO_NAMES
        for source in ("code", "W&B", "framework")
    )
    if name not in RUN:
        words = (source if source in sources else None for source in ("code", "W&B"))
        return run_word(environ, name, *words)
    names = worker_names(environ, given=said, stated=stated, known=known)
    if name == "trial" and names.trial is None and "invented" in sources:
        return unnamed_trial(environ, "e", environ["OTEL_RL_LAUNCH"])
    value: str | None = getattr(names, name)
    return value


RUN = NAMES[:3]
ATTRIBUTES = ("rl.experiment.name", "rl.trial.name", "rl.worker.role", "", "")
TELLS: dict[str, Collection[str]] = {
    name: SOURCES if name in RUN[:2] else [one for one in SOURCES if one != "invented"]
    for name in RUN
}
TELLS |= dict.fromkeys(NAMES[3:], ("typed", "code", "variable", "W&B"))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_that_of_the_first_source_that_has_one(name: str) -> None:
    for size in range(len(TELLS[name]) + 1):
        for sources in combinations(TELLS[name], size):
            assert found(name, sources) == next(iter(sources), None), sources


def test_a_role_that_nothing_names_is_the_launcher_s() -> None:
    torchrun = {"ROLE_RANK": "0", "ROLE_NAME": "torchrun"}
    assert worker_names(torchrun, "generator-1", known=WorkerNames(role="known")).role == "known"
    assert worker_names(torchrun, "generator-1").role == "torchrun"
    assert worker_names({}, "generator-1").role == "generator"
    assert worker_names({}, "MainProcess").role is None


def test_a_framework_s_trial_is_one_of_its_own_experiment() -> None:
    known = WorkerNames("project", "name")
    assert worker_names({}, known=known) == known
    invented = {"OTEL_RL_DEFAULT_EXPERIMENT": "script"}
    assert worker_names(invented, known=known) == worker_names(invented) != known, (
        "processes that do not know the framework's names are in the same run"
    )
    assert worker_names({"OTEL_RL_EXPERIMENT": "e"}, known=known).trial is None
    assert worker_names({}, given=WorkerNames("mine"), known=known).trial is None
    assert worker_names({"OTEL_RL_TRIAL": "t"}, known=known) == WorkerNames("project", "t")


def test_inits_one_after_another_are_runs_of_their_own_unless_the_program_names_one() -> None:
    done = {("e", "t"), ("e", "t-2"), ("other", "launch"), ("e", "launch")}
    environ = {"OTEL_RL_EXPERIMENT": "e", "OTEL_RL_TRIAL": "t"}
    assert worker_names(environ, finished=done).trial == "t-3"
    assert worker_names(environ, given=WorkerNames(trial="t"), finished=done).trial == "t"
    typed = environ | {"OTEL_RL_TYPED": "trial"}
    assert worker_names(typed, given=WorkerNames(trial="x"), finished=done).trial == "t-3"
    assert unnamed_trial({}, "e", "launch", done) == "launch-2"
    assert unnamed_trial({}, "new", "launch", done) == "launch"
    long = "t" * 128
    assert len(unnamed_trial({}, "e", long, {("e", long)})) == 128


def test_a_child_has_the_trial_of_its_parent_in_the_parent_s_experiment_only() -> None:
    environ = {"OTEL_RL_DEFAULT_EXPERIMENT": "e", "OTEL_RL_DEFAULT_TRIAL": "seed-1"}
    assert unnamed_trial(environ, "e", "launch") == "seed-1"
    assert unnamed_trial(environ, "evaluation", "launch") == "launch"


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
        ({"OTEL_RL_DEFAULT_EXPERIMENT": "e"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=e,rl.trial.name=t"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "rl.trial.name=t"}, False),
    ],
)
def test_an_environment_can_be_asked_for_an_experiment(
    environ: dict[str, str], named: bool
) -> None:
    assert names_an_experiment(environ) == named
