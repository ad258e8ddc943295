"""Launchers of sweeps, in the shapes of their modules that a trial depends on."""

import json
import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from otel_rl.integrations.adapter import trial
from otel_rl.integrations.automatic import join_sweep
from otel_rl.integrations.sweeps import SWEEPS

Launcher = Callable[..., Any]


@pytest.fixture(autouse=True)
def trial_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RL_TRIAL", "monday")
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    monkeypatch.delenv("OTEL_RL_CONFIG", raising=False)
    monkeypatch.delenv("OTEL_RL_SWEEP", raising=False)


def present() -> str:
    """Trial of this process."""
    return os.environ["OTEL_RL_TRIAL"]


def config() -> object:
    """What the run of this process's trial has in its config."""
    return json.loads(os.environ.get("OTEL_RL_CONFIG", "null"))


def launcher(module: str, **contents: Any) -> Any:
    made: Any = ModuleType(module)
    vars(made).update(contents)
    SWEEPS[module](made)
    return made


@pytest.fixture
def trainable() -> Any:
    """The class of trainables of Ray Tune."""

    class Trainable:
        def __init__(self, config: Any = None) -> None:
            if config and config.get("fails"):
                raise ValueError("of the user")

        def reset(self, new_config: Any, storage: Any = None) -> bool:
            return True

        def stop(self) -> None:
            """Release resources."""

    return launcher(
        "ray.tune.trainable.trainable", Trainable=Trainable, TRIAL_INFO="info"
    ).Trainable


def of_tune(name: str, **config: Any) -> dict[str, Any]:
    return {"info": SimpleNamespace(trial_name=name), **config}


def test_an_actor_of_tune_is_in_one_trial_at_a_time(trainable: Any) -> None:
    made = trainable(of_tune("a"))
    assert present() == "monday-a"
    assert config() is None
    made.reset(of_tune("b", lr=0.5, model={"layers": 2}, __stdout_file__="out"))
    assert present() == "monday-b"
    assert config() == {"lr": 0.5, "model": {"layers": 2}}
    made.reset(new_config=of_tune("c"))
    assert present() == "monday-c"
    assert config() is None
    made.stop()
    assert present() == "monday"


def test_a_trainable_that_fails_at_once_leaves_no_trial(trainable: Any) -> None:
    with pytest.raises(ValueError, match="of the user"):
        trainable(of_tune("a", fails=True))
    assert present() == "monday"


def test_a_trainable_without_tune_ends_no_trial_of_another_launcher(trainable: Any) -> None:
    with trial("job"):
        trainable({"lr": 1}).stop()
        assert present() == "monday-job"


class Strict:
    """A node of a config of Hydra, which has no other keys."""

    def __init__(self, **nodes: Any) -> None:
        vars(self).update(nodes)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [({}, "monday"), ({"mode": None}, "monday"), ({"mode": Strict(name="MULTIRUN")}, "monday-0")],
)
def test_a_job_of_hydra_runs_in_any_version_of_it(mode: dict[str, Any], expected: str) -> None:
    config = Strict(hydra=Strict(job=Strict(num=0, override_dirname=""), **mode))
    module = launcher("hydra.core.utils", run_job=lambda task, config: task(config))
    assert module.run_job(task_function=lambda _: present(), config=config) == expected
    assert module.run_job(lambda _: present(), config) == expected
    assert present() == "monday"


class Unresolved(Strict):
    """A node with an interpolation that fails."""

    def get(self, key: str) -> Any:
        if key == "bad":
            raise ValueError(key)
        return vars(self).get(key)


def test_overrides_of_a_job_of_hydra_are_the_config_of_its_run() -> None:
    overrides = ["lr=1e-2", "+model.layers=2", "db@store=mysql", "~seed", "bad=${x:}"]
    overrides += ["++flag=true", "no.such=3"]
    given = Unresolved(
        hydra=Strict(
            job=Strict(num=0, override_dirname=""),
            mode=Strict(name="MULTIRUN"),
            overrides=Strict(task=overrides),
        ),
        lr=0.01,
        model=Unresolved(layers=2),
        db=Unresolved(host="h"),
        flag=True,
    )
    found: list[object] = []
    module = launcher("hydra.core.utils", run_job=lambda task, config: task(config))
    module.run_job(lambda _: found.append(config()), given)
    assert found == [
        {
            "lr": 0.01,
            "model.layers": 2,
            "db": "mysql",
            "bad": "${x:}",
            "flag": True,
            "no.such": "3",
        }
    ]


def test_a_secret_that_is_overridden_is_in_no_name_and_no_config() -> None:
    job = Strict(num=0, override_dirname="+hub_token=hf_1,lr=0.1,wandb.api_key=2")
    overrides = Strict(task=["+hub_token=hf_1", "lr=0.1", "wandb.api_key=2"])
    given = Unresolved(hydra=Strict(job=job, mode=Strict(name="MULTIRUN"), overrides=overrides))
    found: list[object] = []
    module = launcher("hydra.core.utils", run_job=lambda task, config: task(config))
    module.run_job(lambda _: found.extend((present(), config())), given)
    assert found == ["monday-0-lr=0.1", {"lr": "0.1"}]


def test_a_secret_in_a_config_of_tune_is_in_none_of_a_run(trainable: Any) -> None:
    made = trainable(of_tune("a", lr=0.5, wandb={"api_key": "1", "project": "p"}, hub_token="2"))
    assert config() == {"lr": 0.5, "wandb": {"project": "p"}}
    made.stop()


def test_a_child_of_a_sweep_within_a_run_of_wandb_stays_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    monkeypatch.setenv("OTEL_RL_SWEEP", "")
    monkeypatch.setenv("OTEL_RL_TYPED", "")
    join_sweep()
    with trial("study-0"):
        join_sweep()  # as a child of this process does
        assert present() == "monday-r1-study-0"
