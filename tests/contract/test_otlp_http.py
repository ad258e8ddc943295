"""What OTLP asks of an HTTP server, over real sockets."""

import gzip
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Metric,
)

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.server import HttpServer
from otel_rl.errors import (
    ConfigError,
    JournalFull,
)
from otel_rl.signals import Signal
from tests.support import plain_http, waiting
from tests.support.otlp_requests import (
    Journal,
    Receiver,
    gauge,
    http_receiver,
    intake,
    key_values,
    metrics_request,
    point,
)
from tests.support.slow import examples

wait_until = partial(waiting.wait_until, timeout_s=60)
PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
PATHS = {Signal.METRICS: "/v1/metrics", Signal.TRACES: "/v1/traces", Signal.LOGS: "/v1/logs"}
LIMIT_BYTES = 4096
NOW_NS = time.time_ns()
JSON_GAUGE = json.dumps(
    {
        "resourceMetrics": [
            {
                "resource": {
                    "attributes": [{"key": "rl.experiment.name", "value": {"stringValue": "x"}}]
                },
                "scopeMetrics": [
                    {
                        "metrics": [
                            {
                                "name": "loss",
                                "gauge": {
                                    "dataPoints": [{"asDouble": 1.5, "timeUnixNano": str(NOW_NS)}]
                                },
                            }
                        ]
                    }
                ],
            }
        ]
    }
).encode()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Receiver, httpx.Client]]:
    with http_receiver() as receiver, httpx.Client(base_url=receiver.url, timeout=60) as client:
        yield receiver, client


@pytest.fixture
def receiver(shared: tuple[Receiver, httpx.Client]) -> Iterator[Receiver]:
    shared[0].journal.take()
    yield shared[0]
    shared[0].journal.error = None


@pytest.fixture
def client(shared: tuple[Receiver, httpx.Client]) -> httpx.Client:
    return shared[1]


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[Receiver, httpx.Client]]:
    """A receiver whose limits are easily reached."""
    limits = ReceiveLimits(
        max_body_bytes=LIMIT_BYTES,
        max_in_flight_bytes=2 * LIMIT_BYTES,
    )
    with (
        http_receiver(limits) as receiver,
        httpx.Client(base_url=receiver.url, timeout=60) as client,
    ):
        yield receiver, client


@contextmanager
def impatient(*sent: bytes) -> Iterator[tuple[Receiver, list[socket.socket]]]:
    """A receiver that waits for no sender, and connections to it on which something was sent."""
    limits = ReceiveLimits(header_timeout_s=0.5, body_timeout_s=0.5)
    opened: list[socket.socket] = []

    def send(receiver: Receiver) -> None:
        for one in sent:
            opened.append(stack.enter_context(connection(receiver)))
            opened[-1].sendall(one)

    with ExitStack() as stack, http_receiver(limits, before=send) as receiver:
        yield receiver, opened


def post(receiver: Receiver, body: bytes) -> httpx.Response:
    return plain_http.post(receiver.url + "/v1/metrics", content=body, headers=PROTOBUF, timeout=60)


def encoded(request: ExportMetricsServiceRequest) -> bytes:
    return request.SerializeToString()


def status_of(response: httpx.Response) -> Status:
    """The error's Status, which has to be in the encoding that the response names."""
    if response.headers["content-type"] == "application/json":
        fields = json.loads(response.content)
        return Status(code=fields["code"], message=fields["message"])
    assert response.headers["content-type"] == "application/x-protobuf"
    return Status.FromString(response.content)


PROTOBUF_GAUGE = encoded(metrics_request())


def sized_body(n_bytes: int) -> bytes:
    """A sound request of exactly so many bytes."""
    missing = n_bytes
    for _ in range(4):  # the lengths within grow with the text, so it takes a few steps
        request = metrics_request(resource={"rl.experiment.name": "x", "pad": "p" * missing})
        missing -= len(encoded(request)) - n_bytes
    body = encoded(metrics_request(resource={"rl.experiment.name": "x", "pad": "p" * missing}))
    assert len(body) == n_bytes
    return body


def head(content_length: int) -> bytes:
    return (
        "POST /v1/metrics HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
        f"content-length: {content_length}\r\n\r\n"
    ).encode()


def connection(receiver: Receiver) -> socket.socket:
    host, _, port = receiver.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def is_listening(receiver: Receiver) -> bool:
    try:
        connection(receiver).close()
    except ConnectionRefusedError:
        return False
    return True


def idle_server(port: int) -> HttpServer:
    return HttpServer(intake(Journal(), Counters()), port=port)


class TestSuccess:
    def test_02_json_is_answered_by_an_empty_object(
        self, receiver: Receiver, client: httpx.Client
    ) -> None:
        response = client.post("/v1/metrics", content=b'{"resourceMetrics":[]}', headers=JSON)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.content == b"{}"

    @pytest.mark.parametrize(
        "content_type",
        ["application/json; charset=utf-8", "APPLICATION/JSON", "Application/Json;charset=UTF-8"],
    )
    def test_03_media_type_is_read_without_case_and_parameters(
        self, client: httpx.Client, content_type: str
    ) -> None:
        headers = {"content-type": content_type}
        assert client.post("/v1/metrics", content=b"{}", headers=headers).status_code == 200

    def test_06_connection_is_kept_alive_and_chunked_bodies_are_taken(
        self, receiver: Receiver, client: httpx.Client
    ) -> None:
        body = encoded(metrics_request())
        chunks = (body[i : i + 7] for i in range(0, len(body), 7))
        response = client.post("/v1/metrics", content=chunks, headers=PROTOBUF)
        assert response.request.headers["transfer-encoding"] == "chunked"
        assert response.http_version == "HTTP/1.1"
        assert response.headers.get("connection") != "close"
        assert [batch.payload for batch in receiver.journal.batches] == [body]

    def test_health_is_answered(self, client: httpx.Client) -> None:
        assert client.get("/healthz").status_code == 200

    def test_health_is_read_only(self, client: httpx.Client) -> None:
        answer = client.post("/healthz")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


class TestCompression:
    @pytest.mark.parametrize(
        ("encoding", "compress"),
        [
            ("gzip", gzip.compress),
            ("GZIP", gzip.compress),
            ("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
            ("deflate", zlib.compress),
            ("identity", bytes),
        ],
    )
    def test_07_compressed_body_is_stored_uncompressed(
        self, receiver: Receiver, client: httpx.Client, encoding: str, compress: type[bytes]
    ) -> None:
        body = encoded(metrics_request())
        headers = {**PROTOBUF, "content-encoding": encoding}
        response = client.post("/v1/metrics", content=compress(body), headers=headers)
        assert response.status_code == 200
        assert [batch.payload for batch in receiver.journal.batches] == [body]

    @pytest.mark.parametrize("media", [PROTOBUF, JSON])
    def test_08_body_that_is_not_as_compressed_as_it_says_is_malformed(
        self, client: httpx.Client, media: dict[str, str]
    ) -> None:
        headers = {**media, "content-encoding": "gzip"}
        response = client.post("/v1/metrics", content=b"plain text", headers=headers)
        assert response.status_code == 400
        assert response.headers["content-type"] == media["content-type"]
        assert status_of(response).code == 3

    @pytest.mark.parametrize("encoding", ["zstd", "snappy", "br", "gzip, gzip"])
    def test_09_unknown_encoding_is_malformed_and_answered_in_json_without_a_media_type(
        self, client: httpx.Client, encoding: str
    ) -> None:
        headers = {"content-encoding": encoding}
        response = client.post("/v1/metrics", content=b"{}", headers=headers)
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
        assert "gzip" in status_of(response).message

    @pytest.mark.parametrize("level", [1, 9])
    def test_10_bomb_is_too_large(self, small: tuple[Receiver, httpx.Client], level: int) -> None:
        receiver, client = small
        bomb = gzip.compress(bytes(2_000_000), compresslevel=level)
        headers = {**PROTOBUF, "content-encoding": "gzip"}
        response = client.post("/v1/metrics", content=bomb, headers=headers)
        assert response.status_code == 413
        assert receiver.journal.take() == []

    @pytest.mark.parametrize(
        ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
    )
    def test_10_cut_off_stream_is_malformed_wherever_it_is_cut(
        self, receiver: Receiver, client: httpx.Client, encoding: str, compress: type[bytes]
    ) -> None:
        body = compress(encoded(metrics_request()))
        headers = {**PROTOBUF, "content-encoding": encoding}
        for end in range(1, len(body)):
            response = client.post("/v1/metrics", content=body[:end], headers=headers)
            assert response.status_code == 400, end
        assert receiver.journal.batches == []


class TestLimits:
    def test_11_request_at_the_limit_is_taken_and_one_byte_more_is_too_large(
        self, small: tuple[Receiver, httpx.Client]
    ) -> None:
        receiver, client = small
        fits, over = sized_body(LIMIT_BYTES), sized_body(LIMIT_BYTES + 1)
        assert client.post("/v1/metrics", content=fits, headers=PROTOBUF).status_code == 200
        response = client.post("/v1/metrics", content=over, headers=PROTOBUF)
        assert response.status_code == 413
        assert status_of(response).code == 8
        assert "retry-after" not in response.headers
        assert [batch.payload for batch in receiver.journal.take()] == [fits]

    def test_11_default_limit_is_16_mib(self) -> None:
        assert ReceiveLimits().max_body_bytes == 16 << 20

    def test_11_large_refused_body_is_read_so_that_the_sender_sees_the_answer(
        self, small: tuple[Receiver, httpx.Client]
    ) -> None:
        # More than socket buffers hold: a server that closed early would reset the connection.
        body = bytes(32 << 20)
        response = small[1].post("/v1/metrics", content=body, headers=PROTOBUF, timeout=60)
        assert response.status_code == 413


class TestErrors:
    @pytest.mark.parametrize("media", [PROTOBUF, JSON])
    def test_13_undecodable_body_is_malformed_in_the_encoding_of_the_request(
        self, client: httpx.Client, media: dict[str, str]
    ) -> None:
        response = client.post("/v1/metrics", content=b"\xff\xfe garbage", headers=media)
        assert response.status_code == 400
        assert response.headers["content-type"] == media["content-type"]
        status = status_of(response)
        assert status.code == 3
        assert status.message

    @pytest.mark.parametrize("path", PATHS.values())
    @pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
    def test_14_other_methods_are_answered_405_in_words(
        self, client: httpx.Client, method: str, path: str
    ) -> None:
        response = client.request(method, path)
        assert response.status_code == 405
        assert response.headers["content-type"].startswith("text/plain")
        assert response.text == "405 method not allowed, supported: [POST]"

    @pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": ""}])
    def test_14_other_media_types_are_answered_415_in_words(
        self, client: httpx.Client, headers: dict[str, str]
    ) -> None:
        response = client.post("/v1/metrics", content=b"{}", headers=headers)
        assert response.status_code == 415
        assert response.headers["content-type"].startswith("text/plain")
        assert "application/x-protobuf" in response.text

    @pytest.mark.parametrize("path", ["/", "/v1/profiles", "/v1/metrics/", "/docs"])
    def test_15_unknown_path_is_not_found(self, client: httpx.Client, path: str) -> None:
        response = client.post(path, content=b"x", headers=PROTOBUF)
        assert response.status_code == 404
        assert path in status_of(response).message

    @pytest.mark.parametrize(("method", "path"), [("GET", "/v1/metrics"), ("POST", "/nowhere")])
    def test_16_error_pages_of_the_framework_are_replaced(
        self, client: httpx.Client, method: str, path: str
    ) -> None:
        assert '"detail"' not in client.request(method, path, headers=JSON).text


class TestRetry:
    def test_19_retry_after_is_whole_seconds_and_stands_on_503_only(
        self, receiver: Receiver, client: httpx.Client
    ) -> None:
        body = encoded(metrics_request())
        assert (
            "retry-after"
            not in client.post("/v1/metrics", content=b"\xff", headers=PROTOBUF).headers
        )
        receiver.journal.error = JournalFull("no room")
        response = client.post("/v1/metrics", content=body, headers=PROTOBUF)
        assert response.headers["retry-after"] == "1"
        retry = RetryInfo()
        assert status_of(response).details[0].Unpack(retry)
        assert retry.retry_delay.seconds == 1


class TestPartialSuccess:
    def test_23_refused_points_are_told_in_json_too(self, client: httpx.Client) -> None:
        body = JSON_GAUGE.replace(b"rl.experiment.name", b"other")
        response = client.post("/v1/metrics", content=body, headers=JSON)
        partial = response.json()["partialSuccess"]
        assert partial["rejectedDataPoints"] == "1"
        assert "rl.experiment.name" in partial["errorMessage"]


class TestJson:
    def test_28_nan_literal_is_malformed_and_the_string_is_a_number(
        self, receiver: Receiver, client: httpx.Client
    ) -> None:
        literal = client.post(
            "/v1/metrics", content=JSON_GAUGE.replace(b"1.5", b"NaN"), headers=JSON
        )
        assert literal.status_code == 400
        string = client.post(
            "/v1/metrics", content=JSON_GAUGE.replace(b"1.5", b'"NaN"'), headers=JSON
        )
        assert string.content == b"{}"
        (stored,) = receiver.journal.metrics()
        (kept,) = stored.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
        assert math.isnan(kept.as_double)

    @pytest.mark.parametrize("depth", [50, 1000, 100_000])
    def test_29_deep_nesting_never_fails_the_server(self, client: httpx.Client, depth: int) -> None:
        value = b'{"arrayValue":{"values":[' * depth + b"]}}" * depth
        body = JSON_GAUGE.replace(b'{"stringValue": "x"}', value)
        assert client.post("/v1/metrics", content=body, headers=JSON).status_code in (200, 400)


class TestRobustness:
    def test_35_port_in_use_fails_at_start_and_names_port_and_setting(
        self, receiver: Receiver
    ) -> None:
        port = int(receiver.server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"{port}.*--http"):
            idle_server(port)

    def test_36_stop_finishes_what_is_in_flight_and_takes_nothing_afterwards(self) -> None:
        durable, waiting = threading.Event(), threading.Event()

        def wait_for_disk() -> None:
            waiting.set()
            durable.wait(60)

        with http_receiver() as receiver, ThreadPoolExecutor(2) as threads:
            receiver.journal.before = wait_for_disk
            answer = threads.submit(post, receiver, encoded(metrics_request()))
            assert waiting.wait(60)
            stopped = threads.submit(receiver.server.stop, 60)
            wait_until(lambda: not is_listening(receiver))
            durable.set()
            stopped.result(60)
            assert answer.result(60).status_code == 200
            assert len(receiver.journal.batches) == 1
            with pytest.raises(httpx.TransportError):
                post(receiver, encoded(metrics_request()))
            receiver.server.stop()
            assert len(receiver.journal.batches) == 1

    def test_36_a_request_that_stop_cannot_wait_for_is_sent_again(self) -> None:
        waiting, durable = threading.Event(), threading.Event()

        def wait_for_disk() -> None:
            waiting.set()
            assert durable.wait(60)

        with http_receiver() as receiver, ThreadPoolExecutor(2) as threads:
            receiver.journal.before = wait_for_disk
            answer = threads.submit(post, receiver, encoded(metrics_request()))
            assert waiting.wait(60)
            stopped = threads.submit(receiver.server.stop, 0)
            assert answer.result(60).status_code == 503
            durable.set()
            stopped.result(60)

    def test_36_stop_leaves_no_thread_and_no_port(self) -> None:
        before = set(threading.enumerate())
        with http_receiver() as receiver:
            assert post(receiver, encoded(metrics_request())).status_code == 200
            started = set(threading.enumerate()) - before
            assert "otel-rl-http" in {thread.name for thread in started}
            port = int(receiver.server.address.rpartition(":")[2])
        assert not any(thread.is_alive() for thread in started)
        idle_server(port).stop()

    def test_36_request_cut_off_by_stop_is_not_stored(self) -> None:
        with http_receiver() as receiver, connection(receiver) as half_sent:
            body = encoded(metrics_request())
            half_sent.sendall(head(len(body)) + body[:-1])
            receiver.server.stop(grace_s=0)
            assert receiver.journal.batches == []

    @settings(
        max_examples=examples(100),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        body=st.one_of(
            st.binary(max_size=200),
            st.builds(
                lambda at, junk: JSON_GAUGE[:at] + junk + JSON_GAUGE[at:],
                st.integers(0, len(JSON_GAUGE)),
                st.binary(min_size=1, max_size=3),
            ),
            st.builds(
                lambda at, junk: PROTOBUF_GAUGE[:at] + junk + PROTOBUF_GAUGE[at + 1 :],
                st.integers(0, len(PROTOBUF_GAUGE)),
                st.binary(min_size=1, max_size=3),
            ),
        ),
        media=st.sampled_from([PROTOBUF, JSON]),
        signal=st.sampled_from(list(PATHS)),
        encoding=st.sampled_from(["identity", "gzip", "deflate"]),
    )
    def test_37_no_bytes_fail_the_server_and_the_next_request_is_served(
        self,
        receiver: Receiver,
        client: httpx.Client,
        body: bytes,
        media: dict[str, str],
        signal: Signal,
        encoding: str,
    ) -> None:
        headers = {**media, "content-encoding": encoding}
        assert client.post(PATHS[signal], content=body, headers=headers).status_code in (200, 400)
        good = client.post("/v1/metrics", content=PROTOBUF_GAUGE, headers=PROTOBUF)
        assert (good.status_code, good.content) == (200, b"")

    def test_slow_body_is_given_up(self) -> None:
        with impatient(head(100) + b"half") as (receiver, (slow,)):
            assert slow.recv(100).startswith(b"HTTP/1.1 503")
            assert receiver.journal.take() == []

    def test_half_open_headers_are_closed(self) -> None:
        with impatient(b"", head(10)[:-6]) as (_, opened):
            assert [one.recv(100) for one in opened] == [b"", b""]

    def test_half_open_headers_of_a_second_request_are_closed(self) -> None:
        with impatient(head(0)) as (_, (reused,)):
            assert reused.recv(1000).startswith(b"HTTP/1.1 200")
            reused.sendall(b"POST /v1/metrics HT")
            assert reused.recv(100) == b""

    def test_sender_that_disconnects_is_counted_and_nothing_is_stored(self) -> None:
        with http_receiver() as receiver:
            with connection(receiver) as gone:
                gone.sendall(head(100) + b"half")
            wait_until(lambda: receiver.counts() == {("requests", "disconnected"): 1})
            assert receiver.journal.batches == []

    @pytest.mark.parametrize(
        ("path", "media", "outcome"),
        [
            ("/v1/nothing", "application/x-protobuf", "not_found"),
            ("/v1/metrics", "text/plain", "unsupported_media_type"),
        ],
    )
    def test_sender_that_disconnects_before_it_is_refused_is_no_error_of_ours(
        self, path: str, media: str, outcome: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with http_receiver() as receiver:
            with connection(receiver) as gone:
                sent = head(100).replace(b"/v1/metrics", path.encode())
                gone.sendall(sent.replace(b"application/x-protobuf", media.encode()) + b"half")
            wait_until(lambda: receiver.counts() == {("requests", outcome): 1})
        assert caplog.records == []

    def test_too_many_bytes_in_flight_are_back_pressure(self) -> None:
        limits = ReceiveLimits(max_body_bytes=LIMIT_BYTES, max_in_flight_bytes=2 * LIMIT_BYTES)
        durable, arrived = threading.Event(), list[None]()

        def wait_for_disk() -> None:
            arrived.append(None)
            durable.wait(60)

        with http_receiver(limits) as receiver, ThreadPoolExecutor(2) as sender:
            receiver.journal.before = wait_for_disk
            first = [sender.submit(post, receiver, sized_body(LIMIT_BYTES)) for _ in range(2)]
            wait_until(lambda: len(arrived) == 2)
            assert post(receiver, PROTOBUF_GAUGE).status_code == 503
            durable.set()
            assert [answer.result(60).status_code for answer in first] == [200, 200]
            assert post(receiver, PROTOBUF_GAUGE).status_code == 200

    def test_requests_that_wait_for_the_disk_wait_together(self) -> None:
        together = threading.Barrier(16)
        with http_receiver() as receiver, ThreadPoolExecutor(16) as senders:
            receiver.journal.before = lambda: together.wait(60)
            answers = list(senders.map(post, [receiver] * 16, [PROTOBUF_GAUGE] * 16))
            assert {answer.status_code for answer in answers} == {200}


def many_attributes() -> ExportMetricsServiceRequest:
    crowded = point()
    crowded.attributes.extend(key_values({f"k{i}": i for i in range(10_000)}))
    return metrics_request(gauge(crowded))


def nan_everywhere() -> ExportMetricsServiceRequest:
    nan = math.nan
    histogram = Metric(name="histogram")
    histogram.histogram.data_points.add(
        count=1, sum=nan, min=nan, max=nan, bucket_counts=[1, 0], explicit_bounds=[1.0]
    )
    summary = Metric(name="summary")
    summary.summary.data_points.add(sum=nan).quantile_values.add(quantile=nan, value=nan)
    value = point(nan)
    value.exemplars.add(as_double=nan)
    return metrics_request(gauge(value), histogram, summary)


# name, body, headers, status, points refused
BAD_INPUT = [
    ("garbage bytes", b"\xde\xad\xbe\xef" * 50, PROTOBUF, 400, 0),
    ("garbage text", b"hello", JSON, 400, 0),
    ("NaN that is no JSON", b'{"resourceMetrics": NaN}', JSON, 400, 0),
    ("wrong content type", PROTOBUF_GAUGE, {"content-type": "text/html"}, 415, 0),
    ("protobuf sent as JSON", PROTOBUF_GAUGE, JSON, 400, 0),
    ("JSON sent as protobuf", JSON_GAUGE, PROTOBUF, 400, 0),
    ("no experiment", encoded(metrics_request(resource={})), PROTOBUF, 200, 1),
    (
        "empty experiment",
        encoded(metrics_request(resource={"rl.experiment.name": ""})),
        PROTOBUF,
        200,
        1,
    ),
    ("time 1970", encoded(metrics_request(gauge(point(time_ns=1)))), PROTOBUF, 200, 1),
    ("time 2554", encoded(metrics_request(gauge(point(time_ns=2**64 - 1)))), PROTOBUF, 200, 1),
    ("NaN everywhere", encoded(nan_everywhere()), PROTOBUF, 200, 0),
    ("10,000 attributes", encoded(many_attributes()), PROTOBUF, 200, 1),
]


@pytest.mark.parametrize(
    ("body", "headers", "status", "n_refused"),
    [case[1:] for case in BAD_INPUT],
    ids=[case[0] for case in BAD_INPUT],
)
def test_bad_input_gets_its_answer_and_the_next_good_request_is_served(
    receiver: Receiver,
    client: httpx.Client,
    body: bytes,
    headers: dict[str, str],
    status: int,
    n_refused: int,
) -> None:
    response = client.post("/v1/metrics", content=body, headers=headers)
    assert response.status_code == status
    if status == 200:
        partial = ExportMetricsServiceResponse.FromString(response.content).partial_success
        assert partial.rejected_data_points == n_refused
        assert bool(partial.error_message) == bool(n_refused)
    receiver.journal.take()
    good = client.post("/v1/metrics", content=PROTOBUF_GAUGE, headers=PROTOBUF)
    assert (good.status_code, good.content) == (200, b"")
    assert [batch.payload for batch in receiver.journal.batches] == [PROTOBUF_GAUGE]


REPORTS_OF_ITSELF = """
import httpx
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.otlp_requests import http_receiver, metrics_request

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))
metrics.set_meter_provider(MeterProvider([reader]))
with http_receiver() as receiver:
    body = metrics_request().SerializeToString()
    headers = {"content-type": "application/x-protobuf"}
    url = receiver.url + "/v1/metrics"
    assert httpx.post(url, content=body, headers=headers, timeout=60).is_success
    receiver.journal.error = RuntimeError("a secret")
    httpx.post(url, content=body, headers=headers, timeout=60)
print([span.name for span in spans.get_finished_spans()], reader.get_metrics_data())
"""


def test_the_first_requests_for_other_paths_may_come_at_once() -> None:
    """The framework that answers them is imported for the first one."""
    with (
        http_receiver() as receiver,
        httpx.Client(base_url=receiver.url, timeout=60) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        answers = threads.map(lambda _: client.get("/nothing").status_code, range(8))
        assert [*answers] == [404] * 8


@pytest.mark.process
def test_the_bridge_reports_nothing_of_itself_to_the_providers_of_the_process() -> None:
    # Else a bridge beside a program that reports to it would report every report, for ever.
    environ = {
        **os.environ,
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    finished = subprocess.run(
        [sys.executable, "-c", REPORTS_OF_ITSELF],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        check=False,
    )
    assert finished.stdout.strip() == "[] None", finished.stderr
