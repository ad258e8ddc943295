import pytest

from otel_rl.errors import ConfigError
from otel_rl.integrations.wandb._identity import Names, worker_of
from otel_rl.worker.identity.names import WorkerNames

RUN = {"OTEL_RL_EXPERIMENT": "exp", "OTEL_RL_TRIAL": "7"}


@pytest.mark.parametrize(
    ("names", "environ", "worker"),
    [
        (Names("p", "n", "i", "trainer"), RUN, WorkerNames("exp", "7", "trainer")),
        (
            Names(),
            {"OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=e"},
            WorkerNames("e", None, "worker"),
        ),
        (Names("p", "n"), {**RUN, "OTEL_RL_ROLE": "env"}, WorkerNames("exp", "7", "env")),
        (Names("p", "n"), {}, WorkerNames("p", "n", "worker")),
        (Names("p", "n", "i"), {}, WorkerNames("p", "i", "worker")),
        (Names(name="n"), {}, WorkerNames("uncategorized", "n", "worker")),
        (Names(name="n"), {"WANDB_PROJECT": "p"}, WorkerNames("p", "n", "worker")),
        (
            Names(),
            {"WANDB_PROJECT": "p", "WANDB_RUN_ID": "i", "WANDB_JOB_TYPE": "env"},
            WorkerNames("p", "i", "env"),
        ),
        (
            Names("p", "n"),
            {"OTEL_RESOURCE_ATTRIBUTES": "rl.worker.role=env"},
            WorkerNames("p", "n", "env"),
        ),
    ],
)
def test_a_process_is_placed(names: Names, environ: dict[str, str], worker: WorkerNames) -> None:
    assert worker_of(names, environ, "MainProcess") == worker


@pytest.mark.parametrize(
    ("names", "environ", "process_name", "role"),
    [
        (Names(job_type="eval"), {"OTEL_RL_ROLE": "trainer"}, "env-1", "eval"),
        (Names(), {"OTEL_RL_ROLE": "trainer", "WANDB_JOB_TYPE": "eval"}, "env-1", "trainer"),
        (Names(), {"WANDB_JOB_TYPE": "eval"}, "env-1", "eval"),
        (Names(), {}, "env-1", "env"),
        (Names(), {"ROLE_RANK": "0", "ROLE_NAME": "critic"}, "env-1", "critic"),
    ],
)
def test_the_job_type_is_said_its_variable_only_known(
    names: Names, environ: dict[str, str], process_name: str, role: str
) -> None:
    assert worker_of(names, {**RUN, **environ}, process_name).role == role


def test_processes_that_nothing_joins_are_an_error() -> None:
    with pytest.raises(ConfigError, match="one run"):
        worker_of(Names("p"), {}, "MainProcess")
