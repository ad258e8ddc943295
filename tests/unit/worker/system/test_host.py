"""The host as measurements of the one process that reports it."""

from collections.abc import Iterator, Mapping

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import HostSettings
from otel_rl.worker.system import host
from otel_rl.worker.system.host import HostRecorder, HostTurn, Reading

GIB = 1 << 30

CPU = ("system.cpu.utilization", "", "")
STEAL = ("system.cpu.utilization", "cpu.mode", "steal")
WAITS = ("rl.host.pressure", "rl.host.resource", "cpu")
RECEIVED = ("system.network.io", "network.io.direction", "receive")
READ = ("system.disk.io", "disk.io.direction", "read")

FIRST = Reading(
    {("system.memory.limit", "", ""): 16 * GIB},
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
    counters = {
        name for name, spec in names.METRICS.items() if spec.instrument is Instrument.COUNTER
    }
    assert found.keys() & counters == {"system.disk.io", "system.network.io"}
    assert found.keys() <= names.METRICS.keys()


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
