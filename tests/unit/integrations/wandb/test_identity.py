import multiprocessing

import pytest

import otel_rl
import otel_rl.integrations.wandb as wandb
from otel_rl.integrations.wandb._run import worker_of
from otel_rl.worker.identity import WorkerNames
from tests.support.otlp_sink import Sink

RUN = {"OTEL_RL_EXPERIMENT": "exp", "OTEL_RL_TRIAL": "7"}


Given = tuple[str | None, str | None, str | None]
"""Project, id or name, job type."""

NOTHING: Given = (None, None, None)


@pytest.mark.parametrize(
    ("given", "environ", "worker"),
    [
        (("p", "i", "trainer"), RUN, WorkerNames("p", "i", "trainer")),
        (
            ("p", "n", None),
            {**RUN, "OTEL_RL_TYPED": "trial,experiment"},
            WorkerNames("exp", "7", None),
        ),
        (
            NOTHING,
            {"OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=e"},
            WorkerNames("e", None, None),
        ),
        (NOTHING, {**RUN, "OTEL_RL_ROLE": "env"}, WorkerNames("exp", "7", "env")),
        (("p", "n", None), {}, WorkerNames("p", "n", None)),
        (("p", None, None), {}, WorkerNames("p", None, None)),
        ((None, "n", None), {}, WorkerNames("uncategorized", "n", None)),
        (NOTHING, {"OTEL_RL_DEFAULT_EXPERIMENT": "script"}, WorkerNames("script", None, None)),
        ((None, "n", None), {"WANDB_PROJECT": "p"}, WorkerNames("p", "n", None)),
        (
            NOTHING,
            {"WANDB_PROJECT": "p", "WANDB_RUN_ID": "i", "WANDB_JOB_TYPE": "env"},
            WorkerNames("p", "i", "env"),
        ),
        (
            NOTHING,
            {**RUN, "WANDB_PROJECT": "p", "WANDB_NAME": "n"},
            WorkerNames("exp", "7", None),
        ),
        (
            ("p", "n", None),
            {"OTEL_RESOURCE_ATTRIBUTES": "rl.worker.role=env"},
            WorkerNames("p", "n", "env"),
        ),
    ],
)
def test_a_process_is_placed(given: Given, environ: dict[str, str], worker: WorkerNames) -> None:
    assert worker_of(WorkerNames(*given), environ, "MainProcess") == worker


@pytest.mark.parametrize(
    ("job_type", "environ", "process_name", "role"),
    [
        ("eval", {"OTEL_RL_ROLE": "trainer"}, "env-1", "eval"),
        (None, {"OTEL_RL_ROLE": "trainer", "WANDB_JOB_TYPE": "eval"}, "env-1", "trainer"),
        (None, {"WANDB_JOB_TYPE": "eval"}, "env-1", "eval"),
        (None, {}, "env-1", "env"),
        (None, {"ROLE_RANK": "0", "ROLE_NAME": "critic"}, "env-1", "critic"),
    ],
)
def test_the_job_type_is_of_the_program_its_variable_of_the_environment(
    job_type: str | None, environ: dict[str, str], process_name: str, role: str
) -> None:
    given = WorkerNames(role=job_type)
    assert worker_of(given, {**RUN, **environ}, process_name).role == role


def test_a_process_that_is_named_after_its_place_has_it_beside_a_launchers(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "name", "generator_1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    wandb.init()
    wandb.log({"loss": 0.5})
    assert otel_rl.flush(timeout_s=60)
    (loss,) = sink.measurements("loss")
    assert (loss.resource["rl.worker.role"], loss.resource["rl.worker.index"]) == ("generator", 1)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, (2, None)),
        ({"OTEL_RL_INDEX": "1", "OTEL_RL_COUNT": "4"}, (1, 4)),
        ({"OTEL_RESOURCE_ATTRIBUTES": "rl.worker.index=1,rl.worker.count=4"}, (1, 4)),
    ],
)
def test_a_rank_that_logs_expects_no_others_unless_a_person_says_so(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], place: tuple[int, ...]
) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "8", **given}.items():
        monkeypatch.setenv(name, value)
    wandb.init()
    wandb.log({"loss": 0.5})
    otel_rl.init(role="trainer")  # says the same with the launcher's count
    assert otel_rl.flush(timeout_s=60)
    (loss,) = sink.measurements("loss")
    found = tuple(loss.resource.get(f"rl.worker.{name}") for name in ("index", "count"))
    assert found == place
