"""W&B's own sampling in workers, by the real SDK, into a run that another process has begun."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.errors import ConfigError
from otel_rl.integrations.wandb_workers import SystemMetrics, join
from tests.support.waiting import wait_until
from tests.support.wandb_server import WandbServer

TIMEOUT_S = 90.0
SHARED = {"mode": "shared", "system_metrics": {"enabled": True, "roles": ["trainer"]}}

OWNER = """
import os
import wandb
settings = wandb.Settings(x_primary=True, x_disable_stats=True, console="off")
run = wandb.init(id="mine", project="theirs", mode="shared", settings=settings)
print(os.environ["WANDB_SERVICE"], flush=True)
input()
"""

WORKER = """
import json, sys
from otel_rl.integrations.wandb_workers import join, leave
config = json.loads(sys.argv[1])
joined = [
    join(config, run="theirs/mine", role=sys.argv[2], index=3, interval_s=0.2) for _ in range(2)
]
print(joined, flush=True)
input()
leave()
leave()
"""


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def start(
    script: str, server: WandbServer, home: Path, *arguments: str, service: str = ""
) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own = {"HOME": str(home), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    environment = {**clean, **server.environment(), **own}
    del environment["WANDB_MODE"]
    if service:
        environment["WANDB_SERVICE"] = service
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.process
def test_a_worker_is_sampled_under_its_role_and_index_and_never_ends_the_run(
    server: WandbServer, tmp_path: Path
) -> None:
    with start(OWNER, server, tmp_path) as owner:
        try:
            service = line(owner)  # whoever the owner starts inherits it
            arguments = json.dumps(SHARED), "trainer"
            with start(WORKER, server, tmp_path, *arguments, service=service) as worker:
                assert line(worker) == "[True, True]"
                wait_until(
                    lambda: (
                        "/l:trainer_3" in "".join(server.run("mine").lines("wandb-events.jsonl"))
                    ),
                    "what W&B has sampled",
                    timeout_s=TIMEOUT_S,
                )
                worker.communicate("\n", timeout=TIMEOUT_S)
            assert worker.returncode == 0
            assert server.run("mine").complete is None, "the owner says when it is over"
        finally:
            owner.kill()


@pytest.mark.process
@pytest.mark.slow
def test_a_server_that_is_away_is_a_warning(server: WandbServer, tmp_path: Path) -> None:
    server.fail(500)
    script = WORKER.replace("interval_s=0.2", "timeout_s=1").replace("range(2)", "range(1)")
    with start(script, server, tmp_path, json.dumps(SHARED), "trainer") as worker:
        said, _ = worker.communicate("\n", timeout=TIMEOUT_S)
    assert said.strip().splitlines()[-1] == "[False]"
    assert worker.returncode == 0


def test_workers_of_other_roles_and_of_runs_without_it_join_nothing() -> None:
    assert not join(SHARED, run="r", role="generator")
    assert not join({"mode": "online"}, run="r", role="trainer")


def test_no_roles_are_all_roles() -> None:
    settings = SystemMetrics.parse({"mode": "shared", "system_metrics": {"enabled": True}})
    assert settings.are_for("anything")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (SHARED | {"mode": "online"}, "workers can join a run in shared mode only (got mode 'onl"),
        ({"system_metrics": {"enable": True}}, "system_metrics.enable: unknown option"),
        ({"system_metrics": {"enabled": "yes"}}, "system_metrics.enabled: must be true or false"),
        ({"system_metrics": {"roles": "trainer"}}, "system_metrics.roles: must be a list of str"),
        ({"system_metrics": {"gpu_device_ids": [True]}}, "gpu_device_ids: must be a list of int"),
        ({"system_metrics": True}, "system_metrics: must be a mapping"),
    ],
)
def test_a_wrong_configuration_is_named(config: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SystemMetrics.parse(config)
    assert complaint in str(raised.value)
