"""The host: what is read of it, which process reports it, and as what measurements."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import HostSettings
from otel_rl.worker.system import host
from otel_rl.worker.system.host import Container, HostRecorder, HostTurn, Machine, Reading
from tests.support.forks import forked

TICKS = os.sysconf("SC_CLK_TCK")

GIB = 1 << 30

CPU = ("system.cpu.utilization", "", "")
STEAL = ("system.cpu.utilization", "cpu.mode", "steal")
WAITS = ("rl.host.pressure", "rl.host.resource", "cpu")
RECEIVED = ("system.network.io", "network.io.direction", "receive")
READ = ("system.disk.io", "disk.io.direction", "read")
LIMIT = ("system.memory.limit", "", "")
USED = ("system.memory.usage", "system.memory.state", "used")

FIRST = Reading(
    {LIMIT: 16 * GIB},
    {CPU: (10.0, 100.0), STEAL: (5.0, 400.0), WAITS: (3.0, 100.0)},
    {RECEIVED: 1000, READ: 7},
)
SECOND = FIRST._replace(
    shares={CPU: (13.0, 104.0), STEAL: (7.0, 416.0), WAITS: (6.0, 112.0)},
    counts={RECEIVED: 1500, READ: 8},
)


class World:
    """A recorder over readings that a test gives, at its own time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading = FIRST
        self.now_s = 0.0
        self.reads = 0
        self.error: OSError | None = None
        self.has_turn = True
        self.container = Container()
        self.drops = Drops()
        monkeypatch.setattr(host, "Machine", lambda: self)
        monkeypatch.setattr(HostTurn, "take", lambda *_: self.has_turn)
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader])
        self.recorder = HostRecorder(
            self._provider.get_meter("test"), Guard(self.drops), lambda: self.now_s
        )

    def read(self) -> Reading:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.reading

    def collect(self, *, after_s: float, reading: Reading) -> Mapping[str, list[NumberDataPoint]]:
        self.now_s += after_s
        self.reading = reading
        data = self._reader.get_metrics_data()
        return {
            metric.name: [p for p in metric.data.data_points if isinstance(p, NumberDataPoint)]
            for of in (data.resource_metrics if data else ())
            for scope in of.scope_metrics
            for metric in scope.metrics
            if "process" not in metric.name
        }

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(monkeypatch)
    yield found
    found.close()


def told(points: Mapping[str, list[NumberDataPoint]]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for name, of in points.items():
        for point in of:
            attributes = dict(point.attributes or {})
            assert attributes.pop("host.name") == "node1"
            found[name, *map(str, attributes.values())] = point.value
    return found


def test_a_host_is_told_with_shares_of_the_interval_and_counts_since_the_start(
    world: World,
) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    assert world.collect(after_s=0, reading=FIRST) == {}
    assert told(world.collect(after_s=15, reading=SECOND)) == {
        ("system.memory.limit",): 16 * GIB,
        ("system.cpu.utilization",): 0.75,
        ("system.cpu.utilization", "steal"): 0.125,
        ("rl.host.pressure", "cpu"): 0.25,
        ("system.network.io", "receive"): 500,
        ("system.disk.io", "read"): 1,
    }


def test_what_a_system_tells_at_one_reading_only_has_no_share(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=FIRST._replace(shares={CPU: (10.0, 100.0)}))
    found = told(world.collect(after_s=15, reading=SECOND))
    assert ("system.cpu.utilization",) in found
    assert ("system.cpu.utilization", "steal") not in found


def test_the_registry_knows_each_metric_by_this_instrument(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=FIRST)
    found = world.collect(after_s=15, reading=SECOND)
    counters = {name for name, spec in METRICS.items() if spec.instrument is Instrument.COUNTER}
    assert found.keys() & counters == {"system.disk.io", "system.network.io"}
    assert found.keys() <= METRICS.keys()


def test_the_machine_is_read_once_an_interval_however_often_is_exported(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    for _ in range(60):
        world.collect(after_s=1, reading=SECOND)
    assert world.reads == 4
    assert world.collect(after_s=0, reading=SECOND) == {}  # told once


@pytest.mark.parametrize("has_turn", [True, False])
def test_only_the_process_whose_turn_it_is_reads(world: World, has_turn: bool) -> None:
    world.has_turn = has_turn
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=FIRST)
    assert bool(world.collect(after_s=15, reading=SECOND)) is has_turn


def test_a_process_that_takes_over_counts_from_there(world: World) -> None:
    world.has_turn = False
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=FIRST)
    world.has_turn = True
    assert world.collect(after_s=15, reading=SECOND) == {}
    later = SECOND._replace(counts={RECEIVED: 1507, READ: 8})
    assert told(world.collect(after_s=15, reading=later))["system.network.io", "receive"] == 7


def test_a_device_that_is_gone_makes_no_negative_count(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=SECOND)
    found = told(world.collect(after_s=15, reading=FIRST))
    assert found["system.network.io", "receive"] == 0


def test_a_cpu_whose_time_stood_still_has_no_utilization(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=FIRST)
    found = told(world.collect(after_s=15, reading=FIRST))
    assert ("system.cpu.utilization",) not in found
    assert ("system.memory.limit",) in found


def test_a_reading_that_fails_is_counted_and_tried_again(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.error = OSError("no /proc")
    assert world.collect(after_s=0, reading=FIRST) == {}
    assert world.drops.counts() == {DropReason.INTERNAL: 1}
    world.error = None
    world.collect(after_s=15, reading=FIRST)
    assert world.collect(after_s=15, reading=SECOND)


def test_switched_off_nothing_is_read(world: World) -> None:
    world.recorder.start(HostSettings(enabled=False), "node1", "run")
    assert world.collect(after_s=100, reading=FIRST) == {}
    assert world.reads == 0


def test_after_a_fork_nothing_is_read_until_the_child_is_a_worker(world: World) -> None:
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=0, reading=FIRST)
    world.recorder.forget()
    assert world.collect(after_s=15, reading=SECOND) == {}
    assert world.reads == 1
    world.recorder.start(HostSettings(interval_s=15), "node1", "run")
    world.collect(after_s=15, reading=SECOND)
    assert told(world.collect(after_s=15, reading=SECOND))["system.network.io", "receive"] == 0


# What is read of the machine, within the limits of a container


class Limited(Container):
    """A container with given shares."""

    def __init__(self, cpu: tuple[float, float] | None, memory: tuple[float, float] | None) -> None:
        self._shares = cpu, memory

    def cpu(self) -> tuple[float, float] | None:
        return self._shares[0]

    def memory(self) -> tuple[float, float] | None:
        return self._shares[1]


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


# Limits of the container, from the files of its cgroups


def container(directory: Path, membership: str, files: dict[str, str]) -> Container:
    (directory / "membership").write_text(membership)
    for path, text in files.items():
        file = directory / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return Container(directory / "root", directory / "membership")


def test_the_limits_of_a_container(tmp_path: Path) -> None:
    files = {
        "cpu.max": "250000 100000",
        "cpu.stat": "usage_usec 3000000\nuser_usec 1",
        "memory.max": str(8 * GIB),
        "memory.current": str(5 * GIB),
        "memory.stat": f"anon 1\ninactive_file {GIB}",
    }
    found = container(tmp_path, "0::/", files)
    assert found.cpu() == (3.0, 2.5)
    assert found.memory() == (4 * GIB, 8 * GIB)


def test_a_limit_above_the_process_s_own_group_counts_with_the_use_there(tmp_path: Path) -> None:
    files = {
        "pod/app/memory.max": "max",
        "pod/app/memory.current": str(GIB),
        "pod/memory.max": str(4 * GIB),
        "pod/memory.current": str(2 * GIB),
        "memory.max": str(6 * GIB),
        "memory.current": str(3 * GIB),
    }
    found = container(tmp_path, "0::/pod/app", files)
    assert found.memory() == (2 * GIB, 4 * GIB)


def test_the_limits_of_a_container_whose_path_is_the_machine_s(tmp_path: Path) -> None:
    files = {"memory.max": str(2 * GIB), "memory.current": str(GIB)}
    found = container(tmp_path, "0::/docker/abc", files)
    assert found.memory() == (GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("", {}),
        ("0::/", {}),
        ("0::/", {"cpu.max": "max 100000", "cpu.stat": "usage_usec 1", "memory.max": "max"}),
        ("0::/", {"cpu.max": "100000 0", "memory.max": "8", "memory.current": "nonsense"}),
        ("0::/../..", {}),
        ("nonsense", {}),
    ],
)
def test_what_has_no_limit_or_cannot_be_read_is_none(
    tmp_path: Path, membership: str, files: dict[str, str]
) -> None:
    found = container(tmp_path, membership, files)
    assert found.cpu() is None
    assert found.memory() is None


# Which process of a host reports it


HOLD = """
import sys
from otel_rl.worker.system.host import HostTurn
turn = HostTurn()
print(turn.take(sys.argv[1], sys.argv[2]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def holder(host: str = "node1", run: str = "run") -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, host, run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


@pytest.mark.process
@pytest.mark.usefixtures("own_folder")
def test_a_second_process_has_it_once_the_first_was_killed() -> None:
    turn = HostTurn()
    with holder() as process:
        try:
            assert not turn.take("node1", "run")
        finally:
            process.kill()
            process.wait()
    assert turn.take("node1", "run")


@pytest.mark.process
@pytest.mark.usefixtures("own_folder")
def test_hosts_and_runs_have_their_own() -> None:
    with holder() as process:
        try:
            assert HostTurn().take("node2", "run")
            assert HostTurn().take("node1", "other")
            assert not HostTurn().take("node1", "run")
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.usefixtures("own_folder")
def test_what_is_given_back_another_process_takes() -> None:
    turn = HostTurn()
    assert turn.take("node1", "run")
    turn.give_back()
    with holder() as process:
        process.kill()


@pytest.mark.process
@pytest.mark.usefixtures("own_folder")
def test_a_forked_child_neither_has_it_nor_ends_it() -> None:
    turn = HostTurn()
    assert turn.take("node1", "run")

    def child() -> None:
        turn.give_back()
        assert not HostTurn().take("node1", "run")

    assert forked(child) == 0
    script = HOLD.replace("sys.stdin.read()", "")
    found = subprocess.run(
        [sys.executable, "-c", script, "node1", "run"], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"


def test_where_the_file_cannot_be_opened_each_process_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"otel_rl-{os.getuid()}.lock").mkdir()
    assert HostTurn().take("node1", "run")
