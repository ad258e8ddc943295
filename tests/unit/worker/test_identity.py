"""Who a worker is: one order of precedence for its names and its place."""

from collections.abc import Collection, Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.errors import ConfigError
from otel_rl.run_id import run_id
from otel_rl.worker.identity import (
    NO_NAMES,
    Identity,
    WorkerNames,
    identify,
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


def worker(environ: Mapping[str, str] | None = None, **arguments: object) -> Identity:
    named = {"experiment": "exp", "role": "trainer"} | arguments
    return identify(environ or {}, launch=lambda: "launch", **named)  # type: ignore[arg-type]  # bad types are the point


def nameless(environ: Mapping[str, str], process_name: str = "") -> Identity:
    """A worker whose program names nothing."""
    environ = {"OTEL_RL_EXPERIMENT": "exp", **environ}
    return identify(environ, launch=lambda: "launch", process_name=process_name)


@pytest.mark.parametrize(
    ("argument", "variable", "inherited", "expected"),
    [
        ("a", "b", "c", "a"),
        (None, "b", "c", "b"),
        (None, "", "c", "c"),
    ],
)
def test_an_argument_wins_over_its_variable_over_the_resource_attribute(
    argument: str | None, variable: str, inherited: str, expected: str
) -> None:
    environ = {
        "OTEL_RL_EXPERIMENT": variable,
        "OTEL_RESOURCE_ATTRIBUTES": f"rl.experiment.name={inherited}",
    }
    assert worker(environ, experiment=argument).experiment == expected


def test_without_an_experiment_the_error_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match="OTEL_RL_EXPERIMENT"):
        worker(experiment=None)


def test_the_trial_is_the_launch_unless_something_names_one() -> None:
    assert worker().trial == "launch"
    assert worker({"OTEL_RL_TRIAL": "t2"}).trial == "t2"


def test_the_launch_is_not_looked_for_where_a_trial_is_named() -> None:
    def launch() -> str:
        raise AssertionError

    assert identify({}, launch=launch, experiment="exp", trial="t").trial == "t"


def test_the_run_s_id_in_the_attributes_is_not_that_of_names_which_do_not_count() -> None:
    attributes = f"rl.experiment.name=a,rl.trial.name=b,rl.run.id={run_id('a', 'b')}"
    assert worker({"OTEL_RESOURCE_ATTRIBUTES": attributes}, trial="c").run_id == run_id("exp", "c")
    chosen = {"OTEL_RESOURCE_ATTRIBUTES": "rl.run.id=mine"}
    assert worker(chosen, trial="c").run_id == "mine"


def test_the_run_id_is_that_of_experiment_and_trial() -> None:
    assert worker(trial="t").run_id == run_id("exp", "t")


def test_a_run_id_that_is_given_is_kept() -> None:
    assert worker(resource_attributes={"rl.run.id": "mine"}).run_id == "mine"


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (None, None)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, (0, 4)),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4)),
        # torchrun: the place in the role, not in the world.
        (
            {"RANK": "5", "WORLD_SIZE": "8", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "4"},
            (1, 4),
        ),
        # A step of two tasks within a job of eight.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, (1, 2)),
        # mpirun in a Slurm job: all its ranks inherit Slurm's place of mpirun.
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 4)),
        # Ray in a Slurm job: all workers of a node inherit the place of its raylet.
        ({"RAY_RAYLET_PID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (None, None)),
        ({"RAY_RAYLET_PID": "7", "RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0"}, (1, 2)),
        ({"OTEL_RESOURCE_ATTRIBUTES": "rl.worker.index=4,rl.worker.count=6", "RANK": "0"}, (4, 6)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "7", "SLURM_NTASKS": "8"}, (1, 2)),
        ({"OTEL_RL_INDEX": "5", "OTEL_RL_COUNT": "6", "RANK": "0", "WORLD_SIZE": "1"}, (5, 6)),
        ({"RANK": "2"}, (2, None)),
        ({"RANK": "nonsense", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "9", "WORLD_SIZE": "2"}, (None, None)),
    ],
)
def test_the_place_comes_from_the_launcher(
    environ: dict[str, str], place: tuple[int | None, int | None]
) -> None:
    found = worker(environ)
    assert (found.index, found.count) == place


def test_an_index_argument_is_never_mixed_with_the_launchers_count() -> None:
    found = worker({"RANK": "0", "WORLD_SIZE": "8"}, index=2)
    assert (found.index, found.count) == (2, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experiment": ""}, "experiment: must not be empty"),
        ({"experiment": 7}, r"experiment: must be a string \(got 7\)"),
        ({"experiment": "a\nb"}, "experiment: must not hold control characters"),
        ({"role": "r" * 129}, r"role: must have at most 128 characters \(got 129\)"),
        ({"trial": " "}, "trial: must not be empty"),
        ({"tag": 1.5}, "tag: must be a string"),
        ({"index": -1}, r"index: must be an integer of at least 0 \(got -1\)"),
        ({"index": True}, "index: must be an integer"),
        ({"index": 2, "count": 2}, r"index: must be below count \(got 2 of 2\)"),
        ({"count": 0}, "count: must be an integer of at least 1"),
        ({"resource_attributes": [1]}, "resource_attributes: must be a mapping"),
        ({"resource_attributes": {"a": object()}}, "resource_attributes.a: must be text"),
        ({"resource_attributes": {"rl.worker.role": "x"}}, r"init\(role=\.\.\.\)"),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_the_way_out(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        worker({}, **arguments)
    assert caught.value.hint


@pytest.mark.parametrize(("index", "count"), [("-1", "2"), ("2", "2"), ("0", "0"), ("first", "2")])
@pytest.mark.parametrize("how", ["OTEL_RL_", "OTEL_RESOURCE_ATTRIBUTES"])
def test_a_place_that_is_none_is_refused_wherever_it_is_given(
    index: str, count: str, how: str
) -> None:
    environ = {"OTEL_RL_INDEX": index, "OTEL_RL_COUNT": count}
    if how == "OTEL_RESOURCE_ATTRIBUTES":
        environ = {how: f"rl.worker.index={index},rl.worker.count={count}"}
    with pytest.raises(ConfigError, match=r"must be"):
        worker(environ)


@pytest.mark.parametrize(
    ("environ", "role"),
    [
        ({"ROLE_NAME": "generator", "ROLE_RANK": "0"}, "generator"),
        ({"ROLE_NAME": "default", "ROLE_RANK": "0"}, "trainer"),
        ({"ROLE_NAME": "generator"}, "trainer"),  # not torchrun's
        ({"ROLE_NAME": "generator", "ROLE_RANK": "0", "OTEL_RL_ROLE": "env"}, "env"),
    ],
)
def test_torchrun_s_role_counts_unless_it_is_its_default(
    environ: dict[str, str], role: str
) -> None:
    assert nameless(environ).role == role


@pytest.mark.parametrize(
    ("name", "role", "place"),
    [
        ("trainer", "trainer", (3, 8)),
        ("generator-2", "generator", (2, None)),
        ("Replay_Buffer_0", "replay_buffer", (0, None)),
        ("MainProcess", "trainer", (3, 8)),
        ("Process-2", "worker", (3, 8)),
        ("ForkProcess-2", "worker", (3, 8)),
        ("SpawnPoolWorker-2", "worker", (3, 8)),
        ("Process-1:2", "worker", (3, 8)),
        ("RewardWorker", "reward", (3, 8)),
        ("ReplayBuffer", "replay_buffer", (3, 8)),
        ("VLLMEngine_0", "vllm_engine", (0, None)),
        ("my-generator-2", "my_generator", (2, None)),
        ("llama3", "llama3", (3, 8)),
        ("Worker", "worker", (3, 8)),
        ("7", "worker", (3, 8)),
    ],
)
def test_a_child_without_a_role_is_named_after_its_process_or_class(
    name: str, role: str, place: tuple[int | None, int | None]
) -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "8"}  # inherited from who started it
    found = nameless(environ, name)
    assert (found.role, (found.index, found.count)) == (role, place)


def test_a_worker_of_ray_with_a_rank_is_a_trainer_unless_its_class_says_more() -> None:
    ray = {"RAY_RAYLET_PID": "7", "RANK": "1", "WORLD_SIZE": "2"}
    assert nameless(ray, "RayTrainWorker").role == "trainer"
    assert nameless(ray, "RewardWorker").role == "reward"
    assert nameless({"RAY_RAYLET_PID": "7"}, "RayTrainWorker").role == "worker"


def test_what_is_said_wins_over_what_a_process_is_called() -> None:
    found = worker({"RANK": "3"}, process_name="generator-2")
    assert (found.role, found.index) == ("trainer", 3)


def test_a_process_that_is_called_after_the_role_that_it_says_has_the_index_in_its_name() -> None:
    assert worker({"RANK": "3", "WORLD_SIZE": "8"}, process_name="trainer-2").index == 2


@pytest.mark.parametrize("variable", ["OTEL_RL_INDEX", "OTEL_RL_COUNT"])
def test_our_own_variables_must_be_integers(variable: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}: must be an integer"):
        worker({variable: "two"})


def test_a_forked_child_does_not_claim_its_parents_place() -> None:
    child = worker(index=1, count=2).without_place()
    assert "rl.worker.index" not in child.attributes()
    assert "rl.worker.count" not in child.attributes()


def test_the_service_is_named_after_the_role_unless_the_environment_names_it() -> None:
    assert worker().service_name == "otel_rl.trainer"
    assert worker({"OTEL_SERVICE_NAME": "mine"}).service_name == "mine"


@given(st.text(min_size=1, max_size=128).filter(lambda name: name.isprintable() and name.strip()))
def test_any_printable_name_is_taken_as_it_is(name: str) -> None:
    assert worker(experiment=name).attributes()["rl.experiment.name"] == name
