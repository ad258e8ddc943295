"""Trials that launchers of sweeps start below one ``otel-rl run``: each is a run of its own."""

import os
from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner
from tests.frameworks.test_ray_endings import ACTORS
from tests.lab.frameworks.environment import RLLIB
from tests.process.commands import jsonl_rows

TRAINING = """
    def training(lr):
        import otel_rl
        for step in range(1, 4):
            with otel_rl.step(step):
                otel_rl.mlogger.log({"rl.train.loss": lr * step}, step)
"""

TUNE = f"""{ACTORS}
    import ray.train
    from ray import tune
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    {TRAINING}
    def function(config):
        training(config["lr"])
        tune.report({{"loss": 0.0}})

    class Class(tune.Trainable):
        def setup(self, config):
            self.lr = config["lr"]
        def step(self):
            training(self.lr)
            return {{"done": True}}
        def reset_config(self, config):
            self.lr = config["lr"]
            return True

    def loop(config):
        import otel_rl
        training(config["lr"])
        otel_rl.flush(timeout_s=60)  # Ray Train kills its workers

    def workers(config):
        DataParallelTrainer(
            loop, train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=1),
            run_config=ray.train.RunConfig(name=str(config["lr"]), storage_path=os.getcwd()),
        ).fit()

    tune.Tuner(
        TRAINABLE,
        param_space={{"lr": tune.grid_search([1.0, 10.0])}},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=1, reuse_actors=IS_REUSED,
            trial_name_creator=lambda trial: f"lr_{{trial.config['lr']:g}}",
        ),
        run_config=tune.RunConfig(storage_path=os.getcwd(), verbose=0),
    ).fit()
    ray.shutdown()
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
    {TRAINING}
    def objective(trial):
        lr = trial.suggest_float("lr", 1, 2)
        training([1.0, 10.0][trial.number])
        if trial.number:
            raise optuna.TrialPruned
        return lr

    optuna.create_study(study_name="lr").optimize(objective, n_trials=2)
    training(100.0)
"""

LOSSES = {
    step: (float(step), 10.0 * step, 100.0 * step) for step in range(1, 4)
}  # of two trials, and of what follows


@pytest.fixture
def sweeps(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    if not RLLIB.is_built():
        if os.environ.get("OTEL_RL_LAB") == "required" and not RLLIB.refusal():
            pytest.fail("launchers of sweeps are not installed: run `make lab`", pytrace=False)
        pytest.skip(RLLIB.refusal() or "launchers of sweeps are not installed: run `make lab` once")
    return Runner(RLLIB.python, tmp_path, metadata_of_this_checkout)


def losses(directory: Path, trial: str) -> dict[int, float]:
    rows = jsonl_rows(directory, "real", trial)
    return {
        row.step: value
        for row in rows
        for key, value in row.values.items()
        if key.endswith("/train/loss")
    }


def column(number: int) -> dict[int, float]:
    return {step: values[number] for step, values in LOSSES.items()}


@pytest.mark.parametrize(
    ("trainable", "is_reused"),
    [("function", True), ("Class", True), ("Class", False), ("workers", False)],
)
def test_trials_of_ray_tune_are_runs(sweeps: Runner, trainable: str, is_reused: bool) -> None:
    script = TUNE.replace("TRAINABLE", trainable).replace("IS_REUSED", str(is_reused))
    done = sweeps.run(script)
    assert done.status == 0, done.err
    assert losses(sweeps.directory, "default-lr_1") == column(0)
    assert losses(sweeps.directory, "default-lr_10") == column(1)


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_jobs_of_a_multirun_of_hydra_are_runs(sweeps: Runner, launcher: str) -> None:
    script = sweeps.script(HYDRA)
    done = sweeps.start(
        sweeps.python, "-m", "otel_rl.cli", "run", "--experiment", "real", "--tracker", "jsonl",
        "--", sweeps.python, script, "-m", "lr=1,10", f"hydra/launcher={launcher}",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert losses(sweeps.directory, "default-0-lr=1") == column(0)
    assert losses(sweeps.directory, "default-1-lr=10") == column(1)


def test_trials_of_optuna_are_runs_and_what_follows_is_the_commands(sweeps: Runner) -> None:
    done = sweeps.run(OPTUNA)
    assert done.status == 0, done.err
    for number, trial in enumerate(("default-lr-0", "default-lr-1", "default")):
        assert losses(sweeps.directory, trial) == column(number)
    assert "crashed" not in done.err  # pruned is not failed


def test_trials_of_optuna_in_threads_share_the_run_which_is_said(sweeps: Runner) -> None:
    done = sweeps.run(OPTUNA.replace("n_trials=2", "n_trials=2, n_jobs=2"))
    assert done.status == 0, done.err
    assert "start processes with one storage" in done.err
    assert set(losses(sweeps.directory, "default")) == set(LOSSES)
