"""What a framework logs, through its adapter and a bridge, is in the run under common keys."""

import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.commands import jsonl_rows, otel_rl

pytestmark = pytest.mark.process

# AReaL's trainer as its adapter sees it; the framework itself is too heavy to install.
TRAINER = """
    from types import SimpleNamespace

    from otel_rl.integrations import areal


    class StatsLogger:
        config = SimpleNamespace(experiment_name="mine", trial_name="t")

        def state_dict(self):
            return {"last_commit_step": -1}

        def commit(self, epoch, step, global_step, data):
            pass


    trainer = SimpleNamespace(stats_logger=StatsLogger())
    areal.attach(trainer)
    for step in range(3):
        trainer.stats_logger.commit(0, step, step, {
            "ppo_actor/update/actor_loss/avg": 0.5,
            "ppo_actor/update/actor_loss/max": 2.0,
            "ppo_actor/update/approx_kl/avg": -0.25,
            "ppo_actor/task_reward/avg": 0.75,
            "ppo_actor/task_reward/max": 1.0,
            "timeperf/update_weights": 1.5,
            "timeperf/train_step": 3.0,
            "ppo_actor/no_eos_ratios/avg": 0.125,
        })
"""


def test_names_of_a_framework_are_keys_of_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINER))
    done = otel_rl("run", "--experiment", "areal", "--tracker", "jsonl", "--", sys.executable,
                   script, cwd=tmp_path)  # fmt: skip
    assert done.status == 0, done.err
    rows = [row for row in jsonl_rows(tmp_path, "areal") if "trainer/reward/mean" in row.values]
    assert [row.step for row in rows] == [0, 1, 2]
    expected = {
        "trainer/loss/policy/mean": 0.5,
        "trainer/loss/policy/max": 2.0,
        "trainer/policy/kl/update": 0.25,
        "trainer/reward/mean": 0.75,
        "trainer/reward/max": 1.0,
        "phase/trainer/weight_sync": 1.5,
        "phase/trainer/train": 3.0,
        "trainer/pipeline/duration": 4.5,
        "trainer/ppo_actor/no_eos_ratios/avg": 0.125,
    }
    for row in rows:
        assert expected.items() <= row.values.items(), row.values
