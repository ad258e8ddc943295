"""Colocated: who holds the GPUs, and what each phase had of them."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl.worker.system.nvml import Device, Reading
from otel_rl.worker.system.sampler import GpuOwners
from tests.gpu.machine import Machine, compiler, gpu, uuid_of
from tests.support.otlp_sink import Sink, pairs
from tests.support.waiting import wait_until

S = 1_000_000_000
TIMEOUT_S = 60.0
PHASES = ("train", "generate", "offload", "onload")

Totals = dict[tuple[str, str], float]


class Clock:
    """Nanoseconds that tests move by hand."""

    def __init__(self) -> None:
        self.now_ns = 5 * S

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


def test_each_phase_is_held_for_as_long_as_its_turns_last() -> None:
    clock = Clock()
    owners, train, generate = GpuOwners(clock), object(), object()
    owners.begin(train, "train")
    clock.pass_s(2)
    owners.end(train)
    clock.pass_s(10)
    owners.begin(generate, "generate")
    clock.pass_s(3)
    assert owners.held_s() == {"train": 2.0, "generate": 3.0}


def test_of_turns_within_each_other_the_innermost_counts() -> None:
    clock = Clock()
    owners, outer, inner = GpuOwners(clock), object(), object()
    owners.begin(outer, "train")
    clock.pass_s(1)
    owners.begin(inner, "offload")
    clock.pass_s(2)
    owners.end(inner)
    clock.pass_s(4)
    owners.end(outer)
    assert owners.held_s() == {"train": 5.0, "offload": 2.0}


def test_a_turn_that_ends_out_of_order_ends_no_other() -> None:
    clock = Clock()
    owners, first, second = GpuOwners(clock), object(), object()
    owners.begin(first, "train")
    owners.begin(second, "generate")
    owners.end(first)
    clock.pass_s(1)
    owners.end(second)
    owners.end(second)
    clock.pass_s(1)
    assert owners.held_s() == {"train": 0.0, "generate": 1.0}


def test_a_forked_child_holds_nothing() -> None:
    clock = Clock()
    owners = GpuOwners(clock)
    owners.begin(object(), "train")
    clock.pass_s(1)
    owners.forget()
    clock.pass_s(1)
    assert owners.held_s() == {}


def readings(utilization: float, energy_j: float = 0.0, memory: float = 1.0) -> list[Reading]:
    return [
        Reading("hw.gpu.utilization", utilization),
        Reading("hw.energy", energy_j),
        Reading("hw.gpu.memory.usage", memory),
    ]


class Shared:
    """One device's shares of one process, summed up."""

    def __init__(self) -> None:
        self.totals: Totals = {}
        self._clock = Clock()
        self._clock.now_ns = 0
        self._owners = GpuOwners(self._clock)
        self._held_s: dict[str, float] = {}
        self._device = Device("GPU-a", "gpu0")

    def sample(self, now_s: float, held_s: Mapping[str, float], found: list[Reading]) -> None:
        for phase, total_s in held_s.items():
            turn = object()
            self._owners.begin(turn, phase)
            self._clock.pass_s(total_s - self._held_s.get(phase, 0.0))
            self._owners.end(turn)
        self._held_s = dict(held_s)
        self._clock.now_ns = int(now_s * S)
        for _, shares in self._owners.divide([(self._device, found)]):
            for reading in shares:
                key = reading.metric.removeprefix("rl.gpu.owner."), reading.attributes[0][1]
                before = self.totals.get(key, 0.0) if reading.is_increment else 0.0
                self.totals[key] = before + reading.value


def test_time_busyness_and_energy_go_to_the_phase_that_held_the_device() -> None:
    shared = Shared()
    shared.sample(10.0, {}, readings(0.0, 100.0))
    shared.sample(12.0, {"train": 2.0}, readings(0.9, 1300.0, 7.0))
    shared.sample(14.0, {"train": 2.0, "generate": 1.0}, readings(0.5, 1500.0, 3.0))
    assert shared.totals == {
        ("time", "train"): 2.0,
        ("busy_time", "train"): 1.8,
        ("energy", "train"): 1200.0,
        ("memory.usage", "train"): 7.0,
        ("time", "generate"): 1.0,
        ("busy_time", "generate"): 0.5,
        ("energy", "generate"): 100.0,  # held for half of the time in which it was used
        ("memory.usage", "generate"): 3.0,
    }


def test_what_nobody_held_goes_to_nobody() -> None:
    shared = Shared()
    shared.sample(10.0, {"train": 1.0}, readings(0.9))
    del shared.totals["memory.usage", "train"]
    shared.sample(20.0, {"train": 1.0}, readings(0.9, 900.0))
    assert shared.totals["energy", "train"] == 0.0
    assert ("memory.usage", "train") not in shared.totals


def test_a_sample_without_the_device_s_energy_makes_no_leap_of_it() -> None:
    shared = Shared()
    shared.sample(10.0, {"train": 1.0}, readings(0.9, 5e6))
    shared.sample(11.0, {"train": 2.0}, [])
    shared.sample(12.0, {"train": 3.0}, readings(0.9, 5e6 + 100))
    assert shared.totals["energy", "train"] == 100.0


@given(st.integers(min_value=0, max_value=2**32))
def test_the_shares_of_processes_that_take_turns_add_up_to_the_device(seed: int) -> None:
    """Whoever samples when, as long as one is taken at each hand-over."""
    choice = random.Random(seed)
    processes = [(Shared(), dict.fromkeys(PHASES, 0.0)) for _ in range(2)]
    now_s, energy_j, busy_s = 1.0, 0.0, 0.0
    for shared, held_s in processes:
        shared.sample(now_s, held_s, readings(0.0, 0.0))
    for _ in range(20):
        who, phase = choice.randrange(2), choice.choice(PHASES)
        for _ in range(choice.randrange(1, 4)):
            passed_s, utilization = choice.uniform(0.1, 5.0), choice.random()
            now_s += passed_s
            energy_j += choice.uniform(0.0, 1000.0)
            busy_s += passed_s * utilization
            processes[who][1][phase] += passed_s
            for shared, held_s in processes:
                shared.sample(now_s, held_s, readings(utilization, energy_j))

    def total(metric: str) -> float:
        return sum(
            value
            for shared, _ in processes
            for (name, _), value in shared.totals.items()
            if name == metric
        )

    assert total("time") == pytest.approx(now_s - 1.0)
    assert total("busy_time") == pytest.approx(busy_s)
    assert total("energy") == pytest.approx(energy_j)


@pytest.mark.process
@pytest.mark.skipif(
    compiler() is None, reason="the stand-in for the NVIDIA driver needs a C compiler"
)
def test_a_turn_is_sampled_and_has_a_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: Sink, clean_environment: None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine(tmp_path, monkeypatch.setenv)
    machine.set(gpu(0, utilization=80))
    otel_rl.init(
        experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=0.05, gpu=True
    )
    try:
        with otel_rl.phase("train", gpu=True):
            sink.wait(lambda s: bool(s.measurements("hw.power")), TIMEOUT_S)
        wait_until(
            lambda: {"rl.gpu.owner.time", "rl.gpu.owner.busy_time"} <= sums_of(sink, "train"),
            "what the phase has had of the device",
            timeout_s=TIMEOUT_S,
        )
        assert otel_rl.flush(timeout_s=TIMEOUT_S)
        sink.wait(lambda s: bool(s.traces), TIMEOUT_S)
    finally:
        otel_rl.finish(timeout_s=TIMEOUT_S)
    spans = [
        (span.name, pairs(span.attributes))
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [(name, has["rl.gpu.owner"]) for name, has in spans] == [("rl.train", "train")]


def sums_of(sink: Sink, phase: str) -> set[str]:
    """The counters that have a point of the phase on the one device."""
    return {
        metric.name
        for request in list(sink.metrics)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.sum.data_points
        if {"rl.gpu.owner": phase, "hw.id": uuid_of(0)}.items() <= pairs(point.attributes).items()
    }


def test_without_sampling_the_time_of_a_turn_is_counted(started: Sink) -> None:
    with otel_rl.phase("generate", gpu=True):
        pass
    assert otel_rl.flush(timeout_s=TIMEOUT_S)
    (point,) = [
        point
        for request in started.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "rl.gpu.owner.time"
        for point in metric.sum.data_points
        if pairs(point.attributes)["rl.gpu.owner"] == "generate"
    ]
    assert point.as_double > 0


def test_a_phase_without_gpus_holds_none(started: Sink) -> None:
    @otel_rl.phase("evict", gpu=True)
    def evict() -> None:
        with otel_rl.phase("reward"):
            pass

    before = gpu_phases_of(started)
    with otel_rl.step(7):
        evict()
    assert gpu_phases_of(started) - before == {"evict"}


def gpu_phases_of(sink: Sink) -> set[object]:
    assert otel_rl.flush(timeout_s=TIMEOUT_S)
    return {
        pairs(point.attributes)["rl.gpu.owner"]
        for request in sink.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "rl.gpu.owner.time"
        for point in metric.sum.data_points
    }


def test_without_a_session_a_turn_changes_nothing(clean_environment: None) -> None:
    with otel_rl.phase("train", gpu=True):
        pass
