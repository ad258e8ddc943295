"""RLlib trains CartPole, as a program and as a trial of Tune, and its results are in the run."""

import json
from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner, demand
from tests.frameworks.test_ray_endings import ACTORS
from tests.lab.frameworks.environment import RLLIB
from tests.process.commands import Row, jsonl_rows

STEPS = 3

CONFIG = """
    import json
    from ray import tune
    from ray.rllib.algorithms.ppo import PPOConfig
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    config.training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
"""

BY_HAND = """
    import otel_rl.integrations.rllib
    config.callbacks(on_algorithm_init=otel_rl.integrations.rllib.follow)
"""

PROGRAM = f"""
    algorithm = config.build_algo()
    results = [algorithm.train() for _ in range({STEPS})]
    print(json.dumps([one["learners"]["default_policy"]["total_loss"] for one in results]))
    ray.shutdown()
"""

TRIAL = f"""
    stop = tune.RunConfig(stop={{"training_iteration": {STEPS}}}, storage_path=os.getcwd())
    (result,) = tune.Tuner("PPO", param_space=config, run_config=stop).fit()
    losses = result.metrics_dataframe["learners/default_policy/total_loss"]
    print(json.dumps(losses.tolist()))
"""


@pytest.fixture
def rllib(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    demand(RLLIB, "RLlib")
    return Runner(RLLIB.python, tmp_path, metadata_of_this_checkout)


def column(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


@pytest.mark.tried("RLlib", "Ray", seen="each iteration, its phases, in a trial of Tune, too")
@pytest.mark.parametrize(
    ("script", "options"),
    [(PROGRAM, ()), (BY_HAND + TRIAL, ("--no-adapters",))],
    ids=["a program, automatically", "a trial, by hand"],
)
def test_every_result_is_in_the_run_to_the_last(
    rllib: Runner, script: str, options: tuple[str, ...]
) -> None:
    done = rllib.run(ACTORS + CONFIG + script, *options)
    assert done.status == 0, done.err
    losses = json.loads(done.out.splitlines()[-1])
    assert len(losses) == STEPS
    rows = [*jsonl_rows(rllib.directory, "real")]
    steps = [*range(1, STEPS + 1)]
    found = column(rows, "trainer/loss")
    assert [step for step, _ in found] == steps
    assert [value for _, value in found] == pytest.approx(losses)
    for name in ("generate", "train", "weight_sync"):
        assert [step for step, _ in column(rows, f"phase/trainer/{name}")] == steps
