"""Launchers of sweeps, in the shapes of their modules that a trial depends on."""

import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from otel_rl.integrations.adapter import trial
from otel_rl.integrations.automatic import join_sweep
from otel_rl.integrations.automatic.sweeps import SWEEPS

Launcher = Callable[..., Any]


@pytest.fixture(autouse=True)
def trial_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RL_TRIAL", "monday")
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    monkeypatch.delenv("OTEL_RL_SWEEP", raising=False)


def present() -> str:
    """Trial of this process."""
    return os.environ["OTEL_RL_TRIAL"]


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
    made.reset(of_tune("b"))
    assert present() == "monday-b"
    made.reset(new_config=of_tune("c"))
    assert present() == "monday-c"
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
    module = launcher("hydra.core.utils", run_job=lambda _function, config: present())
    assert module.run_job(None, config) == module.run_job(None, config=config) == expected


def test_a_child_of_a_sweep_within_a_run_of_wandb_stays_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    monkeypatch.setenv("OTEL_RL_SWEEP", "")
    join_sweep()
    with trial("study-0"):
        join_sweep()  # as a child of this process does
        assert present() == "monday-r1-study-0"
