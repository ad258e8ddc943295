"""ADR 0015, from the instruments of a worker to the rows of the bridge, on a simulated clock."""

import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import pytest
from opentelemetry.metrics import Meter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from tests.support.doors import Program, Request, decode, stock_requests
from tests.support.kept import revived

S: Final = 1_000_000_000
T0: Final = 1_700_000_000 * S
STEP: Final = "rl.loop.iteration"


class Clock:
    """Time of all workers and of the bridge."""

    def __init__(self) -> None:
        self.now_ns = T0

    def __call__(self) -> int:
        self.now_ns += 1_000  # no two calls are at one time
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, real = Clock(), time.time_ns
    for name, module in [*sys.modules.items()]:
        is_ours = name.startswith(("opentelemetry.sdk.m", "otel_rl.worker"))
        if is_ours and getattr(module, "time_ns", None) is real:
            monkeypatch.setattr(module, "time_ns", clock)
    return clock


def resource(index: int, instance: str, **more: str) -> Resource:
    return Resource(
        {
            "rl.experiment.name": "e",
            "rl.worker.role": "trainer",
            "rl.worker.index": index,
            "service.name": "trainer",
            "service.instance.id": instance,
            **more,
        }
    )


class Worker:
    """A process with otel_rl's provider."""

    def __init__(self, world: "World", index: int = 0, instance: str = "a") -> None:
        of = resource(index, instance, **{"telemetry.distro.name": "otel_rl"})
        self._clock = world.clock
        self.program = Program(of)
        self.meter: Meter = self.program.get_meter("m")
        self.tokens = self.meter.create_counter("tokens")
        self.loss = self.meter.create_gauge("loss")
        world.sources.append(partial(self.program.export, with_heartbeat=True))

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """What ``otel_rl.step`` does, on the simulated clock."""
        with self.program.step(number, self._clock):
            yield
        self.loss.set(0.5, {STEP: number})


class World:
    """A bridge, and whoever exports to it once a second."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sources: list[Callable[[], Sequence[Request]]] = []
        self.aligner = Run(AlignSettings())
        self.rows: list[Row] = []
        self.requests: list[Request] = []
        self.loses = False
        self.process: Callable[[ExportMetricsServiceRequest], None] | None = None

    def wait(self, seconds: float) -> None:
        """Let time pass, with an export of each source every second."""
        until_ns = self.clock.now_ns + int(seconds * S)
        while self.clock.now_ns + S <= until_ns:
            self.clock.now_ns += S
            self.export()
        self.clock.now_ns = max(self.clock.now_ns, until_ns)

    def export(self) -> None:
        for source in self.sources:
            for request in source():
                self.requests.append(request)
                if not self.loses:
                    self.take(self.processed(request))
        self.rows += self.aligner.close(self.clock())

    def processed(self, request: Request) -> Request:
        """What a Collector with ``process`` makes of a request."""
        if self.process is None:
            return request
        sent = ExportMetricsServiceRequest.FromString(request.payload)
        self.process(sent)
        return replace(request, payload=sent.SerializeToString())

    def take(self, request: Request) -> None:
        batch = Batch(ExperimentKey("e"), Signal.METRICS, request.payload, self.clock())
        self.aligner.add(decode(batch), received_ns=batch.received_ns)

    def restart(self) -> None:
        """Another bridge goes on from the journal."""
        self.aligner = revived(self.aligner)

    def end(self) -> None:
        self.export()
        self.rows += self.aligner.close(self.clock(), everything=True)

    def column(self, key: str) -> dict[int | None, list[float]]:
        """All values of a key, by the step of their rows."""
        found: dict[int | None, list[float]] = {}
        for row in self.rows:
            if key in row.values:
                found.setdefault(row.step, []).append(row.values[key])
        return found

    def total(self, key: str) -> float:
        """The last total of a counter, which never falls."""
        totals = [row.values[key] for row in self.rows if key in row.values]
        assert totals == sorted(totals)
        return totals[-1]

    def on_steps(self, key: str) -> dict[int, float]:
        """The key's chart over steps, which has one point a step."""
        points = {step: found for step, found in self.column(key).items() if step is not None}
        assert all(len(found) == 1 for found in points.values()), points
        return {step: found[0] for step, found in points.items()}


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock)


def test_twelve_thousand_tokens_in_steps_of_twelve_seconds_are_a_thousand_a_second_at_every_step(
    world: World,
) -> None:
    worker = Worker(world)
    for number in range(20):
        with worker.step(number):
            world.wait(11.9)
            worker.tokens.add(12_000)
            world.wait(0.1)
    world.end()
    rates = world.on_steps("trainer/tokens/rate")
    assert [*rates] == [*range(20)]
    assert rates == pytest.approx(dict.fromkeys(range(20), 1000), rel=1e-4)
    assert world.on_steps("trainer/tokens/per_step") == dict.fromkeys(range(20), 12_000)
    assert world.total("trainer/tokens") == 240_000


def test_a_rate_is_over_the_time_of_the_whole_step_though_it_counts_at_its_end(
    world: World,
) -> None:
    worker = Worker(world)
    for number in range(3):
        with worker.step(number):
            world.wait(7)
            worker.tokens.add(100)
            world.wait(1)
        world.wait(12)  # between steps
    world.end()
    assert world.on_steps("trainer/tokens/rate") == pytest.approx(
        dict.fromkeys(range(3), 100 / 8), rel=1e-3
    )


def test_a_histogram_has_the_distribution_of_each_step(world: World) -> None:
    worker = Worker(world)
    ages = worker.meter.create_histogram("age")
    for number in range(4):
        with worker.step(number):
            for part in range(100):
                ages.record(number + part / 100)
                if part % 10 == 0:
                    world.wait(1)
    world.end()
    assert world.on_steps("trainer/age/count") == dict.fromkeys(range(4), 100)
    assert world.on_steps("trainer/age") == pytest.approx({n: n + 0.495 for n in range(4)})
    assert world.on_steps("trainer/age/max") == pytest.approx({n: n + 0.99 for n in range(4)})
    assert world.on_steps("trainer/age/p50") == pytest.approx(
        {n: n + 0.5 for n in range(4)}, rel=0.05
    )


def test_counts_that_tell_their_step_need_no_block(world: World) -> None:
    worker = Worker(world)
    for number in range(10):
        world.wait(12)
        worker.tokens.add(12_000, {STEP: number})
        worker.loss.set(0.5, {STEP: number})
        worker.meter.create_gauge("lr").set(0.1, {STEP: number})
    world.end()
    totals = [value for found in world.column("trainer/tokens").values() for value in found]
    assert totals[-1] == 120_000
    later = range(1, 10)  # when the first step began is not known
    rates = {n: found for n, found in world.column("trainer/tokens/rate").items() if n in later}
    assert rates == {n: [pytest.approx(1000, rel=1e-3)] for n in later}
    assert world.column("trainer/tokens/per_step") == {n: [12_000] for n in range(10)}


def test_two_workers_have_the_sum_of_their_rates_each_over_its_own_step(world: World) -> None:
    fast, slow = Worker(world, 0, "a"), Worker(world, 1, "b")
    for number in range(5):
        with slow.step(number):
            with fast.step(number):
                world.wait(5)
                fast.tokens.add(500)
                slow.tokens.add(500)
            world.wait(5)
    world.end()
    assert world.on_steps("trainer/tokens/per_step") == dict.fromkeys(range(5), 1000)
    assert world.on_steps("trainer/tokens/rate") == pytest.approx(
        dict.fromkeys(range(5), 100 + 50), rel=1e-3
    )
    assert world.total("trainer/tokens") == 5000


def test_a_request_that_comes_again_counts_nothing_twice(world: World) -> None:
    worker = Worker(world)
    for number in range(5):
        with worker.step(number):
            worker.tokens.add(10)
            world.wait(3)
        for request in random.Random(number).sample(world.requests, len(world.requests)):
            world.take(request)
    world.end()
    assert world.on_steps("trainer/tokens/per_step") == dict.fromkeys(range(5), 10)
    assert world.total("trainer/tokens") == 50


def cumulative(sent: ExportMetricsServiceRequest) -> None:
    """Do what the Collector's deltatocumulative does to shares: each is a series of its own."""
    for metric in metrics_of(sent):
        kind = metric.WhichOneof("data")
        if kind is not None and kind != "gauge":
            getattr(metric, kind).aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE


def joined(sent: ExportMetricsServiceRequest) -> None:
    """Do what its groupbyattrs does to metrics of one name and type: the first takes the points."""
    first: dict[tuple[str, str | None], Metric] = {}
    for metric in metrics_of(sent):
        kind = metric.WhichOneof("data")
        one = first.setdefault((metric.name, kind), metric)
        if one is not metric and kind is not None:
            getattr(one, kind).data_points.extend(getattr(metric, kind).data_points)
            metric.ClearField("data")


def joined_from_the_last(sent: ExportMetricsServiceRequest) -> None:
    for scope in (scope for one in sent.resource_metrics for scope in one.scope_metrics):
        metrics = [*reversed(scope.metrics)]
        del scope.metrics[:]
        scope.metrics.extend(metrics)
    joined(sent)


def metrics_of(sent: ExportMetricsServiceRequest) -> Sequence[Metric]:
    scopes = [scope for one in sent.resource_metrics for scope in one.scope_metrics]
    return [metric for scope in scopes for metric in scope.metrics]


@pytest.mark.parametrize("process", [cumulative, joined, joined_from_the_last])
def test_shares_and_totals_stay_apart_behind_a_collector_that_treats_them_alike(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    process: Callable[[ExportMetricsServiceRequest], None],
) -> None:
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        "base2_exponential_bucket_histogram",
    )
    worker = Worker(world)
    ages = worker.meter.create_histogram("age")
    world.process = process
    for number in range(12):
        with worker.step(number):
            worker.tokens.add(10)
            ages.record(2)
            world.wait(6)
    world.end()
    assert world.total("trainer/tokens") == 120
    assert world.on_steps("trainer/tokens/per_step") == dict.fromkeys(range(12), 10)
    assert world.on_steps("trainer/age/count") == dict.fromkeys(range(12), 1)
    assert not {key for row in world.rows for key in row.values if re.search(r"/\d{9}", key)}


def test_the_bridge_goes_on_after_a_restart_in_any_step(world: World) -> None:
    worker = Worker(world)
    ages = worker.meter.create_histogram("age")
    for number in range(6):
        with worker.step(number):
            worker.tokens.add(10)
            ages.record(2)
            world.wait(6)
            world.restart()
        world.export()
        world.restart()
    world.end()
    assert world.total("trainer/tokens") == 60
    assert world.on_steps("trainer/age/count") == dict.fromkeys(range(6), 1)
    assert world.on_steps("trainer/tokens/rate") == pytest.approx(
        dict.fromkeys(range(6), 10 / 6), rel=1e-3
    )


def test_the_total_goes_on_after_a_bridge_that_ended_in_a_step(world: World) -> None:
    worker = Worker(world)
    for number in range(6):
        with worker.step(number):
            worker.tokens.add(10)
            world.wait(6)
            if number == 3:
                world.aligner.close(world.clock(), everything=True)
                world.restart()
            world.wait(2)
    world.end()
    assert world.total("trainer/tokens") == 60


def test_the_total_goes_on_where_another_process_takes_the_workers_place(world: World) -> None:
    for life in range(3):
        world.sources.clear()
        worker = Worker(world, instance=f"life {life}")
        for number in range(4 * life, 4 * life + 4):
            with worker.step(number):
                worker.tokens.add(10)
                world.wait(6)
        world.export()
        world.wait(6)
    world.end()
    assert world.total("trainer/tokens") == 120


def test_the_total_is_right_again_after_exports_that_were_lost(world: World) -> None:
    worker = Worker(world)
    for number in range(12):
        world.loses = 4 <= number < 7
        with worker.step(number):
            worker.tokens.add(10)
            world.wait(8)
    world.end()
    assert world.total("trainer/tokens") == 120
    assert world.on_steps("trainer/tokens/per_step")[11] == 10


def test_what_is_counted_between_steps_is_in_the_total(world: World) -> None:
    worker = Worker(world)
    for number in range(6):
        with worker.step(number):
            worker.tokens.add(10)
            world.wait(8)
        worker.tokens.add(1)
        world.wait(12)
    world.end()
    assert world.total("trainer/tokens") == 66
    assert world.on_steps("trainer/tokens/per_step") == dict.fromkeys(range(6), 10)


def test_a_counter_that_stands_still_in_a_step_is_zero_there(world: World) -> None:
    worker = Worker(world)
    for number in range(6):
        with worker.step(number):
            world.wait(2)
            if number != 3:
                worker.tokens.add(10)
    world.end()
    assert world.on_steps("trainer/tokens/rate")[3] == 0
    assert world.on_steps("trainer/tokens/per_step")[3] == 0
    assert world.total("trainer/tokens") == 50


def test_a_process_without_steps_keeps_its_windows(world: World) -> None:
    worker = Worker(world)
    for _ in range(30):
        worker.tokens.add(1000)
        world.wait(1)
    world.end()
    assert not world.column("trainer/tokens/per_step")
    rates = [rate for found in world.column("trainer/tokens/rate").values() for rate in found]
    assert rates == pytest.approx([1000] * len(rates), rel=0.2)
    assert len(rates) >= 5


def test_a_program_with_a_stock_sdk_keeps_its_windows(world: World) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource(0, "stock"), shutdown_on_exit=False)
    meter = provider.get_meter("m")
    world.sources.append(lambda: stock_requests(reader.get_metrics_data()))
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    for number in range(10):
        tokens.add(600, {STEP: number})
        tokens.add(400)
        loss.set(0.5, {STEP: number})
        world.wait(3)
    world.end()
    assert not world.column("trainer/tokens/per_step")
    totals = [value for found in world.column("trainer/tokens").values() for value in found]
    assert totals[-1] == 10_000
    assert world.column("trainer/tokens/rate")


def test_a_count_with_a_step_of_its_own_is_in_that_steps_row(world: World) -> None:
    worker = Worker(world)
    for number in range(8):
        with worker.step(number):
            world.wait(4)
            worker.tokens.add(10)
            worker.tokens.add(5, {STEP: number})
    world.end()
    assert world.on_steps("trainer/tokens/per_step") == dict.fromkeys(range(8), 15)
