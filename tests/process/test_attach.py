"""``otel-rl run --attach RUN -- CMD``: CMD's own W&B run gets the bridge's rows."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.commands import clean_environment, otel_rl
from tests.wandb_server import WandbServer

pytestmark = pytest.mark.process

# Nothing in it knows of otel_rl but the second of the two loops of metrics.
TRAIN = textwrap.dedent("""
    import sys
    import wandb
    from opentelemetry import metrics

    run = wandb.init(config={"lr": 3}, settings=wandb.Settings(console="off"))
    run.define_metric("trainer/loss", step_metric="global_step")
    reward = metrics.get_meter("train").create_gauge("reward")
    for step in range(50):
        run.log({"trainer/loss": 1.0 / (step + 1), "global_step": step})
        reward.set(float(step), {"rl.loop.iteration": step})
    run.finish()
    sys.exit(int(sys.argv[1]))
""")


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def environment(home: Path, server: WandbServer, **extra: str) -> dict[str, str]:
    variables = {**server.environment(), "WANDB_ERROR_REPORTING": "false", **extra}
    del variables["WANDB_MODE"]
    return clean_environment(home, **variables)


def test_one_run_has_what_the_script_logs_to_wandb_and_what_it_reports_by_otel(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, tmp_path / "train.py", "3"]
    done = otel_rl(
        *("run", "--experiment", "grpo", "--role", "trainer", "--attach", "theirs/mine", "--"),
        *command,
        cwd=tmp_path,
        env=environment(tmp_path, server),
    )
    assert done.status == 3, done.err
    assert server.run_ids() == ["mine"]
    history = server.history("mine")
    own = [(row["global_step"], row["trainer/loss"]) for row in history if "trainer/loss" in row]
    assert own == [(step, 1 / (step + 1)) for step in range(50)]
    reported = {
        row["otel_rl/step"]: row["otel_rl/trainer/reward"]
        for row in history
        if "otel_rl/trainer/reward" in row
    }
    assert reported == {step: float(step) for step in range(50)}
    run = server.run("mine")
    assert (run.project, run.complete, run.exit_code) == ("theirs", True, 0)
    assert json.dumps(run.config["lr"]) == '{"value": 3}'


def test_a_script_that_begins_no_shared_run_says_how_to_and_keeps_its_rows(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("init(", 'init(mode="online", '))
    command = [sys.executable, tmp_path / "train.py", "0"]
    done = otel_rl(
        *("run", "--experiment", "grpo", "--attach", "theirs/alone", "--", *command),
        cwd=tmp_path,
        env=environment(tmp_path, server),
    )
    assert "is not in shared mode" in done.err
    assert "WANDB_MODE=shared" in done.err
    assert "--attach theirs/alone" in done.err, "how to write the rest"
    assert len(server.history("alone")) == 50
    assert server.run("alone").rewrites == 0
