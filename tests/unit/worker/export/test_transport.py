import gzip
import itertools
import math
import shutil
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from otel_rl.bridge.rows.settings import RowSettings
from otel_rl.worker.export.sender import open_transport
from otel_rl.worker.export.transport import Outcome, Reply, Transport
from otel_rl.worker.settings import read_settings
from tests.support.otlp_requests import grpc_receiver
from tests.support.otlp_sink import Sink

CA = Path(__file__).parents[3] / "tls" / "ca.pem"

PARTIAL = ExportMetricsServiceResponse(
    partial_success=ExportMetricsPartialSuccess(rejected_data_points=2, error_message="why")
)


def over_http(url: str, environ: dict[str, str] | None = None) -> Transport:
    return open_transport(read_settings(environ or {}, endpoint=url).metrics)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.ACCEPTED),
        (400, Outcome.REFUSED),
        (401, Outcome.REFUSED),
        (404, Outcome.REFUSED),
        (413, Outcome.REFUSED),
        (429, Outcome.RETRY),
        (500, Outcome.REFUSED),
        (502, Outcome.RETRY),
        (503, Outcome.RETRY),
        (504, Outcome.RETRY),
        (302, Outcome.REFUSED),
    ],
)
def test_http_statuses_are_retried_as_otlp_says(sink: Sink, status: int, outcome: Outcome) -> None:
    sink.answer = lambda _number: (status, {"Location": "/"}, b"")
    reply = over_http(sink.url).send(b"")
    assert reply.outcome is outcome
    assert reply.wants_token == (status == 401)


@pytest.mark.parametrize(
    ("header", "low_s", "high_s"),
    [
        ("7", 7, 7),
        ("999999", 300, 300),
        ("-5", 0, 0),
    ],
)
def test_retry_after_is_read_and_bounded(
    sink: Sink, header: str, low_s: float, high_s: float
) -> None:
    sink.answer = lambda _number: (503, {"Retry-After": header}, b"")
    reply = over_http(sink.url).send(b"")
    assert reply.retry_after_s is not None
    assert low_s <= reply.retry_after_s <= high_s


def test_retry_after_may_be_a_date(sink: Sink) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    sink.answer = lambda _number: (503, {"Retry-After": later}, b"")
    reply = over_http(sink.url).send(b"")
    assert reply.retry_after_s is not None
    assert 30 <= reply.retry_after_s <= 100


@pytest.mark.parametrize("header", ["soon", "nan", ""])
def test_a_retry_after_that_says_nothing_is_ignored(sink: Sink, header: str) -> None:
    sink.answer = lambda _number: (503, {"Retry-After": header}, b"")
    assert over_http(sink.url).send(b"").retry_after_s is None


def test_a_partial_success_is_read(sink: Sink) -> None:
    sink.answer = lambda _number: (200, {}, PARTIAL.SerializeToString())
    assert over_http(sink.url).send(b"") == Reply(Outcome.ACCEPTED, "why", rejected=2)


def test_an_answer_that_is_no_protobuf_is_still_an_acknowledgement(sink: Sink) -> None:
    sink.answer = lambda _number: (200, {}, b"\xff<html>")
    assert over_http(sink.url).send(b"").outcome is Outcome.ACCEPTED


def test_a_zipped_answer_that_nobody_asked_for_is_read(sink: Sink) -> None:
    zipped = gzip.compress(PARTIAL.SerializeToString())
    sink.answer = lambda _number: (200, {"Content-Encoding": "gzip"}, zipped)
    assert over_http(sink.url).send(b"") == Reply(Outcome.ACCEPTED, "why", rejected=2)


def test_a_zipped_answer_of_nothing_for_ever_is_given_up() -> None:
    nothing = b"\x00\x00\x00\xff\xff"  # a block of deflate
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9999\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as endless:

        def drip() -> bool:
            connection, _ = endless.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(head + gzip.compress(b"")[:10])
                connection.settimeout(0.05)
                for _ in range(1000):
                    connection.sendall(nothing)
                    with suppress(TimeoutError):
                        if not connection.recv(1):
                            return True  # the client has gone
            return False

        url = f"http://127.0.0.1:{endless.getsockname()[1]}"
        with futures.ThreadPoolExecutor(1) as thread:
            dripping = thread.submit(drip)
            reply = over_http(url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}).send(b"")
            assert dripping.result(120)
    assert reply.outcome is Outcome.RETRY


def test_a_refused_connection_is_retried() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert over_http(f"http://127.0.0.1:{port}").send(b"").outcome is Outcome.RETRY


def test_an_endpoint_that_accepts_and_never_answers_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        transport = over_http(url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"})
        assert transport.send(b"").outcome is Outcome.RETRY


def test_headers_and_gzip_are_sent(sink: Sink) -> None:
    transport = over_http(
        sink.url,
        {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=s3cret", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
    )
    payload = ExportMetricsServiceRequest().SerializeToString()
    assert transport.send(transport.prepare(payload)).outcome is Outcome.ACCEPTED
    (headers,) = sink.headers
    assert headers["api-key"] == "s3cret"
    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"] == "application/x-protobuf"


def test_a_proxy_of_the_cluster_is_not_used_for_this_machine(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert over_http(sink.url).send(b"").outcome is Outcome.ACCEPTED


def test_a_proxy_of_the_cluster_is_used_for_other_machines(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", sink.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    transport = over_http("http://bridge.invalid:4318")
    assert transport.send(b"").outcome is Outcome.ACCEPTED
    assert sink.order == ["http://bridge.invalid:4318/v1/metrics"]


def test_a_netrc_file_does_not_replace_the_token_of_the_headers(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("default login user password other\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", sink.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20token"}
    over_http("http://bridge.invalid:4318", headers).send(b"")
    assert sink.headers[-1]["authorization"] == "Bearer token"


def test_a_proxy_that_cannot_be_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    reply = over_http("http://bridge.invalid:4318").send(b"")
    assert reply.outcome is Outcome.REFUSED
    assert "by the proxy http://:1" in reply.message


def test_a_proxy_on_the_way_is_named_with_what_avoids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://someone:s3cret@127.0.0.1:9")
    reply = over_http("http://192.0.2.77:4318").send(b"")
    assert reply.outcome is Outcome.RETRY
    assert "by the proxy http://" in reply.message
    assert "127.0.0.1:9" in reply.message
    assert "192.0.2.77 avoids it" in reply.message
    assert "s3cret" not in reply.message


def test_a_proxy_of_the_cluster_is_not_used_for_grpc_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with grpc_receiver() as receiver:
        variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        settings = read_settings(variables, endpoint=f"http://{receiver.server.address}")
        transport = open_transport(settings.metrics)
        reply = transport.send(b"")
        transport.close()
    assert reply.outcome is Outcome.ACCEPTED, reply.message


def with_certificate(url: str, certificate: Path, **environ: str) -> Transport:
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate), **environ}
    return open_transport(read_settings(variables, endpoint=url).metrics)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_certificate_that_has_vanished_is_said(tmp_path: Path, protocol: str) -> None:
    certificate = tmp_path / "ca.pem"
    shutil.copy(CA, certificate)
    transport = with_certificate(
        "https://127.0.0.1:1", certificate, OTEL_EXPORTER_OTLP_PROTOCOL=protocol
    )
    certificate.unlink()
    reply = transport.send(b"")
    assert reply.outcome is Outcome.RETRY
    assert str(certificate) in reply.message
    shutil.copy(CA, certificate)
    assert transport.send(b"").outcome is Outcome.RETRY  # nobody listens
    transport.close()


def test_a_certificate_that_vanishes_between_two_connections_is_said(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    shutil.copy(CA, certificate)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        transport = with_certificate(url, certificate, OTEL_EXPORTER_OTLP_TIMEOUT="0.2")
        assert transport.send(b"").outcome is Outcome.RETRY
        certificate.unlink()
        reply = transport.send(b"")
    assert reply.outcome is Outcome.RETRY
    assert str(certificate) in reply.message


def test_requests_follow_each_other_on_one_connection(sink: Sink) -> None:
    transport = over_http(sink.url)
    sink.answer = lambda number: (503, {}, b"") if number == 1 else (200, {}, b"")
    outcomes = [transport.send(b"").outcome for _ in range(4)]
    assert outcomes == [Outcome.ACCEPTED, Outcome.RETRY, Outcome.ACCEPTED, Outcome.ACCEPTED]
    assert len(set(sink.ports)) == 1


def test_an_answer_that_breaks_off_is_no_acknowledgement() -> None:
    with socket.create_server(("127.0.0.1", 0)) as half:
        url = f"http://127.0.0.1:{half.getsockname()[1]}"

        def answer() -> None:
            connection, _ = half.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")

        with futures.ThreadPoolExecutor(1) as thread:
            answered = thread.submit(answer)
            reply = over_http(url).send(b"")
            answered.result(60)
    assert reply.outcome is Outcome.RETRY
    assert not reply.unreachable


def test_addresses_that_swallow_packets_take_less_than_the_patience_of_a_bridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_s: list[float | None] = []

    def swallow(self: socket.socket, _address: object) -> None:
        waits_s.append(self.gettimeout())
        raise TimeoutError

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{n}", 4318)) for n in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments: found)
    monkeypatch.setattr(socket.socket, "connect", swallow)
    reply = over_http("http://bridge.example:4318").send(b"")
    assert reply.unreachable
    assert len(waits_s) == 2
    assert sum(one or math.inf for one in waits_s) < RowSettings().worker_timeout_s


@pytest.fixture
def deaf() -> Iterator[str]:
    """URL of a port that is taken, and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("is_named", [True, False])
def test_a_refused_connection_is_told_and_at_the_default_endpoint_the_remedy(
    deaf: str, *, is_named: bool
) -> None:
    signal = replace(read_settings({}, endpoint=deaf).metrics, is_named=is_named)
    reply = open_transport(signal).send(b"")
    assert reply.unreachable
    assert reply.message.startswith("Connection refused at http://127.0.0.1:")
    assert ("otel-rl run" in reply.message) is not is_named


def test_an_unknown_host_is_told_in_the_words_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_arguments: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    reply = over_http("http://bridge.example:4318").send(b"")
    assert reply.unreachable
    place = "http://bridge.example:4318/v1/metrics"
    assert reply.message == f"Name or service not known at {place}"


class GrpcServer(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Takes exports; fails with ``code`` if one is set."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.answer = PARTIAL
        self.compression = grpc.Compression.NoCompression
        self.retry_after_s: int | None = None
        self.requests: list[ExportMetricsServiceRequest] = []
        self.metadata: dict[str, str | bytes] = {}
        self.url = ""

    def Export(  # noqa: N802  # gRPC's name
        self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> ExportMetricsServiceResponse:
        self.metadata = dict(context.invocation_metadata())
        context.set_compression(self.compression)
        if self.code is not None:
            if self.retry_after_s is not None:
                context.set_trailing_metadata(
                    (("grpc-status-details-bin", retry_info(self.code, self.retry_after_s)),)
                )
            context.abort(self.code, "told to")
        self.requests.append(request)
        return self.answer


def retry_info(code: grpc.StatusCode, seconds: int) -> bytes:
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    detail = Any()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    serialized: bytes = Status(code=code.value[0], details=[detail]).SerializeToString()
    return serialized


@pytest.fixture
def grpc_server() -> Iterator[GrpcServer]:
    servicer = GrpcServer()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(  # type: ignore[no-untyped-call]
        servicer, server
    )
    servicer.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(0).wait(60)


def over_grpc(url: str) -> Transport:
    environ = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s3cret",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "5",
    }
    return open_transport(read_settings(environ, endpoint=url).metrics)


def test_grpc_hands_over_the_same_bytes(grpc_server: GrpcServer) -> None:
    transport = over_grpc(grpc_server.url)
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add(schema_url="x")
    reply = transport.send(transport.prepare(request.SerializeToString()))
    transport.close()
    assert reply == Reply(Outcome.ACCEPTED, "why", rejected=2)
    assert grpc_server.requests == [request]
    assert grpc_server.metadata["api-key"] == "s3cret"


@pytest.mark.parametrize(
    ("code", "retry_after_s", "outcome"),
    [
        (grpc.StatusCode.UNAVAILABLE, None, Outcome.RETRY),
        (grpc.StatusCode.UNAVAILABLE, 9, Outcome.RETRY),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, Outcome.RETRY),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None, Outcome.REFUSED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 4, Outcome.RETRY),
        (grpc.StatusCode.INVALID_ARGUMENT, None, Outcome.REFUSED),
        (grpc.StatusCode.UNAUTHENTICATED, None, Outcome.REFUSED),
    ],
)
def test_grpc_codes_are_retried_as_otlp_says(
    grpc_server: GrpcServer,
    code: grpc.StatusCode,
    retry_after_s: int | None,
    outcome: Outcome,
) -> None:
    grpc_server.code, grpc_server.retry_after_s = code, retry_after_s
    transport = over_grpc(grpc_server.url)
    reply = transport.send(b"")
    transport.close()
    assert (reply.outcome, reply.retry_after_s) == (outcome, retry_after_s)
    assert reply.wants_token == (code is grpc.StatusCode.UNAUTHENTICATED)


LIMIT = 64 << 10
"""Bytes that are read of an answer."""

BLOCK = b"x" * 4096


class Hostile:
    """A server that answers with bytes of its own until it is hung up on, or has sent all of them.

    Args:
        answer: What it sends, piece by piece.
    """

    def __init__(self, answer: Iterable[bytes]) -> None:
        self.sent = 0
        self.was_hung_up_on = False
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Little, so that what was sent is about what was read.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.recv(1 << 16)
            try:
                for piece in self._answer:
                    peer.sendall(piece)
                    self.sent += len(piece)
            except OSError:
                self.was_hung_up_on = True

    def close(self) -> None:
        self._listener.close()
        self._thread.join()


@pytest.fixture
def hostile() -> Iterator[Callable[..., Hostile]]:
    made: list[Hostile] = []

    def make(answer: Iterable[bytes]) -> Hostile:
        made.append(Hostile(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def head(status: str, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode()


def chunks(block: bytes, n: int) -> Iterator[bytes]:
    return itertools.repeat(b"%x\r\n%s\r\n" % (len(block), block), n)


MANY = 16_384
"""Pieces of an answer that has an end only so that a test of what reads it all has one: 64 MiB."""

LONG_ANSWERS = {
    "a body without a length": lambda: [head("200 OK"), *itertools.repeat(BLOCK, MANY)],
    "a body of a length": lambda: [
        head("200 OK", f"Content-Length: {MANY * len(BLOCK)}"),
        *itertools.repeat(BLOCK, MANY),
    ],
    "a length that no machine has room for": lambda: [
        head("200 OK", f"Content-Length: {1 << 60}"),
        *itertools.repeat(BLOCK, MANY),
    ],
    "chunks": lambda: [head("200 OK", "Transfer-Encoding: chunked"), *chunks(BLOCK, MANY)],
}


@pytest.mark.parametrize("answer", LONG_ANSWERS.values(), ids=LONG_ANSWERS)
def test_of_an_answer_that_does_not_end_little_is_read(
    hostile: Callable[..., Hostile], answer: Callable[[], Iterable[bytes]]
) -> None:
    server = hostile(answer())
    tracemalloc.start()
    try:
        reply = over_http(server.url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}).send(b"")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    server.close()
    assert reply.outcome is Outcome.ACCEPTED
    assert server.was_hung_up_on
    # Beside the bound, what the kernel holds of a connection that is hung up on.
    assert server.sent < LIMIT + (8 << 20)
    assert most_bytes < 16 * LIMIT


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("400 Bad", Outcome.REFUSED), ("503 Away", Outcome.RETRY), ("307 There", Outcome.REFUSED)],
)
def test_a_status_stands_though_its_body_does_not_end(
    hostile: Callable[..., Hostile], status: str, outcome: Outcome
) -> None:
    answer = [head(status, "Retry-After: 7", "Location: /"), *itertools.repeat(BLOCK, MANY)]
    server = hostile(answer)
    reply = over_http(server.url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}).send(b"")
    server.close()
    assert reply.outcome is outcome
    assert server.was_hung_up_on
    assert reply.retry_after_s == (7 if outcome is Outcome.RETRY else None)


@pytest.mark.parametrize(
    ("status", "outcome"), [("200 OK", Outcome.RETRY), ("400 Bad", Outcome.REFUSED)]
)
def test_an_answer_that_drips_holds_the_sender_no_longer_than_the_timeout(
    hostile: Callable[..., Hostile], status: str, outcome: Outcome
) -> None:
    pause = threading.Event()

    def drip() -> Iterator[bytes]:
        yield head(status, "Content-Length: 1000")
        for _ in range(100):
            pause.wait(0.2)
            yield b"x"

    server = hostile(drip())
    reply = over_http(server.url, {"OTEL_EXPORTER_OTLP_TIMEOUT": "2"}).send(b"")
    server.close()
    assert reply.outcome is outcome
    assert not reply.unreachable
    assert server.was_hung_up_on


def test_a_connection_is_used_again_after_whatever_answer_ends(sink: Sink) -> None:
    answers = [(200, PARTIAL.SerializeToString()), (503, b"away"), (400, b"no"), (200, b"")]
    sink.answer = lambda number: (answers[number][0], {}, answers[number][1])
    transport = over_http(sink.url)
    for _ in range(4):
        transport.send(b"")
    assert len(set(sink.ports)) == 1


def test_a_header_in_the_environment_adds_no_header_of_its_own(sink: Sink) -> None:
    transport = over_http(sink.url, {"OTEL_EXPORTER_OTLP_HEADERS": "a=s3cret%0D%0Ax-more:1"})
    reply = transport.send(b"")
    assert reply.outcome is Outcome.REFUSED
    assert "OTEL_EXPORTER_OTLP_HEADERS" in reply.message
    assert "s3cret" not in reply.message
    assert sink.headers == []


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:9", "a=%E2%82%AC"),
        ("http://*.example:4318", ""),
        ("http://a..example:4318", ""),
    ],
)
def test_settings_of_which_no_request_can_be_made_are_not_tried_for_ever(
    url: str, headers: str
) -> None:
    reply = over_http(url, {"OTEL_EXPORTER_OTLP_HEADERS": headers}).send(b"")
    assert reply.outcome is Outcome.REFUSED
    assert "no request can be made" in reply.message


def test_lengths_that_contradict_each_other_are_a_mistake_of_the_answer(
    hostile: Callable[..., Hostile],
) -> None:
    server = hostile([head("200 OK", "Content-Length: 3", "Content-Length: 4"), b"four"])
    assert over_http(server.url).send(b"").outcome is Outcome.RETRY


def test_credentials_in_the_url_are_sent_and_not_told(sink: Sink) -> None:
    transport = over_http(sink.url.replace("://", "://user:secret@"))
    assert transport.send(b"").outcome is Outcome.ACCEPTED
    assert sink.headers[0]["authorization"].startswith("Basic ")
    sink.answer = lambda _number: (400, {}, b"")
    reply = transport.send(b"")
    assert "400" in reply.message
    assert "secret" not in reply.message


ODD_ANSWERS = {
    "no body": (head("204 No Content"), Outcome.ACCEPTED, ""),
    "chunks without a size": (
        head("200 OK", "Transfer-Encoding: chunked") + b"x\r\n",
        Outcome.RETRY,
        "",
    ),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", Outcome.RETRY, "BadStatusLine"),
    "nothing": (b"", Outcome.RETRY, "RemoteDisconnected"),
}


@pytest.mark.parametrize(("answer", "outcome", "message"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_odd_answers_are_no_defect(
    hostile: Callable[..., Hostile], answer: bytes, outcome: Outcome, message: str
) -> None:
    server = hostile([answer])
    reply = over_http(server.url).send(b"")
    assert reply.outcome is outcome
    assert message in reply.message


def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        closed = threading.Event()

        def serve() -> None:
            for _ in range(2):
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    return  # the outcome says it
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(head("200 OK", "Content-Length: 0"))
                closed.set()

        thread = threading.Thread(target=serve)
        thread.start()
        transport = over_http(f"http://127.0.0.1:{listener.getsockname()[1]}")
        outcomes = [transport.send(b"").outcome]
        assert closed.wait(60)
        outcomes.append(transport.send(b"").outcome)
        thread.join()
    assert outcomes == [Outcome.ACCEPTED, Outcome.ACCEPTED]


def test_the_final_answer_behind_an_interim_one_is_not_taken_for_that_of_the_next_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            final = head("200 OK", "Content-Length: 0")
            first, _ = listener.accept()
            with first:
                first.recv(1 << 16)
                first.sendall(head("103 Early Hints", "Link: x"))
                if first.recv(1 << 16):  # the next request, on the same connection
                    first.sendall(final)
                    return
            second, _ = listener.accept()
            with second:
                second.recv(1 << 16)
                second.sendall(head("503 Away", "Content-Length: 0"))

        with futures.ThreadPoolExecutor(1) as thread:
            served = thread.submit(serve)
            transport = over_http(f"http://127.0.0.1:{listener.getsockname()[1]}")
            replies = [transport.send(b"") for _ in range(2)]
            served.result(60)
    assert [reply.outcome for reply in replies] == [Outcome.RETRY, Outcome.RETRY]
    assert "103" in replies[0].message
    assert "503" in replies[1].message


def test_an_answer_before_the_end_of_a_request_stands_though_the_server_closes() -> None:
    """As a proxy that takes no large request does it: sent again for ever, it would block all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                peer.sendall(head("413 Too Large", "Content-Length: 0"))

        with futures.ThreadPoolExecutor(1) as thread:
            refused = thread.submit(refuse)
            transport = over_http(f"http://127.0.0.1:{listener.getsockname()[1]}")
            reply = transport.send(bytes(32 << 20))
            refused.result(60)
    assert reply.outcome is Outcome.REFUSED
    assert "413" in reply.message
