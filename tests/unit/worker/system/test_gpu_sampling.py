"""The real pynvml, over a library whose answers are written by the tests."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

import otel_rl
from otel_rl.semconv.names import METRICS
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.settings import GpuSettings
from otel_rl.worker.system.sampler import GpuSampler
from tests.gpu.machine import NAME, Machine, compiler, gpu, uuid_of
from tests.support.otlp_sink import Sink, pairs
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        compiler() is None, reason="the stand-in for the NVIDIA driver needs a C compiler"
    ),
]

LOST, NO_DRIVER, NOT_SUPPORTED, NO_PERMISSION = "!15", "!9", "!3", "!4"
TIMEOUT_S = 60.0
OFTEN = GpuSettings(enabled=True, interval_s=0.01)

Key = tuple[object, ...]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Machine(tmp_path, monkeypatch.setenv)


class Sampled:
    """Everything that a sampler has recorded, the last value of each series."""

    def __init__(self, provider: BufferedMeterProvider, drops: Drops) -> None:
        self.provider = provider
        self.drops = drops
        self.sampler = GpuSampler(provider.get_meter("test"), Guard(drops), retry_s=0.05)
        self.values: dict[Key, float] = {}
        self.units: dict[str, str] = {}
        self.attributes: dict[str, Mapping[str, object]] = {}

    def start(self, settings: GpuSettings = OFTEN, role: str = "trainer") -> None:
        self.sampler.start(settings, role)

    def collect(self) -> Mapping[Key, float]:
        for request in self.provider.collect():
            for resource in ExportMetricsServiceRequest.FromString(
                request.payload
            ).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self.units[metric.name] = metric.unit
                        kind = metric.WhichOneof("data") or "gauge"
                        for point in getattr(metric, kind).data_points:
                            attributes = pairs(point.attributes)
                            if "hw.id" not in attributes:
                                continue
                            self.attributes[str(attributes["hw.id"])] = attributes
                            value = getattr(point, point.WhichOneof("value") or "as_int")
                            self.values[self._key(metric.name, attributes)] = value
        return self.values

    def value(self, name: str, device: str = uuid_of(0), *others: str) -> float | None:
        return self.collect().get((name, device, *others))

    def wait_for(self, condition: Callable[[], object], what: str = "the samples") -> None:
        wait_until(condition, what, timeout_s=TIMEOUT_S)

    def devices(self) -> set[object]:
        return {key[1] for key in self.collect()}

    def begin_anew(self) -> None:
        self.collect()
        self.values.clear()

    @staticmethod
    def _key(name: str, attributes: Mapping[str, object]) -> Key:
        others = {k: v for k, v in attributes.items() if not k.startswith("hw.")}
        return (name, attributes["hw.id"], *(value for _, value in sorted(others.items())))


def samplers() -> list[threading.Thread]:
    """The threads that sample. None may outlive its test."""
    return [thread for thread in threading.enumerate() if thread.name == "otel-rl-gpu"]


@pytest.fixture
def sampled(provider: BufferedMeterProvider, drops: Drops) -> Iterator[Sampled]:
    sampled = Sampled(provider, drops)
    yield sampled
    sampled.sampler.stop(timeout_s=TIMEOUT_S)
    assert {*drops.counts()} <= {DropReason.NO_GPU}


def test_a_device_says_everything_in_the_units_of_the_registry(
    machine: Machine, sampled: Sampled
) -> None:
    machine.set(gpu(0))
    sampled.start()
    expected = {
        ("hw.gpu.utilization",): pytest.approx(0.1),
        ("hw.gpu.memory.usage",): 20 << 30,
        ("hw.gpu.memory.limit",): 80 << 30,
        ("hw.gpu.memory.utilization",): 0.25,
        ("hw.power",): 300.0,
        ("rl.gpu.power.limit",): 700.0,
        ("hw.energy",): 0.0,
        ("hw.temperature",): 60,
        ("rl.gpu.clock.frequency", "sm"): 1980e6,
        ("rl.gpu.clock.frequency", "memory"): 2619e6,
        ("rl.gpu.throttled", "power_cap"): 1.0,
        ("rl.gpu.throttled", "thermal"): 0.0,
        ("rl.gpu.throttled", "hw_slowdown"): 0.0,
        ("rl.gpu.throttled", "power_brake"): 0.0,
        ("rl.gpu.throttled", "sync_boost"): 0.0,
        ("hw.errors", "ecc.corrected"): 0,
        ("hw.errors", "ecc.uncorrected"): 0,
        ("hw.gpu.io", "receive", "nvlink"): 0,
        ("hw.gpu.io", "transmit", "nvlink"): 0,
        ("rl.gpu.process.memory.usage",): 4 << 30,
    }
    # What is collected first may be the first half of a round.
    sampled.wait_for(lambda: len(sampled.collect()) >= len(expected))
    found = {(key[0], *key[2:]): value for key, value in sampled.values.items()}
    assert found == expected
    assert {name: METRICS[name].unit for name in sampled.units if name in METRICS} == {
        name: unit for name, unit in sampled.units.items() if name in METRICS
    }
    shown = sampled.attributes[uuid_of(0)]
    assert (shown["hw.name"], shown["hw.model"], shown["hw.type"]) == ("gpu0", NAME, "gpu")


def test_counters_count_what_happened_since_the_worker_began(
    machine: Machine, sampled: Sampled
) -> None:
    machine.set(gpu(0))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.energy") == 0)
    machine.set(gpu(0, energy=5_000_002_000, ecc_corrected=5, field_138=12))
    sampled.wait_for(lambda: sampled.value("hw.energy") == 2.0)
    sampled.wait_for(lambda: sampled.value("hw.errors", uuid_of(0), "ecc.corrected") == 2)
    nvlink = ("hw.gpu.io", uuid_of(0), "transmit", "nvlink")
    sampled.wait_for(lambda: sampled.value(*nvlink) == 2 * 1024)


def test_memory_that_the_driver_reserves_for_itself_is_not_in_use(
    machine: Machine, sampled: Sampled
) -> None:
    machine.set(gpu(0, memory_used=1 << 30, memory_reserved=1 << 29))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.gpu.memory.usage") == 1 << 30)


def test_a_driver_that_does_not_tell_what_it_reserves_tells_the_memory(
    machine: Machine, sampled: Sampled
) -> None:
    machine.set(gpu(0, memory_reserved=NOT_SUPPORTED))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.gpu.memory.usage") == 20 << 30)


def test_a_reset_of_a_device_takes_nothing_from_its_counters(
    machine: Machine, sampled: Sampled
) -> None:
    machine.set(gpu(0, energy=9_000))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.energy") == 0)
    machine.set(gpu(0, energy=10_000))
    sampled.wait_for(lambda: sampled.value("hw.energy") == 1.0)
    machine.set(gpu(0, energy=500))
    sampled.wait_for(lambda: sampled.value("hw.energy") == 1.5)


def test_what_a_device_does_not_support_is_left_out_and_said_once(
    machine: Machine, sampled: Sampled, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "otel_rl")
    machine.set(gpu(0, power=NOT_SUPPORTED, throttle=NOT_SUPPORTED), gpu(1, power=NOT_SUPPORTED))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.temperature", uuid_of(0)) == 60)
    sampled.wait_for(lambda: sampled.value("hw.temperature", uuid_of(1)) == 60)
    assert sampled.value("hw.power") is None
    said = [r.message for r in caplog.records if "does not report its power:" in r.message]
    assert len(said) == 1
    assert NAME in said[0]


def test_of_a_question_that_is_supported_in_part_the_part_is_recorded(
    machine: Machine, sampled: Sampled
) -> None:
    machine.set(gpu(0, memory_clock=NOT_SUPPORTED))
    sampled.start()
    sm = ("rl.gpu.clock.frequency", uuid_of(0), "sm")
    sampled.wait_for(lambda: sampled.value(*sm) == 1980e6)
    machine.set(gpu(0, memory_clock=NOT_SUPPORTED, sm_clock=1000))
    sampled.wait_for(lambda: sampled.value(*sm) == 1000e6)
    assert sampled.value("rl.gpu.clock.frequency", uuid_of(0), "memory") is None


def test_a_device_that_is_gone_is_said_and_the_others_go_on(
    machine: Machine, sampled: Sampled, caplog: pytest.LogCaptureFixture
) -> None:
    machine.set(gpu(0), gpu(1))
    sampled.start()
    sampled.wait_for(lambda: sampled.devices() == {uuid_of(0), uuid_of(1)})
    machine.set(gpu(0, handle=LOST, **dict.fromkeys(["utilization"], LOST)), gpu(1, utilization=77))
    sampled.wait_for(lambda: sampled.value("hw.gpu.utilization", uuid_of(1)) == 0.77)
    sampled.begin_anew()
    sampled.wait_for(lambda: uuid_of(1) in sampled.devices())
    assert uuid_of(0) not in sampled.devices()
    assert f"gpu0 ({uuid_of(0)}) is gone" in caplog.text
    machine.set(gpu(0), gpu(1))
    sampled.wait_for(lambda: uuid_of(0) in sampled.devices(), "the device to be found again")


def test_a_driver_that_is_reset_is_found_again(machine: Machine, sampled: Sampled) -> None:
    machine.set(gpu(0))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.power") == 300)
    machine.set({"init": NO_DRIVER}, gpu(0, utilization="!1"))
    sampled.begin_anew()
    machine.set(gpu(0, power=100_000))
    sampled.wait_for(lambda: sampled.value("hw.power") == 100)


def test_the_parts_of_a_divided_gpu_are_devices_that_know_their_parent(
    machine: Machine, sampled: Sampled
) -> None:
    part = {"0/1.uuid": "MIG-1", "0/1.name": NAME, "0/1.gi": 2, "0/1.ci": 0}
    memory = {"0/1.memory_used": 1 << 30, "0/1.memory_total": 4 << 30}
    machine.set(gpu(0, mig=1, utilization=NOT_SUPPORTED), part, memory, {"count": 1})
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.gpu.memory.utilization", "MIG-1") == 0.25)
    sampled.wait_for(lambda: sampled.value("hw.power") == 300)
    shown = sampled.attributes["MIG-1"]
    assert (shown["hw.name"], shown["hw.parent"]) == ("gpu0.mig1", uuid_of(0))
    assert sampled.value("hw.power", "MIG-1") is None


def test_only_devices_that_the_process_can_see_are_sampled(
    machine: Machine, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.set(gpu(0), gpu(1), gpu(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"2,{uuid_of(0)}")
    sampled.start()
    sampled.wait_for(lambda: sampled.devices() == {uuid_of(0), uuid_of(2)})
    assert uuid_of(1) not in sampled.devices()


def test_gpus_of_other_containers_are_neither_sampled_nor_numbered(
    machine: Machine, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_of_eight(power: int) -> None:
        own = {2: {"power": power}, 5: {"power": power}}
        machine.set(*(gpu(n, **own.get(n, {"handle": NO_PERMISSION})) for n in range(8)))

    two_of_eight(100_000)
    sampled.start()
    sampled.wait_for(lambda: sampled.devices() == {uuid_of(2), uuid_of(5)})
    assert sampled.attributes[uuid_of(5)]["hw.name"] == "gpu5"
    sampled.sampler.stop(timeout_s=TIMEOUT_S)
    sampled.begin_anew()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    two_of_eight(200_000)
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.power", uuid_of(5)) == 200)
    assert sampled.devices() == {uuid_of(5)}


def test_a_query_that_hangs_is_told_at_the_end_and_samples_go_on_once_it_returns(
    machine: Machine, sampled: Sampled, caplog: pytest.LogCaptureFixture
) -> None:
    machine.set(gpu(0, temperature="?"))
    sampled.start()
    sampled.wait_for(machine.hangs.exists, "the query to hang")
    assert sampled.devices() == set()
    machine.set(gpu(0, temperature=61))
    sampled.wait_for(lambda: sampled.value("hw.temperature") == 61)
    assert "does not answer a query" not in caplog.text
    machine.hangs.unlink()
    machine.set(gpu(0, temperature="?"))
    sampled.wait_for(machine.hangs.exists, "the query to hang")
    sampled.sampler.stop(timeout_s=0.01)
    assert "does not answer a query" in caplog.text
    machine.set(gpu(0))
    sampled.wait_for(lambda: not samplers(), "the end of the sampler")


def test_memory_of_other_processes_is_not_the_worker_s(machine: Machine, sampled: Sampled) -> None:
    machine.set(gpu(0, process_pid=2))
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.power") == 300)
    assert sampled.value("rl.gpu.process.memory.usage") is None


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"init": NO_DRIVER, "count": 0}, "Driver Not Loaded"),
        ({"count": 0}, "none is visible to the process"),
    ],
)
def test_why_there_is_no_gpu_is_counted_and_logged_once(
    machine: Machine,
    sampled: Sampled,
    caplog: pytest.LogCaptureFixture,
    answers: Mapping[str, object],
    why: str,
) -> None:
    machine.set(answers)
    for _ in range(3):
        sampled.start()
        sampled.wait_for(lambda: sampled.drops.counts())
        sampled.sampler.stop(timeout_s=TIMEOUT_S)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "otel_rl"]
    assert f"No GPU is sampled: {why}." in told
    assert sampled.drops.counts() == {DropReason.NO_GPU: 1}


def test_a_driver_that_does_not_answer_is_told_while_it_hangs(
    machine: Machine, provider: BufferedMeterProvider, drops: Drops
) -> None:
    machine.set(gpu(0, temperature="?"))
    sampler = GpuSampler(provider.get_meter("test"), Guard(drops), silent_s=0.01)
    sampler.start(OFTEN, "trainer")
    wait_until(machine.hangs.exists, "the query to hang", timeout_s=TIMEOUT_S)

    def told() -> bool:
        sampler.look()
        return bool(drops.counts())

    wait_until(told, "the driver to be told", timeout_s=TIMEOUT_S)
    assert drops.counts() == {DropReason.NO_GPU: 1}
    machine.set(gpu(0))
    sampler.stop(timeout_s=TIMEOUT_S)


def test_other_roles_do_not_sample(machine: Machine, sampled: Sampled) -> None:
    machine.set(gpu(0))
    sampled.start(GpuSettings(enabled=True, roles=("trainer",)), role="generator")
    sampled.start(GpuSettings(enabled=False), role="trainer")
    assert samplers() == []


def test_starting_and_stopping_are_idempotent(machine: Machine, sampled: Sampled) -> None:
    machine.set(gpu(0))
    for _ in range(3):
        sampled.start()
    assert len(samplers()) == 1
    for _ in range(3):
        sampled.sampler.stop(timeout_s=TIMEOUT_S)
    assert samplers() == []
    sampled.begin_anew()
    sampled.start()
    sampled.wait_for(lambda: sampled.value("hw.power") == 300)


def test_init_samples_and_shutdown_ends_it(
    machine: Machine, sink: Sink, clean_environment: None
) -> None:
    machine.set(gpu(0), gpu(1))
    otel_rl.init(
        experiment="exp",
        role="trainer",
        index=3,
        endpoint=sink.url,
        export_interval_s=0.05,
        gpu={"interval_s": 0.02},
    )
    try:
        sink.wait(lambda s: len(s.measurements("hw.gpu.utilization")) >= 2, TIMEOUT_S)
    finally:
        otel_rl.finish(timeout_s=TIMEOUT_S)
    found = sink.measurements("hw.gpu.utilization")
    assert {m.attributes["hw.id"] for m in found} == {uuid_of(0), uuid_of(1)}
    assert {(m.resource["rl.worker.index"], m.step) for m in found} == {(3, None)}
    wait_until(lambda: not samplers(), "the end of the sampler", timeout_s=TIMEOUT_S)


_FORKS = """
import multiprocessing, otel_rl

def child():
    otel_rl.init(experiment="exp", role="child")
    otel_rl.log({"alive": 1.0}, step=1)
    started.wait(60)

otel_rl.init(experiment="exp", role="trainer")
otel_rl.log({"alive": 1.0}, step=1)
context = multiprocessing.get_context("fork")
started = context.Event()
forked = context.Process(target=child)
forked.start()
input()  # until the test has seen what it waits for
started.set()
forked.join(60)
"""


def _roles(sink: Sink) -> set[object]:
    return {m.resource["rl.worker.role"] for m in sink.measurements("hw.power")}


@pytest.mark.process
def test_a_forked_child_that_is_a_worker_samples_as_one(
    machine: Machine, sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.set(gpu(0))
    for name, value in {
        "OTEL_RL_GPU": "1",
        "OTEL_RL_GPU_INTERVAL": "20",
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
    }.items():
        monkeypatch.setenv(name, value)
    process = subprocess.Popen([sys.executable, "-c", _FORKS], stdin=subprocess.PIPE)
    try:
        sink.wait(lambda s: _roles(s) == {"trainer", "child"}, TIMEOUT_S)
        process.communicate(b"\n", timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
    assert process.returncode == 0
