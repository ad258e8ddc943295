"""Eight workers on two hosts with four GPUs each, which all workers of the host share."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.gpu.machine import Machine, compiler, gpu, library, uuid_of
from tests.process.commands import OTEL_RL, clean_environment
from tests.support.waiting import wait_until
from tests.support.wandb_server import WandbServer

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        compiler() is None, reason="the stand-in for the NVIDIA driver needs a C compiler"
    ),
]

TIMEOUT_S = 200.0
HOSTS = ("node1", "node2")

LIMIT, ALL_BYTES = "gpu/memory/limit", 8 * (80 << 30)

# The trainers and generators of a host share its devices.
LAUNCH = """
import os, subprocess, sys

hosts = sys.argv[1:]
workers = []
for host in hosts:
    for place in range(4):
        role, index = ("trainer", "generator")[place % 2], place // 2 + 2 * hosts.index(host)
        workers.append(
            subprocess.Popen(
                [sys.executable, "worker.py", role, str(index), host],
                env={**os.environ, "NVML_SCRIPT": f"{host}/nvml.script"},
            )
        )
sys.exit(max(worker.wait() for worker in workers))
"""

WORKER = """
import pathlib, sys, time

import otel_rl

role, index, host = sys.argv[1:]
otel_rl.init(
    role=role,
    index=int(index),
    count=4,
    gpu={"interval_s": 0.25},
    export_interval_s=0.25,
    resource_attributes={"host.name": host},
)
while not pathlib.Path("seen").exists():
    time.sleep(0.05)
"""

CONFIG = """
[tracker.options]
transmit_interval_s = 1

[rows]
window = 2
"""


@dataclass
class Ran:
    """What the stand-in W&B server has of the run."""

    rows: Sequence[Mapping[str, float]]
    system: Sequence[Mapping[str, float]]
    config: Mapping[str, Mapping[str, object]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    directory = tmp_path_factory.mktemp("gpus")
    (directory / "launch.py").write_text(LAUNCH)
    (directory / "worker.py").write_text(WORKER)
    (directory / "bridge.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as monkeypatch, WandbServer() as server:
        for host in HOSTS:
            (directory / host).mkdir()
            machine = Machine(directory / host, monkeypatch.setenv, load=False)
            machine.set(*(gpu(number, host) for number in range(4)))
        environment = clean_environment(
            directory,
            **server.environment(),
            WANDB_ERROR_REPORTING="false",
            LD_LIBRARY_PATH=str(library()),
        )
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        command = ["run", "--experiment", "gpus", "--config", "bridge.toml", "--"]
        with subprocess.Popen(
            [*OTEL_RL, *command, sys.executable, "launch.py", *HOSTS],
            cwd=directory,
            env=environment,
        ) as process:
            try:
                wait_until(
                    lambda: any(is_whole(row) for row in rows_of(server)),
                    "a row with all devices",
                    timeout_s=TIMEOUT_S,
                )
                (directory / "seen").touch()
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()
        (run_id,) = server.run_ids()
        run = server.run(run_id)
        config = run.config["gpus"]
        assert isinstance(config, dict)
        system = [json.loads(line) for line in run.lines("wandb-events.jsonl")]
        yield Ran(server.history(run_id), system, config["value"])


def rows_of(server: WandbServer) -> Sequence[Mapping[str, float]]:
    return [row for run_id in server.run_ids() for row in server.history(run_id)]


def is_whole(row: Mapping[str, float]) -> bool:
    """Whether every device has said everything. In the first and last row some have not."""
    return (
        row.get("gpu/count") == 8 and "gpu/node1/gpu0/energy" in row and row.get(LIMIT) == ALL_BYTES
    )


def whole(ran: Ran) -> Mapping[str, float]:
    return next(row for row in ran.rows if is_whole(row))


@pytest.mark.slow
def test_exactly_eight_devices_are_in_the_run_and_none_twice(ran: Ran) -> None:
    found = {
        match[1]
        for row in ran.rows
        for key in row
        if (match := re.fullmatch(r"(gpu/[^/]+/[^/]+)/temperature", key))
    }
    assert found == {f"gpu/{host}/gpu{number}" for host in HOSTS for number in range(4)}
    assert max(row.get("gpu/count", 0) for row in ran.rows) == 8


def test_what_is_added_up_is_added_once_for_each_device(ran: Ran) -> None:
    assert max(row.get(LIMIT, 0) for row in ran.rows) == ALL_BYTES
    row = whole(ran)
    assert row["gpu/node2/gpu3/memory/usage"] == 20 << 30


def test_shares_are_means_over_devices(ran: Ran) -> None:
    row = whole(ran)
    # The end of a window may part the samples of one round.
    assert row["gpu/utilization"] == pytest.approx(0.25, abs=0.05)
    assert row["gpu/node2/gpu3/utilization"] == pytest.approx(0.4)


def test_the_run_says_of_each_device_who_shares_it(ran: Ran) -> None:
    for place, host in enumerate(HOSTS):
        for number in range(4):
            device = ran.config[f"gpu/{host}/gpu{number}"]
            assert device["uuid"] == uuid_of(number, host)
            workers = device["workers"]
            assert isinstance(workers, list)
            assert sorted(workers) == [
                f"{role}/{2 * place + index}"
                for role in ("generator", "trainer")
                for index in range(2)
            ]


def test_the_system_panels_show_each_device_once_under_the_keys_of_wandb(ran: Ran) -> None:
    shown = {key for line in ran.system for key in line if re.search(r"gpu\.\d\.gpu/l:", key)}
    assert len(shown) == 8
    for host in HOSTS:
        for number in range(4):
            (key,) = [k for k in shown if k.startswith(f"system.gpu.{number}.gpu/l:{host}.")]
            assert re.fullmatch(rf".*/l:{host}\.(trainer|generator)-\d", key)
