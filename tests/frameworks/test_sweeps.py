"""Trials that launchers of sweeps start below one ``otel-rl run``: each is a run of its own."""

import json
import os
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.frameworks.conftest import Runner, demand
from tests.lab.frameworks.environment import RLLIB
from tests.process.commands import jsonl_rows

TRAINING = """
    def training(lr):
        import otel_rl
        for step in range(1, 4):
            with otel_rl.step(step):
                otel_rl.log({"rl.train.loss": lr * step}, step)
"""

CLUSTER = f"""
    import os, sys
    import ray
    from ray import tune
    {TRAINING}
    def function(config):
        for step in range(1, 4):
            with otel_rl.step(step):
                otel_rl.log({{"rl.train.loss": config["lr"] * step}}, step)
            tune.report({{"loss": config["lr"] * step}})

    class Trainable(tune.Trainable):
        def setup(self, config):
            self.lr = config["lr"]
        def step(self):
            step = self.training_iteration + 1
            with otel_rl.step(step):
                otel_rl.log({{"rl.train.loss": self.lr * step}}, step)
            return {{"loss": self.lr * step, "done": step == 3}}
        def save_checkpoint(self, directory):
            pass

    import otel_rl
    ray.init(num_cpus=2, include_dashboard=False)
    trainable = function if os.environ["TRAINABLE"] == "function" else Trainable
    results = tune.Tuner(
        tune.with_resources(trainable, {{"cpu": 1}}),
        param_space={{"lr": tune.grid_search([1.0, 10.0, 100.0, 1000.0])}},
        run_config=tune.RunConfig(storage_path=os.getcwd()),
    ).fit()
    assert not results.errors, results.errors
    for result in results:
        print("trial", result.config["lr"], result.metrics["trial_id"])
"""

TUNE = f"""
    import os
    from ray import tune
    from ray.tune.experiment.trial import _TrialInfo
    from ray.tune.result import TRIAL_INFO
    {TRAINING}
    class Trainable(tune.Trainable):
        def setup(self, config):
            self.lr = config["lr"]
        def step(self):
            training(self.lr)
            return {{"done": True}}
        def reset_config(self, config):
            self.lr = config["lr"]
            return True

    def config(lr):
        info = object.__new__(_TrialInfo)  # made of a trial that only a cluster has
        info._trial_name = info._trial_id = f"lr_{{lr:g}}"
        return {{"lr": lr, TRIAL_INFO: info}}

    trainable = Trainable(config(1.0))
    trainable.train()
    trainable.reset(config(10.0))
    trainable.train()
    trainable.stop()
    os._exit(0)  # as Ray ends the process
"""

RAY_TRAIN = """
    import os
    import ray
    from ray import train, tune
    from ray.train.torch import TorchTrainer

    def worker(config):
        import otel_rl
        assert os.environ["GIVEN"] == "by the user"
        rank = train.get_context().get_world_rank()
        otel_rl.init(role="trainer", index=rank)
        for step in range(1, 4):
            with otel_rl.step(step):
                otel_rl.log({f"of_rank_{rank}": config["lr"] * step}, step)
        otel_rl.finish()

    ray.init(num_cpus=4, include_dashboard=False)
    run_config = train.RunConfig(
        storage_path=os.getcwd(), worker_runtime_env={"env_vars": {"GIVEN": "by the user"}}
    )

    def trial(config):
        trainer = TorchTrainer(
            worker,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=run_config,
        )
        trainer.fit()
        assert run_config.worker_runtime_env == {"env_vars": {"GIVEN": "by the user"}}

    results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5}),
        param_space={"lr": tune.grid_search([10.0, 100.0])},
        run_config=tune.RunConfig(storage_path=os.getcwd()),
    ).fit()
    assert not results.errors, results.errors
    for result in results:
        print("trial", result.config["lr"], result.metrics["trial_id"])
"""

HYDRA = f"""
    import hydra
    from hydra.core.config_store import ConfigStore
    {TRAINING}
    ConfigStore.instance().store(name="config", node={{"lr": 1}})

    @hydra.main(version_base=None, config_path=None, config_name="config")
    def main(config):
        training(float(config.lr))

    if __name__ == "__main__":
        main()
"""

OPTUNA = f"""
    import optuna
    from otel_rl.integrations import adapter
    {TRAINING}
    def objective(trial):
        lr = trial.suggest_float("lr", 1, 2)
        with adapter.trial(f"lr-{{trial.number}}", trial.params):
            training([1.0, 10.0][trial.number])
        if trial.number:
            raise optuna.TrialPruned
        return lr

    optuna.create_study(study_name="lr").optimize(objective, n_trials=2)
    training(100.0)
"""

AGENT = f"""
    import os, sys
    import wandb
    from wandb.apis.public import sweeps
    from wandb.sdk import wandb_login

    # Answers of the server; the agent is W&B's own.
    runs = [
        {{"type": "run", "run_id": f"r{{number}}", "program": "program.py", "args": {{
            "lr": {{"value": 10.0 ** number}}, "net": {{"value": {{"layers": 2}}}},
            "api_key": {{"value": "secret"}},
        }}}}
        for number in range(2)
    ]
    is_program = os.environ["AGENT"] == "program"
    after = [{{"type": "exit"}}] if is_program else []
    wandb_login._verify_login = lambda *_, **_named: None
    sweeps._register_agent = lambda *_, **_named: {{"id": "agent"}}
    sweeps._sweep_with_runs = lambda *_, **_named: {{}}
    sweeps._agent_heartbeat = lambda *_, **_named: [runs.pop(0)] if runs else after
    {TRAINING}
    def train():
        training(wandb.init().config.lr)

    wandb.agent("entity/project/sweep", None if is_program else train, count=2)
"""

PROGRAM = f"""
    import sys
    {TRAINING}
    (lr,) = [text.removeprefix("--lr=") for text in sys.argv if text.startswith("--lr=")]
    training(float(lr))
"""

LOSSES = {
    step: (float(step), 10.0 * step, 100.0 * step) for step in range(1, 4)
}  # of two trials, and of what follows


@pytest.fixture
def sweeps(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    demand(RLLIB, "launchers of sweeps")
    return Runner(RLLIB.python, tmp_path, metadata_of_this_checkout)


def losses(directory: Path, trial: str) -> dict[int, float]:
    rows = jsonl_rows(directory, "real", trial)
    return {
        row.step: value
        for row in rows
        for key, value in row.values.items()
        if key.endswith(("/train/loss", "trainer/loss"))
    }


def column(number: int) -> dict[int, float]:
    return {step: values[number] for step, values in LOSSES.items()}


def config(directory: Path, trial: str) -> dict[str, object]:
    (path,) = directory.glob(f".otel_rl/*/{run_id('real', trial)}.run.json")
    found: dict[str, object] = json.loads(path.read_text())["config"]
    return found


@pytest.mark.parametrize("trainable", ["function", "Trainable"])
def test_trials_of_ray_tune_in_a_cluster_are_runs_with_their_config(
    sweeps: Runner, trainable: str
) -> None:
    done = sweeps.run(CLUSTER, env={"TRAINABLE": trainable})
    assert done.status == 0, done.err
    trials = [line.split()[1:] for line in done.out.splitlines() if line.startswith("trial ")]
    assert sorted(float(lr) for lr, _ in trials) == [1.0, 10.0, 100.0, 1000.0]
    for lr, number in trials:
        trial = f"default-{trainable}_{number}"
        expected = {step: float(lr) * step for step in range(1, 4)}
        assert losses(sweeps.directory, trial) == expected
        assert config(sweeps.directory, trial) == {"lr": float(lr)}


def test_workers_of_ray_train_are_in_the_run_of_their_trial_of_tune(sweeps: Runner) -> None:
    done = sweeps.run(RAY_TRAIN)
    assert done.status == 0, done.err
    trials = [line.split()[1:] for line in done.out.splitlines() if line.startswith("trial ")]
    assert sorted(float(lr) for lr, _ in trials) == [10.0, 100.0]
    for lr, number in trials:
        rows = jsonl_rows(sweeps.directory, "real", f"default-trial_{number}")
        for key in ("trainer/of_rank_0", "trainer/of_rank_1"):
            found = {row.step: row.values[key] for row in rows if key in row.values}
            assert found == {step: float(lr) * step for step in range(1, 4)}


def test_trials_of_an_actor_of_ray_tune_are_runs(sweeps: Runner) -> None:
    done = sweeps.run(TUNE)
    assert done.status == 0, done.err
    assert losses(sweeps.directory, "default-lr_1") == column(0)
    assert losses(sweeps.directory, "default-lr_10") == column(1)


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_jobs_of_a_multirun_of_hydra_are_runs(sweeps: Runner, launcher: str) -> None:
    script = sweeps.script(HYDRA)
    done = sweeps.start(
        sweeps.python, "-m", "otel_rl", "run", "--experiment", "real", "--tracker", "jsonl",
        "--", sweeps.python, script, "-m", "lr=1,10", f"hydra/launcher={launcher}",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert losses(sweeps.directory, "default-0-lr=1") == column(0)
    assert losses(sweeps.directory, "default-1-lr=10") == column(1)
    assert config(sweeps.directory, "default-1-lr=10") == {"lr": 10}


def test_trials_of_optuna_that_say_so_are_runs_and_what_follows_is_the_commands(
    sweeps: Runner,
) -> None:
    done = sweeps.run(OPTUNA)
    assert done.status == 0, done.err
    for number, trial in enumerate(("default-lr-0", "default-lr-1", "default")):
        assert losses(sweeps.directory, trial) == column(number)
    assert config(sweeps.directory, "default-lr-0").keys() == {"lr"}
    assert config(sweeps.directory, "default-lr-1") != config(sweeps.directory, "default-lr-0")
    assert config(sweeps.directory, "default") == {}
    assert "crashed" not in done.err  # pruned is not failed


@pytest.mark.parametrize("kind", ["function", "program"])
def test_runs_of_an_agent_of_wandb_are_runs_with_their_config(sweeps: Runner, kind: str) -> None:
    sweeps.script(PROGRAM, "program.py")
    path = os.pathsep.join([str(sweeps.python.parent), os.environ["PATH"]])
    key = "a" * 40
    env = {"AGENT": kind, "PATH": path, "WANDB_API_KEY": key, "WANDB_MODE": "offline"}
    done = sweeps.run(AGENT, env=env)
    assert done.status == 0, done.err
    for number, lr in enumerate((1.0, 10.0)):
        assert losses(sweeps.directory, f"default-r{number}") == column(number)
        assert config(sweeps.directory, f"default-r{number}") == {"lr": lr, "net": {"layers": 2}}
