"""Stable-Baselines3 trains, on and off its policy: all that its logger dumps is in the run."""

import json

import pytest

from tests.frameworks.conftest import Runner
from tests.process.commands import Row, jsonl_rows

SCRIPT = """
    import json
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.logger import KVWriter, configure
    {install}

    dumped = []

    class Dumped(KVWriter):
        def write(self, key_values, key_excluded, step=0):
            dumped.append((step, {{key: float(value) for key, value in key_values.items()}}))
        def close(self):
            pass

    kinds = {{
        "PPO": lambda: PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, device="cpu"),
        "DQN": lambda: DQN("MlpPolicy", "CartPole-v1", learning_starts=50, device="cpu"),
    }}
    model = kinds["{kind}"]()
    logger = configure(None, [])
    logger.output_formats.append(Dumped())
    model.set_logger(logger)
    model.learn(64 * 4, callback={callback}, log_interval=1)
    print(json.dumps(dumped))
"""

BY_HAND = {
    "install": "from otel_rl.integrations.stable_baselines3 import OtelCallback",
    "callback": "OtelCallback()",
}
AUTOMATICALLY = {"install": "", "callback": "lambda *_: True"}

NAMES = {"rollout/ep_rew_mean": "trainer/reward/mean", "train/loss": "trainer/loss"}


def column(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


AFTERWARDS = """
    import otel_rl
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import CheckpointCallback

    flushed = []
    original = otel_rl.flush
    otel_rl.flush = lambda **named: flushed.append(named) or original(**named)
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=50, device="cpu")
    model.learn(200, callback=[CheckpointCallback(1000, ".") for _ in range(3)], log_interval=1)
    model.logger.record("after", 1.0)
    model.logger.dump(999)
    print("flushed", len(flushed))
"""


COPIED = """
    import cloudpickle
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, device="cpu")
    model.learn(64)
    copied = cloudpickle.loads(cloudpickle.dumps(model))
    copied.learn(64 * 3, reset_num_timesteps=False, log_interval=1)
"""

FAILED = """
    from stable_baselines3 import PPO

    def failing(*_):
        raise ValueError("of the user")

    PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").learn(256, callback=failing)
"""


@pytest.mark.tried(
    "Stable-Baselines3", "stable-baselines3", seen="each dump, phases, on and off the policy"
)
@pytest.mark.parametrize("kind", ["PPO", "DQN"])
@pytest.mark.parametrize(
    ("way", "options"),
    [(AUTOMATICALLY, ()), (BY_HAND, ("--no-adapters",))],
    ids=["automatically", "by hand"],
)
def test_every_dump_is_in_the_run_to_the_last(
    frameworks: Runner, kind: str, way: dict[str, str], options: tuple[str, ...]
) -> None:
    done = frameworks.run(SCRIPT.format(kind=kind, **way), *options)
    assert done.status == 0, done.err
    dumped = json.loads(done.out.splitlines()[-1])
    assert len(dumped) >= 3
    rows = [*jsonl_rows(frameworks.directory, "real")]
    for name, key in NAMES.items():
        expected = [(step, values[name]) for step, values in dumped if name in values]
        found = column(rows, key)
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected])
    begun = [0, *(step for step, _ in dumped)]
    for phase in ("generate", "train", "unaccounted"):
        assert [step for step, _ in column(rows, f"phase/trainer/{phase}")] == begun


def test_a_training_is_delivered_once_and_a_dump_after_it_begins_no_step(
    frameworks: Runner,
) -> None:
    done = frameworks.run(AFTERWARDS)
    assert done.status == 0, done.err
    assert "flushed 1" in done.out
    rows = [*jsonl_rows(frameworks.directory, "real")]
    assert column(rows, "trainer/after") == [(999, 1.0)]
    assert 999 not in dict(column(rows, "phase/trainer/unaccounted"))
    assert column(rows, "phase/trainer/train")


def test_a_training_that_fails_ends_its_step(frameworks: Runner) -> None:
    done = frameworks.run(FAILED)
    assert done.status == 1
    assert "of the user" in done.err
    assert "are not measured" not in done.err
    assert column([*jsonl_rows(frameworks.directory, "real")], "phase/trainer/generate")


OWN_LEARN = """
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Own(PPO):  # as of sb3_contrib, without that of a base
        def learn(self, total_timesteps, callback=None):
            _, callback = self._setup_learn(total_timesteps, callback)
            callback.on_training_start(locals(), globals())
            self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps)
            raise ValueError("of the user")

    Own("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").learn(200)
"""


def test_a_training_by_another_learn_that_fails_ends_its_step(frameworks: Runner) -> None:
    done = frameworks.run(OWN_LEARN)
    assert done.status == 1
    assert "of the user" in done.err
    assert "are not measured" not in done.err
    assert column([*jsonl_rows(frameworks.directory, "real")], "phase/trainer/generate")


def test_a_copy_of_a_trained_model_trains_and_is_recorded(frameworks: Runner) -> None:
    done = frameworks.run(COPIED)
    assert done.status == 0, done.err
    rows = [*jsonl_rows(frameworks.directory, "real")]
    assert [step for step, _ in column(rows, NAMES["train/loss"])] == [192, 256]


CAUGHT = """
    import otel_rl
    from stable_baselines3 import {kind}
    {install}

    class Failing(BaseCallback):
        def _on_step(self):
            if self.num_timesteps == 70:
                raise ValueError("of the user")
            return True

    for _ in range(2):
        model = {kind}("MlpPolicy", "CartPole-v1", {options}, device="cpu")
        try:
            model.learn(200, callback={callback})
        except ValueError:
            print("caught")
    with otel_rl.step(5000), otel_rl.phase("of_the_program"):
        pass
"""


@pytest.mark.parametrize(
    ("kind", "options", "is_automatic"),
    [("PPO", "n_steps=64, n_epochs=1", True), ("DQN", "learning_starts=50", False)],
)
def test_a_step_ends_with_the_training_whose_failure_the_program_catches(
    frameworks: Runner, kind: str, options: str, is_automatic: bool
) -> None:
    base = "from stable_baselines3.common.callbacks import BaseCallback"
    by_hand = "from otel_rl.integrations.stable_baselines3 import OtelCallback"
    script = CAUGHT.format(
        kind=kind,
        options=options,
        install=base if is_automatic else f"{base}\n    {by_hand}",
        callback="Failing()" if is_automatic else "[OtelCallback(), Failing()]",
    )
    done = frameworks.run(script, *(() if is_automatic else ("--no-adapters",)))
    assert done.status == 0, done.err
    assert done.out.count("caught") == 2
    assert "step was opened within a step" not in done.err
    rows = [*jsonl_rows(frameworks.directory, "real")]
    assert [step for step, _ in column(rows, "phase/trainer/of_the_program")] == [5000]
    assert [step for step, _ in column(rows, "trainer/iteration/duration")][-1] == 5000
