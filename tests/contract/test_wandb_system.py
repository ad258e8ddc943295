"""A run's GPUs and hosts in W&B's System panels, by the real SDK against the stand-in server."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import wandb

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.system_panels import SystemPanels, native
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import Description, Device, ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.usefixtures("no_login")

NOON_NS = 1_700_000_000_250_000_000
EVENTS = "wandb-events.jsonl"

DEVICES = {
    "gpu/node1/gpu0": Device("GPU-a", "node1", "gpu0", "H100", ("trainer/0", "generator/0")),
    "gpu/node2/gpu0": Device("GPU-b", "node2", "gpu0", "H100", ("trainer/1",)),
    "host/node1": Device("host:node1", "node1", "", "", ("trainer/0",)),
    "host/node2": Device("host:node2", "node2", "", "", ("trainer/1",)),
}
ROW = Row(
    0,
    3,
    NOON_NS,
    {
        "trainer/loss": 0.5,
        "gpu/trainer/utilization": 0.75,
        "gpu/node1/gpu0/utilization": 0.5,
        "gpu/node1/gpu0/memory/utilization": 0.25,
        "gpu/node1/gpu0/memory/usage": 1024.0,
        "gpu/node1/gpu0/power": 350.0,
        "gpu/node1/gpu0/power/limit": 700.0,
        "gpu/node1/gpu0/temperature": 60.0,
        "gpu/node1/gpu0/clock/frequency/sm": 1.98e9,
        "gpu/node1/gpu0/clock/frequency/memory": 2.6e9,
        "gpu/node1/gpu0/errors/ecc.corrected": 3.0,
        "gpu/node1/gpu0/errors/ecc.uncorrected": 0.0,
        "gpu/node2/gpu0/utilization": 1.0,
        "host/cpu/utilization": 0.5,
        "host/node1/cpu/utilization": 0.25,
        "host/node1/memory/limit": 16.0 * 2**30,
        "host/node1/memory/usage/used": 4.0 * 2**30,
        "host/node1/memory/utilization/used": 0.25,
        "host/node1/network/io/receive": 1500.0,
        "host/node1/network/io/transmit": 500.0,
        "host/node1/disk/io/read": 2.0 * 2**20,
        "host/node1/disk/io/write": 1.0 * 2**20,
        "host/node1/filesystem/usage/used": 10.0 * 2**30,
        "host/node1/filesystem/utilization/used": 0.5,
        "host/node2/cpu/utilization": 0.75,
    },
)
SHOWN = {
    "gpu.0.gpu/l:node1.trainer-0": 50.0,
    "gpu.0.memoryAllocated/l:node1.trainer-0": 25.0,
    "gpu.0.memoryAllocatedBytes/l:node1.trainer-0": 1024.0,
    "gpu.0.powerWatts/l:node1.trainer-0": 350.0,
    "gpu.0.enforcedPowerLimitWatts/l:node1.trainer-0": 700.0,
    "gpu.0.powerPercent/l:node1.trainer-0": 50.0,
    "gpu.0.temp/l:node1.trainer-0": 60.0,
    "gpu.0.smClock/l:node1.trainer-0": 1980.0,
    "gpu.0.memoryClock/l:node1.trainer-0": 2600.0,
    "gpu.0.correctedMemoryErrors/l:node1.trainer-0": 3.0,
    "gpu.0.uncorrectedMemoryErrors/l:node1.trainer-0": 0.0,
    "gpu.0.gpu/l:node2.trainer-1": 100.0,
    "cpu/l:node1": 25.0,
    "memory_percent/l:node1": 25.0,
    "proc.memory.availableMB/l:node1": 12288.0,
    "network.recv/l:node1": 1500.0,
    "network.sent/l:node1": 500.0,
    "disk.in/l:node1": 2.0,
    "disk.out/l:node1": 1.0,
    "disk./.usageGB/l:node1": 10.0,
    "disk./.usagePercent/l:node1": 50.0,
    "cpu/l:node2": 75.0,
}


def info(directory: Path, **attributes: str) -> RunInfo:
    key = ExperimentKey("grpo")
    run = run_id(key.experiment, key.trial)
    described = Description(devices=DEVICES)
    return RunInfo(key, run, directory, tuple(attributes.items()), description=described)


def session(run: RunInfo) -> None:
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write([ROW])
        writer.close(exit_code=0)


def system_stream(server: WandbServer, run: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in server.run(run).lines(EVENTS)]


def test_values_get_the_names_and_units_of_wandb() -> None:
    assert native(ROW, DEVICES) == pytest.approx(SHOWN)


def test_parts_of_a_device_and_devices_without_a_number_are_told_apart() -> None:
    devices = {
        "gpu/n/gpu1": Device("GPU-a", "n", "gpu1", "", ("trainer/0",)),
        "gpu/n/gpu1.mig0": Device("MIG-a", "n", "gpu1.mig0", "", ("trainer/0",)),
        "gpu/n/ab12": Device("GPU-b", "n", "ab12", "", ()),
    }
    row = replace(ROW, values={f"{prefix}/temperature": 1.0 for prefix in devices})
    assert set(native(row, devices)) == {
        "gpu.1.temp/l:n.trainer-0",
        "gpu.1.temp/l:n.mig0.trainer-0",
        "gpu.2.temp/l:n",
    }


@pytest.mark.process
def test_the_server_gets_the_keys_of_wandb_with_labels_and_the_time_of_the_row(
    server: WandbServer, tmp_path: Path
) -> None:
    run = info(tmp_path)
    session(run)
    (event,) = system_stream(server, run.run_id)
    shown = {key: value for key, value in event.items() if key.startswith("system.")}
    assert shown == pytest.approx({f"system.{key}": value for key, value in SHOWN.items()})
    assert event["_timestamp"] == pytest.approx(NOON_NS / 1e9)
    config = server.run(run.run_id).config["gpus"]
    assert isinstance(config, dict)
    assert config["value"]["gpu/node1/gpu0"]["workers"] == ["trainer/0", "generator/0"]
    assert not [prefix for prefix in config["value"] if prefix.startswith("host/")]


@pytest.mark.slow
@pytest.mark.process
def test_an_offline_run_has_them_too(tmp_path: Path) -> None:
    run = info(tmp_path)
    session(run)
    (path,) = run_directories(tmp_path, run.run_id)
    assert "gpu.0.gpu/l:node2.trainer-1" in read_offline_run(path).system


@pytest.mark.slow
@pytest.mark.process
def test_they_can_be_switched_off(server: WandbServer, tmp_path: Path) -> None:
    run = info(tmp_path, system_panels="false")
    session(run)
    assert system_stream(server, run.run_id) == []


def test_a_version_that_was_not_tried_gets_nothing_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wandb, "__version__", "0.99.0")
    panels = SystemPanels(_Run())
    panels.know(DEVICES)
    for _ in range(2):
        panels.send(ROW)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "W&B 0.99.0 was not tried" in caplog.text


def test_an_interface_that_is_not_as_it_was_gets_nothing_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    panels = SystemPanels(_Run())
    panels.know(DEVICES)
    for _ in range(2):
        panels.send(ROW)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "AttributeError" in caplog.text


class _Run(wandb.Run):
    """A run of a W&B whose interface has gone."""

    def __init__(self) -> None:
        self._interface = None

    def __del__(self) -> None:
        """There is nothing to end."""
