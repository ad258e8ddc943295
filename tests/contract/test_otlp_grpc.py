"""What OTLP asks of a gRPC server, over real sockets."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive.grpc import GrpcServer
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.errors import (
    ConfigError,
)
from tests.support.otlp_requests import (
    Journal,
    Receiver,
    grpc_receiver,
    intake,
    metrics_request,
)

METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PROFILES = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
GAUGE = metrics_request().SerializeToString()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Receiver, grpc.Channel]]:
    with grpc_receiver() as receiver, grpc.insecure_channel(receiver.server.address) as channel:
        yield receiver, channel


@pytest.fixture
def receiver(shared: tuple[Receiver, grpc.Channel]) -> Iterator[Receiver]:
    shared[0].journal.take()
    yield shared[0]
    shared[0].journal.error = None


@pytest.fixture
def channel(shared: tuple[Receiver, grpc.Channel]) -> grpc.Channel:
    return shared[1]


def send(
    channel: grpc.Channel,
    message: bytes,
    method: str = METRICS,
    compression: grpc.Compression | None = None,
) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method, bytes, bytes)
    return call(message, timeout=60, compression=compression)


def refusal(channel: grpc.Channel, message: bytes, method: str = METRICS) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        send(channel, message, method)
    return caught.value


def details(error: grpc.RpcError) -> Status | None:
    for metadatum in error.trailing_metadata() or ():
        if metadatum.key == "grpc-status-details-bin":
            return Status.FromString(metadatum.value)
    return None


def test_15_an_unknown_service_is_not_implemented(channel: grpc.Channel) -> None:
    assert refusal(channel, b"", PROFILES).code() is grpc.StatusCode.UNIMPLEMENTED


def test_32_compressed_message_is_stored_uncompressed(
    receiver: Receiver, channel: grpc.Channel
) -> None:
    assert send(channel, GAUGE, compression=grpc.Compression.Deflate) == b""
    assert [batch.payload for batch in receiver.journal.batches] == [GAUGE]


def test_32_message_over_the_limit_after_decompression_is_final() -> None:
    limits = ReceiveLimits(max_body_bytes=4096)
    with (
        grpc_receiver(limits) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            send(channel, bytes(1_000_000), compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert receiver.journal.batches == []


def test_35_port_in_use_fails_at_start_and_names_port_and_setting(receiver: Receiver) -> None:
    port = int(receiver.server.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"{port}.*--grpc"):
        idle_server(port)


def test_36_stop_finishes_what_is_in_flight_and_takes_nothing_afterwards() -> None:
    durable, waiting = threading.Event(), threading.Event()

    def wait_for_disk() -> None:
        waiting.set()
        durable.wait(60)

    with (
        grpc_receiver() as receiver,
        ThreadPoolExecutor(2) as threads,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        receiver.journal.before = wait_for_disk
        answer = threads.submit(send, channel, GAUGE)
        assert waiting.wait(60)
        stopped = threads.submit(receiver.server.stop, 60)
        durable.set()
        stopped.result(60)
        assert answer.result(60) == b""
        assert len(receiver.journal.batches) == 1
        assert refusal(channel, GAUGE).code() is grpc.StatusCode.UNAVAILABLE
        receiver.server.stop()
        assert len(receiver.journal.batches) == 1


def test_36_stop_waits_for_what_is_being_stored_even_after_the_grace() -> None:
    durable, waiting = threading.Event(), threading.Event()

    def wait_for_disk() -> None:
        waiting.set()
        durable.wait(60)

    with (
        grpc_receiver() as receiver,
        ThreadPoolExecutor(2) as threads,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        receiver.journal.before = wait_for_disk
        answer = threads.submit(refusal, channel, GAUGE)
        assert waiting.wait(60)
        stopped = threads.submit(receiver.server.stop, 0)
        # The sender is told at once, and sends again elsewhere or later.
        assert answer.result(60).code() in {
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        }
        assert not stopped.done()
        durable.set()
        stopped.result(60)
        assert len(receiver.journal.batches) == 1


def test_36_stop_leaves_no_thread_and_no_port() -> None:
    before = set(threading.enumerate())
    with grpc_receiver() as receiver:
        with grpc.insecure_channel(receiver.server.address) as channel:
            send(channel, GAUGE)
        started = set(threading.enumerate()) - before
        assert any(thread.name.startswith("otel-rl-grpc") for thread in started)
        port = int(receiver.server.address.rpartition(":")[2])
    assert not [t.name for t in started if t.name.startswith("otel-rl-grpc") and t.is_alive()]
    idle_server(port).stop()


def test_requests_that_wait_for_the_disk_wait_together() -> None:
    together = threading.Barrier(16)
    with (
        grpc_receiver() as receiver,
        ThreadPoolExecutor(16) as senders,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        receiver.journal.before = lambda: together.wait(60)
        assert set(senders.map(send, [channel] * 16, [GAUGE] * 16)) == {b""}


def idle_server(port: int) -> GrpcServer:
    return GrpcServer(intake(Journal(), Counters()), port=port)
