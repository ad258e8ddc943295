"""What takes memory or connections has a bound, an answer and a count; others go on being served.

The bounds of one request (bytes, messages, attributes, ...) are in ``test_otlp_http.py`` and
``tests/unit/bridge/receive/test_validate.py``.
"""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from otel_rl.bridge.counters import Counter, Counters, Outcome
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.bridge.receive.server import HttpServer
from tests.support import plain_http, waiting
from tests.support.otlp_requests import (
    Journal,
    Receiver,
    gauge,
    grpc_receiver,
    http_receiver,
    intake,
    metrics_request,
    point,
)
from tests.support.tls_files import tls_files, tls_settings

wait_until = partial(waiting.wait_until, timeout_s=60)
PROTOBUF = {"content-type": "application/x-protobuf"}
EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
GAUGE = metrics_request().SerializeToString()
KIB = 1 << 10


def connection(receiver: Receiver) -> socket.socket:
    host, _, port = receiver.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def post(receiver: Receiver, body: bytes, **headers: str) -> httpx.Response:
    url = receiver.url + "/v1/metrics"
    return plain_http.post(url, content=body, headers=PROTOBUF | headers, timeout=60)


def send(channel: grpc.Channel, message: bytes) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(EXPORT, bytes, bytes)
    return call(message, timeout=60)


def refusal(channel: grpc.Channel, message: bytes) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        send(channel, message)
    return caught.value


def is_served(receiver: Receiver) -> bool:
    """Whether a new connection is answered as it should be."""
    try:
        return post(receiver, GAUGE).status_code == 200
    except httpx.TransportError:
        return False


def answer_of(half_closed: socket.socket) -> bytes:
    """Everything that the other side sends until it closes."""
    received = b""
    while chunk := half_closed.recv(4096):
        received += chunk
    return received


# Connections


def test_a_connection_too_many_is_told_to_come_back_and_is_counted() -> None:
    with http_receiver(ReceiveLimits(max_connections=2)) as receiver, ExitStack() as stack:
        first, _ = (stack.enter_context(connection(receiver)) for _ in range(2))
        first.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        head, _, body = answer_of(stack.enter_context(connection(receiver))).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head
        assert b"\r\nconnection: close" in head
        assert json.loads(body)["code"] == 14
        assert receiver.counts() == {("requests", "too_many_connections"): 1}


def test_an_exporter_reads_the_answer_to_a_connection_too_many() -> None:
    with http_receiver(ReceiveLimits(max_connections=1)) as receiver:
        with connection(receiver) as only:
            only.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            only.recv(1000)
            answer = post(receiver, GAUGE)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        wait_until(lambda: is_served(receiver))


def test_a_flood_of_connections_leaves_those_that_are_open_alone() -> None:
    with (
        http_receiver(ReceiveLimits(max_connections=8)) as receiver,
        httpx.Client(base_url=receiver.url, timeout=60) as client,
    ):
        assert client.post("/v1/metrics", content=GAUGE, headers=PROTOBUF).status_code == 200
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(connection(receiver))
            for _ in range(20):
                answer = client.post("/v1/metrics", content=GAUGE, headers=PROTOBUF)
                assert answer.status_code == 200
            wait_until(lambda: receiver.counts()["requests", "too_many_connections"] == 293)
        wait_until(lambda: is_served(receiver))


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /v1/met", b"POST /v1/metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1"],
    ids=["idle", "headers", "body"],
)
def test_an_address_with_all_connections_makes_room_for_another(begun: bytes) -> None:
    def from_address(source: str) -> socket.socket:
        host, _, port = receiver.server.address.rpartition(":")
        return socket.create_connection((host, int(port)), 60, (source, 0))

    request = (
        b"POST /v1/metrics HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(GAUGE), GAUGE)
    )
    limits = ReceiveLimits(max_connections=20)
    with http_receiver(limits) as receiver, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(from_address("127.0.0.2")).sendall(begun)
        for _ in range(30):
            with from_address("127.0.0.3") as victim:
                victim.sendall(request)
                assert answer_of(victim).startswith(b"HTTP/1.1 200")
        assert len(receiver.journal.batches) == 30
        with from_address("127.0.0.2") as more:  # as many as before: it makes no room for itself
            more.sendall(request)
            assert answer_of(more)


def test_a_request_that_is_being_stored_keeps_its_connection() -> None:
    limits = ReceiveLimits(max_connections=2)
    durable, waiting = threading.Event(), threading.Semaphore(0)

    def wait_for_disk() -> None:
        waiting.release()
        durable.wait(60)

    with http_receiver(limits) as receiver, ThreadPoolExecutor(2) as senders:
        receiver.journal.before = wait_for_disk
        held = [senders.submit(post, receiver, GAUGE) for _ in range(2)]
        assert all(waiting.acquire(timeout=60) for _ in held)
        host, _, port = receiver.server.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60, ("127.0.0.2", 0)) as other:
            assert answer_of(other).startswith(b"HTTP/1.1 503")
        durable.set()
        assert [answer.result(60).status_code for answer in held] == [200, 200]


def test_a_connection_that_never_begins_its_handshake_counts(tmp_path: Path) -> None:
    limits = ReceiveLimits(max_connections=2)
    with (
        http_receiver(limits, tls=tls_settings(tls_files(tmp_path))) as receiver,
        connection(receiver),
        connection(receiver),
        connection(receiver) as third,
    ):
        assert answer_of(third) == b""  # within TLS nothing can be said before the handshake
        assert receiver.counts() == {("requests", "too_many_connections"): 1}


def test_grpc_closes_a_connection_too_many() -> None:
    def channel(stack: ExitStack) -> grpc.Channel:
        # Else all channels of a process to one address share a connection.
        own = [("grpc.use_local_subchannel_pool", 1)]
        return stack.enter_context(grpc.insecure_channel(receiver.server.address, options=own))

    with grpc_receiver(ReceiveLimits(max_connections=1)) as receiver:
        with ExitStack() as stack:
            first = channel(stack)
            assert send(first, GAUGE) == b""
            assert refusal(channel(stack), GAUGE).code() is grpc.StatusCode.UNAVAILABLE
            assert send(first, GAUGE) == b""
        with ExitStack() as stack:
            later = channel(stack)
            grpc.channel_ready_future(later).result(60)
            assert send(later, GAUGE) == b""


# Time


def test_a_sender_that_does_not_take_its_answers_is_cut_off() -> None:
    # The answer names the path, so that it is large and soon fills every buffer.
    asked = b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"x" * 4000) * 50
    with http_receiver(ReceiveLimits(answer_timeout_s=0.3)) as receiver:
        with connection(receiver) as greedy:
            greedy.settimeout(0.2)
            with pytest.raises(OSError, match=r"timed out|reset|Broken pipe"):
                keep_sending(greedy, asked)
            wait_until(lambda: ("requests", "slow") in receiver.counts())
            assert receiver.counts()["requests", "slow"] == 1
        assert is_served(receiver)


def keep_sending(sender: socket.socket, data: bytes) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        try:
            sender.sendall(data)
        except TimeoutError:
            continue  # the other side reads no more, for as long as we do not


def test_headers_that_are_begun_and_not_ended_are_counted_and_silence_is_not() -> None:
    opened: list[socket.socket] = []

    def begin(receiver: Receiver) -> None:
        opened.extend(stack.enter_context(connection(receiver)) for _ in range(2))
        opened[0].sendall(b"POST /v1/metrics HT")

    limits = ReceiveLimits(header_timeout_s=0.5)
    with ExitStack() as stack, http_receiver(limits, before=begin) as receiver:
        assert [one.recv(100) for one in opened] == [b"", b""]
        assert receiver.counts() == {("requests", "slow"): 1}


def test_an_idle_connection_is_closed() -> None:
    opened: list[socket.socket] = []

    def ask(receiver: Receiver) -> None:
        opened.append(stack.enter_context(connection(receiver)))
        opened[0].sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")

    with ExitStack() as stack, http_receiver(ReceiveLimits(idle_timeout_s=2), before=ask):
        assert answer_of(opened[0]).startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_answered_counted_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with http_receiver() as receiver:
        with connection(receiver) as confused:
            confused.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")  # a TLS handshake
            assert answer_of(confused).startswith(b"HTTP/1.1 400 ")
        assert receiver.counts() == {("requests", "malformed"): 1}
    assert caplog.records == []


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("first", [len(PREFACE), 5])
def test_a_grpc_client_at_the_port_for_http_is_answered_counted_and_said_once(
    caplog: pytest.LogCaptureFixture, first: int
) -> None:
    door = intake(Journal(), counters := Counters())
    with HttpServer(door, port=0, grpc="127.0.0.1:4317") as server:
        host, _, port = server.address.rpartition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port)), timeout=60) as client:
                client.sendall(PREFACE[:first])
                client.sendall(PREFACE[first:])
                head, _, body = answer_of(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"OTLP/gRPC is on 127.0.0.1:4317" in body
    assert counters.value(Counter.REQUESTS, reason=Outcome.HTTP2) == 3
    assert counters.value(Counter.REQUESTS) == 3
    (record,) = caplog.records
    assert server.address in record.message
    assert "127.0.0.1:4317" in record.message


def test_a_grpc_client_of_a_bridge_without_grpc_is_told_to_speak_http() -> None:
    with http_receiver() as receiver, connection(receiver) as client:
        client.sendall(PREFACE)
        assert b"http/protobuf" in answer_of(client)
        assert receiver.counts() == {("requests", "http2"): 1}


def test_headers_are_bounded() -> None:
    with http_receiver() as receiver:
        with connection(receiver) as long_winded:
            long_winded.sendall(b"POST /v1/metrics HTTP/1.1\r\nx: " + b"x" * (20 * KIB))
            wait_until(lambda: receiver.counts() == {("requests", "malformed"): 1})
        assert is_served(receiver)


@pytest.mark.parametrize(("size", "status"), [(15_000, 200), (17_000, 400), (100_000, 400)])
def test_headers_that_come_in_one_piece_are_bounded_too(size: int, status: int) -> None:
    with http_receiver() as receiver, httpx.Client(base_url=receiver.url) as client:
        for _ in range(2):  # the second one on the same connection
            answer = client.post("/v1/metrics", content=GAUGE, headers=PROTOBUF | {"x": "x" * size})
            assert answer.status_code == status
        expected = "ok" if status == 200 else "malformed"
        assert receiver.counts()["requests", expected] == 2
        assert is_served(receiver)


def test_a_call_whose_message_does_not_arrive_is_ended_and_leaves_its_thread() -> None:
    limits = ReceiveLimits(body_timeout_s=0.3, max_concurrent_requests=1)
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(60)
        yield GAUGE

    with (
        grpc_receiver(limits) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        call: grpc.StreamUnaryMultiCallable[bytes, bytes]
        call = channel.stream_unary(EXPORT, bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(nothing(), timeout=60)
        never.set()
        assert caught.value.code() is grpc.StatusCode.CANCELLED  # exporters send it again
        assert receiver.counts()["requests", "slow"] == 1
        wait_until(lambda: is_taken(channel, GAUGE))


def is_taken(channel: grpc.Channel, message: bytes) -> bool:
    """Whether a message is taken. A pause of the machine may be longer than a short timeout."""
    try:
        return send(channel, message) == b""
    except grpc.RpcError:
        return False


def test_a_sender_that_gives_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    arrived: list[str] = []

    def grant(*_: object) -> None:
        arrived.append("a call")

    def nothing() -> Iterator[bytes]:
        never.wait(60)
        yield GAUGE

    with (
        grpc_receiver() as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        call: grpc.StreamUnaryMultiCallable[bytes, bytes]
        call = channel.stream_unary(EXPORT, bytes, bytes)
        monkeypatch.setattr(IngestPipeline, "grant_to", grant)
        timeout_s = 0.5
        while not arrived:  # on a busy machine a call may be given up before it gets there
            with pytest.raises(grpc.RpcError):
                call(nothing(), timeout=timeout_s)
            timeout_s *= 2
        never.set()
        wait_until(lambda: receiver.counts() == {("requests", "cancelled"): len(arrived)})
        assert receiver.journal.batches == []


# Bytes


def test_a_message_that_grpc_refuses_for_its_size_is_counted() -> None:
    with (
        grpc_receiver(ReceiveLimits(max_body_bytes=4 * KIB)) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        assert refusal(channel, bytes(5 * KIB)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_until(lambda: receiver.counts() == {("requests", "cancelled"): 1})


def test_a_call_without_a_message_is_malformed() -> None:
    with (
        grpc_receiver() as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        call: grpc.StreamUnaryMultiCallable[bytes, bytes]
        call = channel.stream_unary(EXPORT, bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(iter(()), timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert receiver.counts() == {("requests", "malformed"): 1}


def test_grpc_messages_in_flight_are_back_pressure_that_says_when_to_retry() -> None:
    limits = ReceiveLimits(max_body_bytes=4 * KIB, max_in_flight_bytes=8 * KIB)
    durable, waiting = threading.Event(), threading.Semaphore(0)

    def wait_for_disk() -> None:
        waiting.release()
        durable.wait(60)

    large = metrics_request(resource={"rl.experiment.name": "x", "pad": "p" * 3000})
    with (
        grpc_receiver(limits) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
        ThreadPoolExecutor(2) as senders,
    ):
        receiver.journal.before = wait_for_disk
        held = [senders.submit(send, channel, large.SerializeToString()) for _ in range(2)]
        assert all(waiting.acquire(timeout=60) for _ in held)
        error = refusal(channel, large.SerializeToString())
        durable.set()
        assert [answer.result(60) for answer in held] == [b"", b""]
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        (details,) = (m.value for m in error.trailing_metadata() or () if m.key.endswith("-bin"))
        assert Status.FromString(details).details[0].Unpack(RetryInfo())
        assert receiver.counts()["requests", "overloaded"] == 1
        assert send(channel, large.SerializeToString()) == b""


def test_small_bombs_together_take_no_more_than_what_may_be_in_flight() -> None:
    limits = ReceiveLimits(max_body_bytes=1 << 20, max_in_flight_bytes=2 << 20)
    bomb = gzip.compress(bytes(1 << 20))
    with http_receiver(limits) as receiver, ThreadPoolExecutor(16) as senders:
        sent = [
            senders.submit(post, receiver, bomb, **{"content-encoding": "gzip"}) for _ in range(64)
        ]
        # Zeros are no OTLP, so each is refused in the end, or asked to come again.
        assert {answer.result(60).status_code for answer in sent} <= {400, 503}
        assert is_served(receiver)


# Experiments


def of_experiments(n: int) -> ExportMetricsServiceRequest:
    joined = ExportMetricsServiceRequest()
    for i in range(n):
        joined.MergeFrom(
            metrics_request(gauge(point()), resource={"rl.experiment.name": f"experiment-{i}"})
        )
    return joined


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_experiments_too_many_are_refused_by_name_and_known_ones_go_on(protocol: str) -> None:
    limits = ReceiveLimits(max_experiments=3)
    with (
        http_receiver(limits) if protocol == "http" else grpc_receiver(limits) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):

        def export(request: ExportMetricsServiceRequest) -> ExportMetricsServiceResponse:
            body = request.SerializeToString()
            answer = post(receiver, body).content if protocol == "http" else send(channel, body)
            return ExportMetricsServiceResponse.FromString(answer)

        partial = export(of_experiments(5)).partial_success
        assert partial.rejected_data_points == 2
        assert "too_many_experiments" in partial.error_message
        assert "experiment-3" in partial.error_message
        assert len(receiver.journal.take()) == 3
        assert receiver.counts()["points.refused", "too_many_experiments"] == 2
        assert not export(of_experiments(3)).HasField("partial_success")


def test_one_request_of_ten_thousand_experiments_makes_no_more_than_the_bound() -> None:
    with http_receiver(ReceiveLimits(max_experiments=7)) as receiver:
        assert post(receiver, of_experiments(10_000).SerializeToString()).status_code == 200
        assert len(receiver.journal.take()) == 7
