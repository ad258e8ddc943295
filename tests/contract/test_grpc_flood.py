"""Calls without a message cost those who make them: everybody else goes on being served."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from hashlib import sha256

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.resources import Resource

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tokens import TeamSettings
from tests.support import waiting
from tests.support.http2 import EXPORT, RawClient
from tests.support.otlp_requests import Receiver, grpc_receiver, metrics_request

wait_until = partial(waiting.wait_until, timeout_s=60)
TIMEOUT_S = 60
SILENT_CALLS_STAY = ReceiveLimits(body_timeout_s=4 * TIMEOUT_S)
GAUGE = metrics_request().SerializeToString()
TOKEN = "a-token-of-sixteen-characters"


def measured() -> MetricsData:
    """What a program's SDK hands to its exporter."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=Resource({"rl.experiment.name": "victim"}))
    provider.get_meter("test").create_gauge("loss").set(1.0)
    data = reader.get_metrics_data()
    assert data is not None
    return data


def flood(stack: ExitStack, receiver: Receiver, connections: int, calls: int) -> list[RawClient]:
    """So many connections with so many calls each, all of which the server has taken."""
    clients = []
    for _ in range(connections):
        client = stack.enter_context(RawClient(receiver.server.address))
        client.await_settings()
        client.begin(calls)
        clients.append(client)
    return clients


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_headers_without_messages_keep_no_stock_exporter_from_its_deadline(
    *, is_known: bool
) -> None:
    data = measured()
    with grpc_receiver(SILENT_CALLS_STAY) as receiver, ExitStack() as stack:
        exporter = OTLPMetricExporter(endpoint=receiver.url, insecure=True, timeout=TIMEOUT_S)
        stack.callback(exporter.shutdown)
        if is_known:
            assert exporter.export(data) is MetricExportResult.SUCCESS
        flood(stack, receiver, connections=16, calls=32)
        for _ in range(20):
            assert exporter.export(data) is MetricExportResult.SUCCESS
        assert len(receiver.journal.batches) == 20 + is_known
        assert receiver.counts()["requests", "ok"] == 20 + is_known


def test_a_flood_without_a_token_takes_no_place() -> None:
    entry = TeamSettings(
        name="team", experiments=("*",), sha256=(sha256(TOKEN.encode()).hexdigest(),)
    )
    with (
        grpc_receiver(ReceiveLimits(max_concurrent_requests=1), auth=(entry,)) as receiver,
        ExitStack() as stack,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        clients = flood(stack, receiver, connections=4, calls=32)
        for client in clients:
            client.await_ends(32)
        counts = receiver.counts()
        assert counts == {("requests", "unauthenticated"): 4 * 32}
        authorization = (("authorization", f"Bearer {TOKEN}"),)
        assert export(channel, metadata=authorization) == b""


def test_a_call_that_loses_its_place_is_told_to_come_again_with_its_message() -> None:
    limits = SILENT_CALLS_STAY.model_copy(update={"max_concurrent_requests": 1})
    with (
        grpc_receiver(limits) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
        grpc.insecure_channel(
            receiver.server.address, [("grpc.use_local_subchannel_pool", 1)]
        ) as victim,
    ):
        never = threading.Event()
        call: grpc.StreamUnaryMultiCallable[bytes, bytes]
        call = channel.stream_unary(EXPORT, bytes, bytes)
        silent = call.future(nothing_until(never), timeout=2 * TIMEOUT_S)
        wait_until(lambda: export(victim) == b"" and silent.done())
        error = silent.exception()
        never.set()
        assert isinstance(error, grpc.RpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        (details,) = (m.value for m in error.trailing_metadata() or () if m.key.endswith("-bin"))
        assert Status.FromString(details).details[0].Unpack(RetryInfo())
        assert receiver.counts()["requests", "slow"] == 1


def test_messages_that_are_never_completed_are_not_kept() -> None:
    """What came of them before their calls ended is given back, however often it happens."""
    part = b"\0" + (4 << 20).to_bytes(4) + bytes(10_000)
    with (
        grpc_receiver(ReceiveLimits(body_timeout_s=0.2, max_concurrent_requests=32)) as receiver,
        ExitStack() as stack,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        (client,) = flood(stack, receiver, connections=1, calls=32)
        for call in range(32):
            client.send(2 * call + 1, part)
        client.await_ends(32)
        assert receiver.counts()["requests", "slow"] == 32
        wait_until(lambda: is_exported(channel))


@pytest.mark.parametrize(("size", "is_taken"), [(15_000, True), (17_000, False)])
def test_metadata_is_taken_up_to_16_kib(size: int, *, is_taken: bool) -> None:
    with (
        grpc_receiver() as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        for _ in range(20):  # between its soft and its hard limit, gRPC refuses at random
            if is_taken:
                assert export(channel, metadata=(("x", "x" * size),)) == b""
            else:
                with pytest.raises(grpc.RpcError) as caught:
                    export(channel, metadata=(("x", "x" * size),))
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def export(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(EXPORT, bytes, bytes)
    return call(GAUGE, timeout=TIMEOUT_S, metadata=metadata)


def is_exported(channel: grpc.Channel) -> bool:
    """Whether a message is taken. A pause of the machine may be longer than a short timeout."""
    try:
        return export(channel) == b""
    except grpc.RpcError:
        return False


def nothing_until(event: threading.Event) -> Iterator[bytes]:
    event.wait(2 * TIMEOUT_S)
    yield from ()
