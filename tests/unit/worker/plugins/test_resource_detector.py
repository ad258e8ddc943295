"""Programs with an SDK of their own, in interpreters of their own, that take only the detector."""

import json
import os

import pytest

from otel_rl.worker.launch import Processes
from tests.unit.worker.plugins.test_otel_providers import run

pytestmark = pytest.mark.process

FOUND = """
import json, sys, types
{before}
from opentelemetry.sdk.resources import Resource
print(json.dumps(dict(Resource.create().attributes), default=str))
"""


def found(before: str = "", **environ: str) -> tuple[dict[str, object], str]:
    """(resource attributes, what was logged) of a stock SDK with the detector."""
    finished = run(
        FOUND.format(before=before), OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="otel_rl", **environ
    )
    assert finished.returncode == 0, finished.stderr
    attributes: dict[str, object] = json.loads(finished.stdout)
    return attributes, finished.stderr


def test_a_stock_sdk_says_who_the_worker_is() -> None:
    attributes, err = found(
        OTEL_RL_EXPERIMENT="e", OTEL_RL_ROLE="generator", RANK="2", WORLD_SIZE="4"
    )
    assert err == ""
    assert attributes["rl.experiment.name"] == "e"
    # This process has started the rank, so its launch is that of all of them.
    assert attributes["rl.trial.name"] == Processes().name_of(os.getpid())
    assert attributes["rl.worker.role"] == "generator"
    assert (attributes["rl.worker.index"], attributes["rl.worker.count"]) == (2, 4)
    assert attributes["service.name"] == "otel_rl.generator"
    assert {"rl.run.id", "host.name", "service.instance.id"} <= attributes.keys()


def test_what_is_nowhere_said_is_left_out() -> None:
    attributes, _ = found()
    assert [key for key in attributes if key.startswith("rl.")] == []
    assert str(attributes["service.name"]).startswith("unknown_service")


def test_the_user_s_own_attributes_win() -> None:
    attributes, _ = found(
        OTEL_RL_ROLE="trainer", OTEL_RESOURCE_ATTRIBUTES="service.name=mine,team=a"
    )
    assert (attributes["service.name"], attributes["team"]) == ("mine", "a")


def test_a_wrong_place_is_said_and_costs_the_program_nothing() -> None:
    attributes, err = found(OTEL_RL_INDEX="2", OTEL_RL_COUNT="2")
    assert "OTEL_RL_INDEX: must be below OTEL_RL_COUNT (got 2 of 2)" in err
    assert "rl.worker.index" not in attributes


RAY = """
ray = types.ModuleType("ray")
ray.is_initialized = lambda: {initialized}
ray.get_runtime_context = lambda: types.SimpleNamespace(
    get_actor_id=lambda: "7", get_actor_name=lambda: {name}, get_job_id=lambda: "01000000",
    get_task_function_name=lambda: "module.RewardWorker.__init__", gcs_address="node:6379",
)
sys.modules["ray"] = ray
"""


@pytest.mark.parametrize(
    ("initialized", "name", "expected"),
    [
        ("True", "'generator_3'", ("generator", 3)),
        ("True", "''", ("reward", None)),
        ("True", "1 / 0", (None, None)),
        ("False", "'generator_3'", (None, None)),
    ],
)
def test_a_ray_actor_has_its_role_from_its_name_else_its_class(
    initialized: str, name: str, expected: tuple[object, object]
) -> None:
    attributes, err = found(
        RAY.format(initialized=initialized, name=name), RAY_RAYLET_PID="1", OTEL_RL_EXPERIMENT="e"
    )
    if initialized == "True":
        assert attributes["rl.trial.name"] == "ray-node-6379-01000000"
    assert (attributes.get("rl.worker.role"), attributes.get("rl.worker.index")) == expected
    assert err == ""
