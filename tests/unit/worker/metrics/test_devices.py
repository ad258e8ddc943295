"""Numbers that a device has yet to compute: they are never waited for, and delay nothing else."""

import threading
from time import time_ns

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

import otel_rl
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.tensors import Deferred, NotANumber, hold, number
from tests.gpu.stream import Cuda
from tests.support.otlp_sink import Sink
from tests.support.waiting import wait_until
from tests.unit.worker.conftest import Collect

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
