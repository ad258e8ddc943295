"""Adapters with the oldest releases that are supported; ``oldest.in`` has the list."""

from pathlib import Path

import pytest

from tests.frameworks import test_trl, test_wandb_drop_in
from tests.frameworks.conftest import Runner
from tests.lab.frameworks.environment import OLDEST
from tests.process.commands import jsonl_rows

WANDB = """
    import wandb
    from otel_rl.integrations.wandb_run import log

    log.install(step_keys=["train/step"])
    with wandb.init(project="p", mode="offline") as run:
        for step in range(1, 5):
            run.log({"train/step": step, "loss": 1 / step})
"""

RAY = """
    import ray
    from opentelemetry import trace

    import otel_rl

    ray.init(
        num_cpus=1, include_dashboard=False,
        _tracing_startup_hook="otel_rl.integrations.ray_tracing:carry_context",
    )

    @ray.remote
    def trace_of_call():
        return trace.get_current_span().get_span_context().trace_id

    otel_rl.init(role="trainer")
    with trace.get_tracer("m").start_as_current_span("call") as span:
        found = ray.get(trace_of_call.remote())
        assert found == span.get_span_context().trace_id, found
    for step in range(1, 5):
        otel_rl.mlogger.log({"loss": 1 / step}, step)
"""


@pytest.fixture
def oldest(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    if not OLDEST.is_built():
        pytest.skip("the oldest frameworks are not installed: run `make lab` once")
    return Runner(OLDEST.python, tmp_path, metadata_of_this_checkout)


def test_trl_brings_each_step_and_the_evaluation_after_the_end(oldest: Runner) -> None:
    done = oldest.run(test_trl.GRPO)
    assert done.status == 0, done.err
    rows = jsonl_rows(oldest.directory, "real")
    steps = [row.step for row in rows if "trainer/loss" in row.values]
    assert steps == [*range(1, test_trl.STEPS + 1)]
    (line,) = [line for line in done.out.splitlines() if line.startswith("evaluated ")]
    (evaluated,) = [
        row.values["trainer/eval_loss"] for row in rows if "trainer/eval_loss" in row.values
    ]
    assert evaluated == pytest.approx(float(line.removeprefix("evaluated ")))


@pytest.mark.parametrize("code", [WANDB, RAY], ids=["wandb", "ray"])
def test_each_step_is_in_the_run(oldest: Runner, code: str) -> None:
    done = oldest.run(code, "--role", "trainer")
    assert done.status == 0, done.err
    rows = jsonl_rows(oldest.directory, "real")
    found = [(row.step, row.values["trainer/loss"]) for row in rows if "trainer/loss" in row.values]
    assert found == [(step, 1 / step) for step in range(1, 5)]


def test_stable_baselines3_brings_its_last_values(oldest: Runner) -> None:
    test_wandb_drop_in.test_stable_baselines3_with_its_callback_and_sync_tensorboard(oldest)
