"""What OTLP asks of a gRPC server, over real sockets."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive import GrpcServer, ReceiveLimits
from otel_rl.errors import (
    ConfigError,
    JournalClosed,
    JournalFull,
    JournalLocked,
    MalformedRequest,
    OtelRLError,
    RequestTooLarge,
)
from otel_rl.records import Signal
from tests.otlp_requests import (
    Journal,
    Receiver,
    gauge,
    grpc_receiver,
    intake,
    metrics_request,
    point,
    request_of_every_type,
    request_of_odd_points,
    trace_request,
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


def test_32_metrics_are_stored_as_sent_and_answered_by_an_empty_response(
    receiver: Receiver, channel: grpc.Channel
) -> None:
    assert send(channel, GAUGE) == b""
    (batch,) = receiver.journal.batches
    assert (batch.signal, batch.payload) == (Signal.METRICS, GAUGE)


def test_32_traces_are_stored_as_sent(receiver: Receiver, channel: grpc.Channel) -> None:
    message = trace_request().SerializeToString()
    assert send(channel, message, TRACES) == b""
    (batch,) = receiver.journal.batches
    assert (batch.signal, batch.payload) == (Signal.TRACES, message)


def test_15_an_unknown_service_is_not_implemented(channel: grpc.Channel) -> None:
    assert refusal(channel, b"", PROFILES).code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_32_compressed_message_is_stored_uncompressed(
    receiver: Receiver, channel: grpc.Channel, compression: grpc.Compression
) -> None:
    assert send(channel, GAUGE, compression=compression) == b""
    assert [batch.payload for batch in receiver.journal.batches] == [GAUGE]


def test_32_message_over_the_limit_is_final_and_the_next_is_served() -> None:
    limits = ReceiveLimits(max_body_bytes=4096)
    with (
        grpc_receiver(limits) as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        error = refusal(channel, bytes(4097))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details(error) is None
        assert send(channel, GAUGE) == b""


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


@pytest.mark.parametrize("error", [JournalFull("no room"), JournalClosed("stopping")])
def test_33_back_pressure_says_when_to_retry(
    receiver: Receiver, channel: grpc.Channel, error: Exception
) -> None:
    receiver.journal.error = error
    refused = refusal(channel, GAUGE)
    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.details() == str(error)
    status, retry = details(refused), RetryInfo()
    assert status is not None
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1


@pytest.mark.parametrize("method", [METRICS, TRACES])
def test_33_undecodable_message_is_an_invalid_argument(channel: grpc.Channel, method: str) -> None:
    error = refusal(channel, b"\xff\xfe garbage", method)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = details(error)
    assert status is not None
    assert not status.details


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MalformedRequest("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (RequestTooLarge("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (JournalFull("x"), grpc.StatusCode.UNAVAILABLE),
        (JournalClosed("x"), grpc.StatusCode.UNAVAILABLE),
        (JournalLocked("x"), grpc.StatusCode.UNAVAILABLE),
        (OtelRLError("x"), grpc.StatusCode.UNAVAILABLE),
        (OSError(28, "x"), grpc.StatusCode.UNAVAILABLE),
        (RuntimeError("x"), grpc.StatusCode.UNAVAILABLE),
    ],
    ids=repr,
)
def test_34_and_39_every_error_has_its_answer(
    receiver: Receiver, channel: grpc.Channel, error: Exception, code: grpc.StatusCode
) -> None:
    receiver.journal.error = error
    assert refusal(channel, GAUGE).code() is code


def test_34_unforeseen_error_is_counted_and_not_described(
    receiver: Receiver, channel: grpc.Channel
) -> None:
    before = receiver.counts().get(("exceptions", "grpc"), 0)
    receiver.journal.error = RuntimeError("a secret")
    assert "secret" not in (refusal(channel, GAUGE).details() or "")
    assert receiver.counts()["exceptions", "grpc"] == before + 1


def test_23_refused_points_are_counted_and_explained(channel: grpc.Channel) -> None:
    message = metrics_request(gauge(point(), point(time_ns=5))).SerializeToString()
    partial = ExportMetricsServiceResponse.FromString(send(channel, message)).partial_success
    assert partial.rejected_data_points == 1
    assert "time" in partial.error_message


def test_23_refused_spans_are_counted_as_spans(channel: grpc.Channel) -> None:
    message = trace_request(3, resource={}).SerializeToString()
    response = ExportTraceServiceResponse.FromString(send(channel, message, TRACES))
    assert response.partial_success.rejected_spans == 3
    assert "rl.experiment.name" in response.partial_success.error_message


def test_04_empty_message_is_taken_and_nothing_is_stored(
    receiver: Receiver, channel: grpc.Channel
) -> None:
    empty_envelope = ExportMetricsServiceRequest()
    empty_envelope.resource_metrics.add()
    for method in (METRICS, TRACES):
        assert send(channel, b"", method) == b""
    assert send(channel, empty_envelope.SerializeToString()) == b""
    assert receiver.journal.batches == []


def test_12_answer_stays_small_whatever_is_refused(channel: grpc.Channel) -> None:
    message = metrics_request(gauge(name="long" * 50_000)).SerializeToString()
    assert 0 < len(send(channel, message)) < 4096


def test_21_message_is_acknowledged_only_after_accept_returned() -> None:
    durable, waiting = threading.Event(), threading.Event()

    def wait_for_disk() -> None:
        waiting.set()
        durable.wait(60)

    with (
        grpc_receiver() as receiver,
        ThreadPoolExecutor(1) as sender,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        receiver.journal.before = wait_for_disk
        answer = sender.submit(send, channel, GAUGE)
        assert waiting.wait(60)
        assert not answer.done()
        durable.set()
        assert answer.result(60) == b""


def test_22_repeated_message_is_handed_on_as_often_as_it_is_sent(
    receiver: Receiver, channel: grpc.Channel
) -> None:
    assert [send(channel, GAUGE) for _ in range(2)] == [b"", b""]
    assert [batch.payload for batch in receiver.journal.batches] == [GAUGE, GAUGE]


def test_24_points_taken_without_some_exemplars_are_a_warning(channel: grpc.Channel) -> None:
    with_exemplars = point()
    with_exemplars.exemplars.add(as_double=1, time_unix_nano=7)
    message = metrics_request(gauge(with_exemplars)).SerializeToString()
    partial = ExportMetricsServiceResponse.FromString(send(channel, message)).partial_success
    assert partial.rejected_data_points == 0
    assert "Exemplars refused: 1" in partial.error_message


def test_29_invalid_utf8_is_an_invalid_argument(channel: grpc.Channel) -> None:
    error = refusal(channel, GAUGE.replace(b"loss", b"l\xffss"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_29_a_resource_that_cannot_be_read_takes_nothing_else_with_it(
    receiver: Receiver, channel: grpc.Channel
) -> None:
    answer = send(channel, GAUGE.replace(b"loss", b"l\xffss") + GAUGE)
    partial = ExportMetricsServiceResponse.FromString(answer).partial_success
    assert partial.rejected_data_points == 1
    assert "malformed" in partial.error_message
    assert [batch.payload for batch in receiver.journal.batches] == [GAUGE]


@pytest.mark.parametrize("request_of", [request_of_every_type, request_of_odd_points])
def test_30_and_31_every_type_of_metric_and_point_is_stored_as_sent(
    receiver: Receiver,
    channel: grpc.Channel,
    request_of: Callable[[], ExportMetricsServiceRequest],
) -> None:
    message = request_of().SerializeToString()
    assert send(channel, message) == b""
    assert [batch.payload for batch in receiver.journal.batches] == [message]


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
        stopped = threads.submit(receiver.server.stop, 5)
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


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    message=st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda at, junk: GAUGE[:at] + junk + GAUGE[at + 1 :],
            st.integers(0, len(GAUGE)),
            st.binary(min_size=1, max_size=3),
        ),
    ),
    method=st.sampled_from([METRICS, TRACES]),
)
def test_37_no_bytes_fail_the_server_and_the_next_request_is_served(
    receiver: Receiver, channel: grpc.Channel, message: bytes, method: str
) -> None:
    try:
        send(channel, message, method)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017
    assert send(channel, GAUGE) == b""


def test_38_counts_match_what_was_acknowledged() -> None:
    outcomes = [None, JournalFull("full"), RuntimeError("bug"), MalformedRequest("bad"), None]
    message = metrics_request(gauge(point(), point(time_ns=5))).SerializeToString()
    with (
        grpc_receiver() as receiver,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        for error in outcomes:
            receiver.journal.error = error
            if error is None:
                send(channel, message)
            else:
                refusal(channel, message)
        assert receiver.counts() == {
            ("requests", "partial"): 2,
            ("requests", "no_room"): 1,
            ("requests", "failed"): 1,
            ("requests", "malformed"): 1,
            ("exceptions", "grpc"): 1,
            ("points.accepted", ""): 2,
            ("points.refused", "time_out_of_range"): 2,
        }


def test_requests_that_wait_for_the_disk_wait_together() -> None:
    together = threading.Barrier(16)
    with (
        grpc_receiver() as receiver,
        ThreadPoolExecutor(16) as senders,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        receiver.journal.before = lambda: together.wait(60)
        assert set(senders.map(send, [channel] * 16, [GAUGE] * 16)) == {b""}


def test_python_metric_exporter_delivers(receiver: Receiver) -> None:
    exporter = OTLPMetricExporter(endpoint=receiver.url, insecure=True)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
    provider = MeterProvider([reader], resource=Resource({"rl.experiment.name": "x"}))
    provider.get_meter("test").create_counter("tokens").add(5)
    assert provider.force_flush(10_000)
    provider.shutdown()
    names = {
        metric.name
        for request in receiver.journal.metrics()
        for resource_metrics in request.resource_metrics
        for scope_metrics in resource_metrics.scope_metrics
        for metric in scope_metrics.metrics
    }
    assert "tokens" in names


def test_python_span_exporter_delivers(receiver: Receiver) -> None:
    provider = TracerProvider(resource=Resource({"rl.experiment.name": "x"}))
    exporter = OTLPSpanExporter(endpoint=receiver.url, insecure=True)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("rl.train"):
        pass
    provider.shutdown()
    (batch,) = receiver.journal.batches
    assert batch.signal is Signal.TRACES


def idle_server(port: int) -> GrpcServer:
    return GrpcServer(intake(Journal(), Counters()), port=port)
