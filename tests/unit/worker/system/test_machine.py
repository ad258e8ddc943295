"""What is read of this machine, within the limits of a container."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from otel_rl.semconv.names import METRICS
from otel_rl.worker.system.host import Container, Machine

TICKS = os.sysconf("SC_CLK_TCK")


class Limited(Container):
    """A container with given shares."""

    def __init__(self, cpu: tuple[float, float] | None, memory: tuple[float, float] | None) -> None:
        self._shares = cpu, memory

    def cpu(self) -> tuple[float, float] | None:
        return self._shares[0]

    def memory(self) -> tuple[float, float] | None:
        return self._shares[1]


CPU = ("system.cpu.utilization", "", "")
STEAL = ("system.cpu.utilization", "cpu.mode", "steal")
LIMIT = ("system.memory.limit", "", "")
USED = ("system.memory.usage", "system.memory.state", "used")


def values(counts: Mapping[tuple[str, str, str], float], metric: str) -> dict[str, float]:
    return {word: value for (name, _, word), value in counts.items() if name == metric}


def test_without_limits_the_machine_is_read() -> None:
    reading = Machine(Limited(None, None)).read()
    assert reading.levels[LIMIT] == psutil.virtual_memory().total
    assert 0 < reading.levels[USED] < reading.levels[LIMIT]
    used_s, all_s = reading.shares[CPU]
    assert 0 < used_s < all_s
    (used,) = values(reading.levels, "system.filesystem.utilization").values()
    assert 0 < used <= 1
    assert values(reading.counts, "system.network.io").keys() == {"receive", "transmit"}
    assert values(reading.counts, "system.disk.io").keys() == {"read", "write"}
    found = {name for part in reading for name, _, _ in part}
    assert found <= METRICS.keys()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux tells stolen time there")
def test_stolen_time_is_that_which_the_kernel_tells() -> None:
    def kernel() -> tuple[float, float]:
        modes = [
            float(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]
        ]
        return modes[7] / TICKS, sum(modes[:8]) / TICKS

    before = kernel()
    reading = Machine(Limited((3.0, 0.5), None)).read()  # of the machine nevertheless
    after = kernel()
    stolen_s, machine_s = reading.shares[STEAL]
    assert before[0] <= stolen_s <= after[0]
    # The kernel's counters of one reading are not of one moment.
    assert before[1] - 1 <= machine_s <= after[1] + 1


def test_a_container_with_less_than_the_machine_is_read_instead() -> None:
    before_s = time.monotonic()
    reading = Machine(Limited((3.0, 0.5), (100, 1000))).read()
    used_s, all_s = reading.shares[CPU]
    assert used_s == 3.0
    assert 0.5 * before_s <= all_s <= 0.5 * time.monotonic()
    assert (reading.levels[USED], reading.levels[LIMIT]) == (100, 1000)


def test_limits_above_the_machine_are_none() -> None:
    total = psutil.virtual_memory().total
    reading = Machine(Limited((3.0, 1e6), (100, total * 2))).read()
    assert reading.levels[LIMIT] == total
    assert reading.shares[CPU][0] > 3.0


def test_bytes_over_hardware_are_not_counted_again_on_the_layers_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SimpleNamespace(bytes_recv=2, bytes_sent=1, packets_recv=7, packets_sent=9)
    interfaces = dict.fromkeys(("lo", "eth0", "eth1", "bond0", "veth1"), one)
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: interfaces)
    for name in ("eth0", "eth1"):
        (tmp_path / name / "device").mkdir(parents=True)
    found = Machine(network=tmp_path).read().counts
    assert values(found, "system.network.io") == {"receive": 4, "transmit": 2}
    # In a container no interface is hardware.
    found = Machine(network=tmp_path / "x").read().counts
    assert values(found, "system.network.io") == {"receive": 8, "transmit": 4}


def test_a_sandbox_without_disks_has_no_bytes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise NotImplementedError("neither /proc/diskstats nor /sys/block")

    monkeypatch.setattr(psutil, "disk_io_counters", refuse)
    assert values(Machine().read().counts, "system.disk.io") == {"read": 0, "write": 0}


def waited_s(pressure: Path) -> dict[str, float]:
    shares = Machine(pressure=pressure).read().shares.items()
    return {word: of[0] for (name, _, word), of in shares if name == "rl.host.pressure"}


def test_the_kernel_tells_for_how_long_work_has_waited(tmp_path: Path) -> None:
    for resource, total in (("cpu", 2_500_000), ("memory", 0), ("io", 7)):
        text = "{} avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
        (tmp_path / resource).write_text(text.format("some", total) + text.format("full", 99))
    assert waited_s(tmp_path) == {"cpu": 2.5, "memory": 0.0, "io": 7e-6}


def test_a_kernel_that_does_not_tell_pressure_is_read_without_it(tmp_path: Path) -> None:
    assert waited_s(tmp_path / "none") == {}
