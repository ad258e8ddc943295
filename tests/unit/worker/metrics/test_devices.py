"""Numbers that a device has yet to compute: they are never waited for, and delay nothing else."""

import threading
from time import time_ns

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_rl
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.tensors import Deferred, LateCopies, NotANumber, hold, number
from tests.gpu.stream import Cuda
from tests.otlp_sink import Sink
from tests.unit.worker.conftest import Collect
from tests.waiting import collect_garbage, wait_until

STEP = "rl.loop.iteration"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A device with work to do."""
    made = Cuda(monkeypatch)
    made.launch(5)
    return made


def watermark(provider: BufferedMeterProvider) -> int:
    (resource,) = ExportMetricsServiceRequest.FromString(
        provider.heartbeat().payload
    ).resource_metrics
    (point,) = resource.scope_metrics[0].metrics[0].gauge.data_points
    return point.time_unix_nano


def is_ready(held: object) -> bool:
    assert isinstance(held, Deferred)
    return held.is_ready


def test_a_number_is_that_of_its_place_in_the_stream(cuda: Cuda) -> None:
    tensor = cuda.tensor(1.0)
    held = hold(tensor)
    cuda.queue(lambda: tensor.cell.__setitem__(0, 2.0))  # optimizer steps are in place
    assert is_ready(held) is False
    cuda.run()
    assert is_ready(held) is True
    assert number(held) == 1.0
    assert not cuda.waits


def test_a_number_that_is_ready_is_read_without_the_device(cuda: Cuda) -> None:
    held = hold(cuda.tensor(0.5))
    cuda.run()
    cuda.launch(5)  # it may hang in this
    assert number(held) == 0.5
    assert cuda.now_ms == 5


def test_a_number_that_a_cuda_graph_computes_later_is_none(cuda: Cuda) -> None:
    cuda.is_capturing = True
    assert isinstance(hold(cuda.tensor(0.5)), NotANumber)


def test_a_device_that_hangs_holds_back_its_own_numbers_only(
    cuda: Cuda, provider: BufferedMeterProvider, collect: Collect
) -> None:
    loss, reward = map(provider.get_meter("m").create_gauge, ("loss", "reward"))
    loss.set(cuda.tensor(0.5), {STEP: 1})  # type: ignore[arg-type]  # a tensor
    reward.set(1.0, {STEP: 1})
    assert [m.name for m in collect()] == ["reward"]
    reward.set(2.0, {STEP: 2})
    assert [(m.name, m.step) for m in collect()] == [("reward", 2)]
    cuda.run()
    assert [(m.name, m.value, m.step) for m in collect()] == [("loss", 0.5, 1)]
    assert not collect()


def test_rows_of_the_logger_wait_for_their_numbers_on_a_device_only(
    cuda: Cuda, started: Sink
) -> None:
    otel_rl.log({"loss": cuda.tensor(0.5), "reward": 1.0}, step=3)
    assert not otel_rl.flush(timeout_s=0.5)
    wait_until(
        lambda: [m.name for m in started.measurements() if m.step == 3] == ["reward"], timeout_s=60
    )
    cuda.run()
    assert otel_rl.flush(timeout_s=60)
    assert [(m.name, m.value) for m in started.measurements() if m.step == 3] == [
        ("reward", 1.0),
        ("loss", 0.5),
    ]


def test_the_receiver_waits_for_the_numbers_of_a_device(
    cuda: Cuda, provider: BufferedMeterProvider, collect: Collect
) -> None:
    before_ns = time_ns()
    provider.get_meter("m").create_gauge("loss").set(cuda.tensor(0.5))  # type: ignore[arg-type]
    after_ns = time_ns()
    collect()
    assert before_ns <= watermark(provider) <= after_ns
    cuda.run()
    collect()
    assert watermark(provider) > after_ns


def test_a_flush_waits_for_the_device(cuda: Cuda, started: Sink) -> None:
    otel_rl.log({"loss": cuda.tensor(0.5)}, step=1)
    device = threading.Timer(0.5, cuda.run)
    device.start()
    assert otel_rl.flush(timeout_s=60)
    device.join()
    assert [m.value for m in started.measurements("loss")] == [0.5]


def test_numbers_that_a_device_never_computes_are_lost_and_counted(
    cuda: Cuda, drops: Drops, provider: BufferedMeterProvider, collect: Collect
) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    gauge.set(cuda.tensor(0.5))  # type: ignore[arg-type]
    collect()
    assert provider.buffer.abandon() == 1


def test_the_numbers_of_a_failed_device_are_counted_as_lost(
    cuda: Cuda, drops: Drops, provider: BufferedMeterProvider, collect: Collect
) -> None:
    loss, reward = map(provider.get_meter("m").create_gauge, ("loss", "reward"))
    loss.set(cuda.tensor(0.5))  # type: ignore[arg-type]
    reward.set(1.0)
    cuda.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert [m.name for m in collect()] == ["reward"]
    assert drops.counts() == {DropReason.INTERNAL: 1}


def read_by(reader: InMemoryMetricReader, name: str) -> list[float]:
    data = reader.get_metrics_data()
    return [
        float(getattr(point, "value", "nan"))
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def test_a_reader_of_the_program_makes_no_gauge_wait_for_a_device(
    cuda: Cuda, provider: BufferedMeterProvider, collect: Collect
) -> None:
    reader = InMemoryMetricReader()
    provider.add_metric_reader(reader)
    gauge = provider.get_meter("m").create_gauge("loss")
    for step, value in enumerate((0.25, 0.5)):
        gauge.set(cuda.tensor(value), {STEP: step})  # type: ignore[arg-type]
    assert not cuda.waits
    assert not cuda.queried_by
    collect()
    assert read_by(reader, "loss") == []
    cuda.run()
    assert [m.value for m in collect()] == [0.25, 0.5]
    assert read_by(reader, "loss") == [0.5]
    assert not cuda.waits


def test_what_a_device_never_computes_is_forgotten_by_a_fork(
    cuda: Cuda, provider: BufferedMeterProvider, collect: Collect
) -> None:
    reader = InMemoryMetricReader()
    provider.add_metric_reader(reader)
    provider.get_meter("m").create_gauge("loss").set(cuda.tensor(1.0))  # type: ignore[arg-type]
    provider.restart(provider.resource, keep_buffer=False)
    cuda.run()
    assert collect() == []
    assert read_by(reader, "loss") == []


def test_a_value_that_a_device_fails_to_compute_reaches_no_reader_and_delays_no_other(
    cuda: Cuda, provider: BufferedMeterProvider, collect: Collect
) -> None:
    reader = InMemoryMetricReader()
    provider.add_metric_reader(reader)
    meter = provider.get_meter("m")
    meter.create_gauge("loss").set(cuda.tensor(1.0))  # type: ignore[arg-type]
    meter.create_gauge("plain").set(2.0)
    cuda.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
    collect()
    assert read_by(reader, "loss") == []
    assert read_by(reader, "plain") == [2.0]


def test_a_reader_ends_with_the_newest_value_whether_a_device_computes_it_or_not(
    cuda: Cuda, provider: BufferedMeterProvider, collect: Collect
) -> None:
    reader = InMemoryMetricReader()
    provider.add_metric_reader(reader)
    gauge = provider.get_meter("m").create_gauge("loss")
    gauge.set(cuda.tensor(1.0))  # type: ignore[arg-type]
    gauge.set(2.0)
    collect()
    cuda.run()
    collect()
    assert read_by(reader, "loss") == [2.0]


class Computed(Deferred):
    """Value of a device that becomes ready after some questions."""

    def __init__(self, value: float, unready: int) -> None:
        self._value, self._unready = value, unready

    @property
    def is_ready(self) -> bool:
        self._unready -= 1
        return self._unready < 0

    def read(self) -> float:
        return self._value


def test_a_device_that_ends_during_an_export_does_not_turn_two_values_of_a_gauge_around(
    provider: BufferedMeterProvider,
) -> None:
    late, recorded = LateCopies(provider.guard), list[float]()
    loss, reward = object(), object()
    late.add(loss, Computed(1.0, unready=1), recorded.append)
    late.add(loss, Computed(2.0, unready=0), recorded.append)
    late.add(reward, Computed(3.0, unready=0), recorded.append)
    late.record_ready()
    assert recorded == [3.0]
    late.record_ready()
    assert recorded == [3.0, 1.0, 2.0]


def test_a_forked_child_frees_no_copy_that_waits_for_readers(
    provider: BufferedMeterProvider,
) -> None:
    """As one of torch, whose end in a child ends the child."""
    late, freed = LateCopies(provider.guard), list[float]()
    kind = type("Copy", (Computed,), {"__del__": lambda one: freed.append(one.read())})
    late.add(None, kind(2.0, unready=9), freed.append)
    late.record_ready()
    late.add(None, kind(3.0, unready=9), freed.append)
    late.forget()
    collect_garbage()
    assert freed == []
    late.record_ready()
    assert freed == []


def test_readers_of_the_program_have_values_of_devices_without_otel_rls_metrics(
    cuda: Cuda, provider: BufferedMeterProvider
) -> None:
    reader = InMemoryMetricReader()
    provider.add_metric_reader(reader)
    provider.get_meter("m").create_gauge("loss").set(cuda.tensor(1.0))  # type: ignore[arg-type]
    cuda.run()
    provider.discard()
    assert read_by(reader, "loss") == [1.0]
