"""Workers of two hosts: the System panels of the run show each host, and go on when one dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, clean_environment
from tests.support.waiting import wait_until
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.process

TIMEOUT_S = 200.0
HOSTS = ("node1", "node2")

WORKER = """
import multiprocessing, os, pathlib, sys, time
import otel_rl

def child():
    otel_rl.init(role="reward", resource_attributes={"host.name": host})
    tell("reward")
    wait()

def tell(role):
    part = pathlib.Path(f"{host}.{role}.part")
    part.write_text(str(os.getpid()))
    part.rename(f"{host}.{role}")

def wait():
    while not pathlib.Path("seen").exists():
        time.sleep(0.05)

role, host = sys.argv[1:]
otel_rl.init(role=role, resource_attributes={"host.name": host})
tell(role)
if role == "trainer":
    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
wait()
"""

LAUNCH = """
import subprocess, sys
workers = [
    subprocess.Popen([sys.executable, "worker.py", role, host])
    for host in sys.argv[1:]
    for role in ("trainer", "generator")
]
for worker in workers:
    worker.wait()
"""

CONFIG = """
[tracker.options]
transmit_interval_s = 1

[rows]
window = 2
"""


@dataclass
class Running:
    """A run that goes on until the end of the tests."""

    directory: Path
    server: WandbServer

    def system(self) -> Sequence[Mapping[str, float]]:
        runs = map(self.server.run, self.server.run_ids())
        return [json.loads(line) for run in runs for line in run.lines("wandb-events.jsonl")]

    def rows(self) -> Sequence[Mapping[str, float]]:
        return [row for run in self.server.run_ids() for row in self.server.history(run)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("hosts")
    (directory / "worker.py").write_text(WORKER)
    (directory / "launch.py").write_text(LAUNCH)
    (directory / "bridge.toml").write_text(CONFIG)
    with WandbServer() as server:
        environment = clean_environment(
            directory,
            **server.environment(),
            WANDB_ERROR_REPORTING="false",
            OTEL_RL_HOST="on",
            OTEL_RL_HOST_INTERVAL="1000",
            TMPDIR=str(directory),
        )
        command = ["run", "--experiment", "hosts", "--config", "bridge.toml", "--"]
        with subprocess.Popen(
            [*OTEL_RL, *command, sys.executable, "launch.py", *HOSTS],
            cwd=directory,
            env=environment,
        ) as process:
            try:
                yield Running(directory, server)
                (directory / "seen").touch()
                assert process.wait(TIMEOUT_S) == 0
            finally:
                (directory / "seen").touch()
                process.kill()


@pytest.mark.slow
def test_each_host_is_in_the_system_panels_and_in_the_rows(running: Running) -> None:
    wanted = {
        f"system.{key}/l:{host}"
        for host in HOSTS
        for key in ("cpu", "memory_percent", "network.recv", "disk.in", "disk./.usagePercent")
    }
    wait_until(
        lambda: wanted <= {key for line in running.system() for key in line},
        "both hosts in the System panels",
        timeout_s=TIMEOUT_S,
    )
    shown = {key: value for line in running.system() for key, value in line.items()}
    assert all(0 < shown[f"system.memory_percent/l:{host}"] <= 100 for host in HOSTS)
    keys = {f"host/{host}/network/io/receive/rate" for host in HOSTS} | {"host/cpu/utilization"}
    wait_until(
        lambda: keys <= {key for row in running.rows() for key in row},
        "both hosts in the rows",
        timeout_s=TIMEOUT_S,
    )


@pytest.mark.slow
def test_when_the_reporter_of_a_host_is_killed_another_worker_goes_on(running: Running) -> None:
    files = {
        role: running.directory / f"node1.{role}" for role in ("trainer", "generator", "reward")
    }
    for role, file in files.items():
        wait_until(file.exists, f"the {role} of node1", timeout_s=TIMEOUT_S)
    for role in ("trainer", "generator"):
        os.kill(int(files[role].read_text()), signal.SIGKILL)
    # What is left of the host is the child that the trainer forked.
    before = len(running.system())
    wait_until(
        lambda: any("system.cpu/l:node1" in line for line in running.system()[before + 3 :]),
        "more of node1",
        timeout_s=TIMEOUT_S,
    )
