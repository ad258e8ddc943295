"""``otel-rl run --attach RUN -- CMD``: CMD's own W&B run gets the bridge's rows."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import plain_http, waiting
from tests.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.process.commands import OTEL_RL, clean_environment, otel_rl
from tests.wandb_server import WandbServer

pytestmark = pytest.mark.process

DEADLINE_S = 90.0
wait_until = partial(waiting.wait_until, timeout_s=DEADLINE_S)

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
    variables = {**server.environment(), "WANDB_ERROR_REPORTING": "false"}
    del variables["WANDB_MODE"]
    return clean_environment(home, **variables | extra)


def test_one_run_has_what_the_script_logs_to_wandb_and_what_it_reports_by_otel(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command: list[str | Path] = [sys.executable, tmp_path / "train.py", "3"]
    before = server.run_ids()
    done = otel_rl(
        *("run", "--experiment", "grpo", "--role", "trainer", "--attach", "theirs/mine", "--"),
        *command,
        cwd=tmp_path,
        env=environment(tmp_path, server),
    )
    assert done.status == 3, done.err
    assert server.run_ids() == [*before, "mine"]
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


@pytest.mark.slow
def test_a_script_that_begins_no_shared_run_says_how_to_and_keeps_its_rows(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("init(", 'init(mode="online", '))
    command: list[str | Path] = [sys.executable, tmp_path / "train.py", "0"]
    done = otel_rl(
        *("run", "--experiment", "grpo", "--attach", "theirs/alone", "--", *command),
        cwd=tmp_path,
        env=environment(tmp_path, server),
    )
    assert "is not in shared mode" in done.err
    assert "WANDB_MODE=shared" in done.err
    assert "write the rest with: otel-rl finish .otel_rl/" in done.err
    (kept,) = tmp_path.rglob("settings.json")
    options = json.loads(kept.read_text())["settings"]["tracker"]["options"]
    assert options == {"attach": "theirs/alone"}, "how to write the rest"
    assert len(server.history("alone")) == 50
    assert server.run("alone").rewrites == 0


OWNER = """
import sys
import wandb

with wandb.init(settings=wandb.Settings(console="off")) as run:
    for line in sys.stdin:
        run.log({"mine": int(line)})
        print(line, flush=True)
"""


@contextmanager
def started(*command: str, env: Mapping[str, str], cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def bridge(home: Path, env: Mapping[str, str]) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    ports = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    with started(*OTEL_RL, "bridge", *ports, env=env, cwd=home) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield process, "http://" + line.partition("OTLP/HTTP on ")[2].partition(",")[0]


def report(url: str, steps: range) -> None:
    """One exact gauge, its value being the step."""
    resource: Attributes = {
        "rl.experiment.name": "grpo",
        "rl.worker.role": "trainer",
        "service.instance.id": "1",
    }
    now = time.time_ns()
    points = [point(float(step), now + step) for step in steps]
    for step, made in zip(steps, points, strict=True):
        made.attributes.extend(key_values({"rl.loop.iteration": step}))
    content = metrics_request(gauge(*points), resource=resource).SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    plain_http.post(
        f"{url}/v1/metrics", content=content, headers=headers, timeout=60
    ).raise_for_status()


@pytest.mark.slow
def test_a_bridge_that_was_killed_writes_every_row_once_and_leaves_the_owners_alone(
    tmp_path: Path, server: WandbServer
) -> None:
    env = environment(
        tmp_path,
        server,
        WANDB_MODE="shared",
        WANDB_RUN_ID="killed",
        WANDB_PROJECT="theirs",
        OTEL_RL_BRIDGE__TRACKER__OPTIONS__TRANSMIT_INTERVAL_S="1",
        OTEL_RL_BRIDGE__TRACKER__OPTIONS__SETTLE_S="2",
        OTEL_RL_BRIDGE__ALIGN__WAIT_S="1",
    )
    with started(sys.executable, "-c", OWNER, env=env, cwd=tmp_path) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        for life in range(3):
            with bridge(tmp_path, env) as (process, url):
                report(url, range(100 * life, 100 * life + 100))
                owner.stdin.write(f"{life}\n")
                owner.stdin.flush()
                owner.stdout.readline()
                arrived = partial(has_losses, server, 60 * life)
                wait_until(arrived, "rows of this life arrive")
                if life == 2:
                    process.send_signal(signal.SIGTERM)
                    process.wait(DEADLINE_S)
        owner.stdin.close()
        assert owner.wait(DEADLINE_S) == 0
    assert losses(server) == [float(step) for step in range(300)]
    history = server.history("killed")
    assert [row["mine"] for row in history if "mine" in row] == [0, 1, 2]
    assert (server.run("killed").complete, server.run("killed").exit_code) == (True, 0)


def losses(server: WandbServer) -> list[float]:
    key = "otel_rl/trainer/loss"
    return sorted(row[key] for row in server.history("killed") if key in row)


def has_losses(server: WandbServer, more_than: int) -> bool:
    return len(losses(server)) > more_than
