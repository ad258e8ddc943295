"""Who may write what: TLS, mutual TLS and bearer tokens, over real sockets and both protocols."""

import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path

import grpc
import httpx
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcExporter,
)
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpExporter,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tls import Tls
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.errors import ConfigError
from otel_rl.worker.export.sender import open_transport
from otel_rl.worker.export.transport import Outcome
from otel_rl.worker.settings import SignalSettings, read_settings
from tests.process.commands import clean_environment
from tests.support import plain_http
from tests.support.otlp_requests import (
    Receiver,
    grpc_receiver,
    http_receiver,
    metrics_request,
    trace_request,
)
from tests.support.tls_files import tls_files, tls_settings

PROTOBUF = {"content-type": "application/x-protobuf"}
EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
OLD, NEW, STRANGE = "old-" + "a" * 32, "new-" + "b" * 32, "strange-" + "c" * 32
AUTH = (
    TeamSettings(
        name="team",
        experiments=("x", "team-*"),
        sha256=tuple(sha256(token.encode()).hexdigest() for token in (OLD, NEW)),
    ),
)
GAUGE = metrics_request().SerializeToString()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tls_files(tmp_path_factory.mktemp("tls"))


def requests_of(*experiments: str) -> ExportMetricsServiceRequest:
    """What a collector joins: one point of each experiment."""
    joined = ExportMetricsServiceRequest()
    for experiment in experiments:
        joined.MergeFrom(metrics_request(resource={"rl.experiment.name": experiment}))
    return joined


# The same sender over both protocols


class Refused(Exception):
    """The sender was answered by an error, or not at all."""

    def __init__(self, code: int, status: Status | None) -> None:
        super().__init__(code)
        self.code = code  # of gRPC; over HTTP as the Status says
        self.status = status


Send = Callable[[Receiver, bytes, dict[str, str]], ExportMetricsServiceResponse]


def send_http(
    receiver: Receiver, body: bytes, headers: dict[str, str]
) -> ExportMetricsServiceResponse:
    url = receiver.url + "/v1/metrics"
    answer = plain_http.post(url, content=body, headers=PROTOBUF | headers, timeout=60)
    if answer.status_code != 200:
        status = Status.FromString(answer.content)
        raise Refused(status.code, status)
    return ExportMetricsServiceResponse.FromString(answer.content)


def send_grpc(
    receiver: Receiver, body: bytes, headers: dict[str, str]
) -> ExportMetricsServiceResponse:
    with grpc.insecure_channel(receiver.server.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(EXPORT, bytes, bytes)
        try:
            answer = call(body, timeout=60, metadata=tuple(headers.items()))
        except grpc.RpcError as exc:
            details = {datum.key: datum.value for datum in exc.trailing_metadata() or ()}
            raw = details.get("grpc-status-details-bin")
            status = Status.FromString(raw) if raw is not None else None
            raise Refused(exc.code().value[0], status) from exc
    return ExportMetricsServiceResponse.FromString(answer)


@pytest.fixture(scope="module")
def receivers() -> Iterator[dict[str, Receiver]]:
    with http_receiver(auth=AUTH) as over_http, grpc_receiver(auth=AUTH) as over_grpc:
        yield {"http": over_http, "grpc": over_grpc}


@pytest.fixture(params=["http", "grpc"])
def guarded(request: pytest.FixtureRequest, receivers: dict[str, Receiver]) -> Receiver:
    receiver = receivers[request.param]
    receiver.journal.take()
    return receiver


@pytest.fixture
def send(request: pytest.FixtureRequest) -> Send:
    protocol = request.node.callspec.params["guarded"]
    return send_http if protocol == "http" else send_grpc


# Tokens


@pytest.mark.parametrize("token", [OLD, NEW])
def test_20_each_valid_token_is_taken_so_that_they_can_be_exchanged(
    guarded: Receiver, send: Send, token: str
) -> None:
    assert not send(guarded, GAUGE, bearer(token)).HasField("partial_success")
    assert len(guarded.journal.take()) == 1


@pytest.mark.parametrize("headers", [{}, bearer(STRANGE), {"authorization": f"Basic {OLD}"}])
def test_20_without_a_valid_token_nothing_is_taken_and_the_answer_is_final(
    guarded: Receiver, send: Send, headers: dict[str, str]
) -> None:
    before = guarded.counts().get(("requests", "unauthenticated"), 0)
    with pytest.raises(Refused) as caught:
        send(guarded, GAUGE, headers)
    assert caught.value.code == 16
    status = caught.value.status
    assert status is not None
    assert "token" in status.message
    assert not status.details  # no RetryInfo: sending it again does not help
    assert guarded.journal.take() == []
    assert guarded.counts()["requests", "unauthenticated"] == before + 1


def test_20_http_says_401_and_what_it_wants(receivers: dict[str, Receiver]) -> None:
    url = receivers["http"].url + "/v1/metrics"
    answer = plain_http.post(
        url, content=b"{}", headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "retry-after" not in answer.headers
    assert answer.json()["code"] == 16


def test_a_stranger_learns_nothing_of_the_limits(receivers: dict[str, Receiver]) -> None:
    url = receivers["http"].url + "/v1/metrics"
    for headers in ({"content-type": "text/html"}, {"content-encoding": "zstd"}):
        assert plain_http.post(url, content=b"x", headers=headers, timeout=60).status_code == 401


def test_nothing_of_a_strangers_message_is_held() -> None:
    limits = ReceiveLimits(max_body_bytes=1 << 20, max_in_flight_bytes=2 << 20)
    with http_receiver(limits, auth=AUTH) as receiver:
        with pytest.raises(Refused) as caught:
            send_http(receiver, bytes(10 << 20), {})
        assert caught.value.code == 16
    with grpc_receiver(limits, auth=AUTH) as receiver:
        with pytest.raises(Refused) as caught:
            send_grpc(receiver, bytes(10 << 20), {})
        assert caught.value.code == 16


def test_health_needs_no_token(receivers: dict[str, Receiver]) -> None:
    assert plain_http.get(receivers["http"].url + "/healthz", timeout=60).status_code == 200


def test_23_an_experiment_of_others_is_refused_and_the_rest_is_taken(
    guarded: Receiver, send: Send
) -> None:
    before = guarded.counts().get(("points.refused", "not_allowed"), 0)
    body = requests_of("x", "theirs", "team-7").SerializeToString()
    partial = send(guarded, body, bearer(NEW)).partial_success
    assert partial.rejected_data_points == 1
    assert "not_allowed" in partial.error_message
    assert "Team team may not write experiment 'theirs'" in partial.error_message
    written = [batch.experiment.experiment for batch in guarded.journal.take()]
    assert written == ["x", "team-7"]
    assert guarded.counts()["points.refused", "not_allowed"] == before + 1


def test_spans_of_others_are_refused_too(receivers: dict[str, Receiver]) -> None:
    receiver = receivers["http"]
    receiver.journal.take()
    answer = plain_http.post(
        receiver.url + "/v1/traces",
        content=trace_request(resource={"rl.experiment.name": "theirs"}).SerializeToString(),
        headers=PROTOBUF | bearer(OLD),
    )
    assert answer.status_code == 200
    assert b"not_allowed" in answer.content
    assert receiver.journal.take() == []


@pytest.mark.parametrize("first", ["x", "theirs"])
def test_a_name_that_is_given_twice_is_no_way_around(
    guarded: Receiver, send: Send, first: str
) -> None:
    request = metrics_request(resource={"rl.experiment.name": first})
    attributes = request.resource_metrics[0].resource.attributes
    again = attributes.add(key="rl.experiment.name")
    again.value.string_value = {"x": "theirs", "theirs": "x"}[first]
    partial = send(guarded, request.SerializeToString(), bearer(OLD)).partial_success
    assert partial.rejected_data_points == 1
    assert "given twice" in partial.error_message
    assert guarded.journal.take() == []


def test_data_without_a_name_is_held_to_the_token_by_the_default_name() -> None:
    body = metrics_request(resource={"service.name": "vllm"}).SerializeToString()
    for default, n_taken in (("x", 1), ("theirs", 0)):
        limits = ReceiveLimits(default_experiment=default)
        with http_receiver(limits, auth=AUTH) as receiver:
            send_http(receiver, body, bearer(OLD))
            assert len(receiver.journal.take()) == n_taken


# TLS


def https(receiver: Receiver, context: ssl.SSLContext) -> int:
    url = f"https://{receiver.server.address}/v1/metrics"
    return httpx.post(url, content=GAUGE, headers=PROTOBUF, verify=context, timeout=60).status_code


def context(files: Path, *, trusts: str = "ca.pem", shows: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files / trusts))
    if shows:
        made.load_cert_chain(str(files / f"{shows}.pem"), str(files / f"{shows}.key"))
    return made


def secure_call(
    receiver: Receiver, files: Path, *, trusts: str = "ca.pem", shows: str = ""
) -> bytes:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=(files / trusts).read_bytes(),
        private_key=(files / f"{shows}.key").read_bytes() if shows else None,
        certificate_chain=(files / f"{shows}.pem").read_bytes() if shows else None,
    )
    with grpc.secure_channel(receiver.server.address, credentials) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(EXPORT, bytes, bytes)
        return call(GAUGE, timeout=60)


@pytest.fixture(scope="module")
def tls_http(files: Path) -> Iterator[Receiver]:
    with http_receiver(tls=tls_settings(files)) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def tls_grpc(files: Path) -> Iterator[Receiver]:
    with grpc_receiver(tls=tls_settings(files)) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def mutual_http(files: Path) -> Iterator[Receiver]:
    with http_receiver(tls=tls_settings(files, mutual=True)) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def mutual_grpc(files: Path) -> Iterator[Receiver]:
    with grpc_receiver(tls=tls_settings(files, mutual=True)) as receiver:
        yield receiver


@pytest.mark.parametrize("token", ["", STRANGE])
@pytest.mark.parametrize(
    ("serve", "send", "target"),
    [(http_receiver, send_http, "/v1/metrics"), (grpc_receiver, send_grpc, EXPORT.lstrip("/"))],
    ids=["http", "grpc"],
)
def test_the_log_names_who_has_no_token_once_and_never_the_token(
    serve: Callable[..., AbstractContextManager[Receiver]],
    send: Send,
    target: str,
    token: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serve(auth=AUTH) as receiver:
        for _ in range(3):
            with pytest.raises(Refused):
                send(receiver, GAUGE, bearer(token) if token else {})
    (line,) = [message for message in caplog.messages if "127.0.0.1" in message]
    assert target in line
    assert ("not known" if token else "no bearer token") in line
    assert STRANGE not in caplog.text


def test_the_log_names_a_token_that_may_not_write_an_experiment(
    receivers: dict[str, Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    with http_receiver(auth=AUTH) as receiver:
        for _ in range(3):
            send_http(receiver, requests_of("theirs").SerializeToString(), bearer(OLD))
    (line,) = [message for message in caplog.messages if "theirs" in message]
    assert "Team team may not write experiment 'theirs'" in line


def test_https_is_served_and_http_is_not(tls_http: Receiver, files: Path) -> None:
    assert https(tls_http, context(files)) == 200
    with pytest.raises(httpx.TransportError):
        plain_http.post(tls_http.url + "/v1/metrics", content=GAUGE, headers=PROTOBUF, timeout=60)
    assert https(tls_http, context(files)) == 200


def test_grpc_over_tls_is_served_and_plain_grpc_is_not(tls_grpc: Receiver, files: Path) -> None:
    assert secure_call(tls_grpc, files) == b""
    with pytest.raises(Refused):
        send_grpc(tls_grpc, GAUGE, {})
    assert secure_call(tls_grpc, files) == b""


def test_a_sender_notices_another_server(
    tls_http: Receiver, tls_grpc: Receiver, files: Path
) -> None:
    with pytest.raises(httpx.ConnectError):
        https(tls_http, context(files, trusts="stranger-ca.pem"))
    with pytest.raises(grpc.RpcError):
        secure_call(tls_grpc, files, trusts="stranger-ca.pem")


def test_mutual_tls_takes_a_sender_with_a_certificate(
    mutual_http: Receiver, mutual_grpc: Receiver, files: Path
) -> None:
    assert https(mutual_http, context(files, shows="client")) == 200
    assert secure_call(mutual_grpc, files, shows="client") == b""


@pytest.mark.parametrize("shows", ["", "stranger"])
def test_mutual_tls_takes_no_other(
    mutual_http: Receiver, mutual_grpc: Receiver, files: Path, shows: str
) -> None:
    mutual_http.journal.take()
    mutual_grpc.journal.take()
    with pytest.raises(httpx.TransportError):
        https(mutual_http, context(files, shows=shows))
    with pytest.raises(grpc.RpcError):
        secure_call(mutual_grpc, files, shows=shows)
    assert mutual_http.journal.take() == []
    assert mutual_grpc.journal.take() == []


def test_another_authority_is_that_of_new_connections(files: Path, tmp_path: Path) -> None:
    authority = tmp_path / "client-ca.pem"
    authority.write_bytes((files / "ca.pem").read_bytes())
    tls = Tls(files / "server.pem", files / "server.key", authority)
    with http_receiver(tls=tls) as over_http, grpc_receiver(tls=tls) as over_grpc:
        assert https(over_http, context(files, shows="client")) == 200
        assert secure_call(over_grpc, files, shows="client") == b""

        authority.write_bytes((files / "stranger-ca.pem").read_bytes())
        tls.use(tls.read())
        assert https(over_http, context(files, shows="stranger")) == 200
        assert secure_call(over_grpc, files, shows="stranger") == b""
        with pytest.raises(httpx.TransportError):
            https(over_http, context(files, shows="client"))
        with pytest.raises(grpc.RpcError):
            secure_call(over_grpc, files, shows="client")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_not_spoken(
    tls_http: Receiver, files: Path, version: ssl.TLSVersion
) -> None:
    old = context(files)
    old.minimum_version = old.maximum_version = version
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(httpx.ConnectError):
        https(tls_http, old)


# The real exporters


def deliver(exporter: MetricExporter) -> bool:
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
    provider = MeterProvider([reader], resource=Resource({"rl.experiment.name": "x"}))
    provider.get_meter("test").create_counter("tokens").add(5)
    delivered = provider.force_flush(60_000)
    provider.shutdown()
    return delivered


def test_python_exporters_deliver_with_certificate_and_token(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests prefers them
        monkeypatch.delenv(variable, raising=False)
    settings = tls_settings(files, mutual=True)
    with (
        http_receiver(auth=AUTH, tls=settings) as over_http,
        grpc_receiver(auth=AUTH, tls=settings) as over_grpc,
    ):
        assert deliver(
            HttpExporter(
                endpoint=f"https://{over_http.server.address}/v1/metrics",
                certificate_file=str(files / "ca.pem"),
                client_key_file=str(files / "client.key"),
                client_certificate_file=str(files / "client.pem"),
                headers=bearer(OLD),
            )
        )
        credentials = grpc.ssl_channel_credentials(
            (files / "ca.pem").read_bytes(),
            (files / "client.key").read_bytes(),
            (files / "client.pem").read_bytes(),
        )
        assert deliver(
            GrpcExporter(
                endpoint=over_grpc.server.address, credentials=credentials, headers=bearer(OLD)
            )
        )
        assert over_http.journal.take()
        assert over_grpc.journal.take()


WORKER = """
import otel_rl
otel_rl.init()
otel_rl.log({"loss": 0.5}, step=1)
assert otel_rl.finish(timeout_s=60)
"""


@pytest.mark.process
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_worker_of_otel_rl_delivers_with_certificate_and_token(
    files: Path, tmp_path: Path, protocol: str
) -> None:
    serve = grpc_receiver if protocol == "grpc" else http_receiver
    with serve(auth=AUTH, tls=tls_settings(files, mutual=True)) as receiver:
        environment = clean_environment(
            tmp_path,
            OTEL_RL_EXPERIMENT="team-1",
            OTEL_RL_ROLE="trainer",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"https://{receiver.server.address}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_CERTIFICATE=str(files / "ca.pem"),
            OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=str(files / "client.pem"),
            OTEL_EXPORTER_OTLP_CLIENT_KEY=str(files / "client.key"),
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer%20{NEW}",
        )
        subprocess.run(
            [sys.executable, "-c", WORKER], env=environment, cwd=tmp_path, timeout=200, check=True
        )
        assert receiver.counts()["points.accepted", ""] >= 1
        assert {batch.experiment.experiment for batch in receiver.journal.batches} == {"team-1"}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_worker_that_is_pointed_at_tls_with_http_is_told_of_https(
    tls_http: Receiver, tls_grpc: Receiver, protocol: str
) -> None:
    address = (tls_grpc if protocol == "grpc" else tls_http).server.address
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    transport = open_transport(read_settings(variables, endpoint=f"http://{address}").metrics)
    reply = transport.send(GAUGE)
    transport.close()
    assert reply.outcome is Outcome.RETRY
    assert "write https:// instead of http://" in reply.message


def test_a_stop_waits_for_no_sender_that_rests(files: Path) -> None:
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    with (
        http_receiver(tls=tls_settings(files, mutual=False)) as receiver,
        httpx.Client(verify=context, timeout=60) as sender,
    ):
        url = f"https://{receiver.server.address}/v1/metrics"
        assert sender.post(url, content=GAUGE, headers=PROTOBUF).status_code == 200
        begin_s = time.monotonic()
        receiver.server.stop(grace_s=3600)
        # A server that waits for the end of the connection does so for half a minute.
        assert time.monotonic() - begin_s < 20


# At start


@pytest.mark.parametrize("server", [http_receiver, grpc_receiver])
@pytest.mark.parametrize("damage", ["missing", "garbage", "another key", "open to everybody"])
def test_35_bad_tls_files_fail_at_start_and_are_named(
    tmp_path: Path, server: Callable[..., AbstractContextManager[Receiver]], damage: str
) -> None:
    files = tls_files(tmp_path)
    key = files / "server.key"
    match damage:
        case "missing":
            key.unlink()
        case "garbage":
            key.write_bytes(b"no key")
        case "another key":
            key.write_bytes((files / "client.key").read_bytes())
        case _:
            key.chmod(0o644)
    with (
        pytest.raises(ConfigError, match=r"tls\.key.*server\.key"),
        server(tls=tls_settings(files)),
    ):
        pass


def test_a_worker_trusts_what_its_exporter_is_told_to_and_not_what_the_cluster_does(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By this name it is another machine to the worker, whose environment then counts.
    monkeypatch.setattr(SignalSettings, "is_loopback", False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(files / "client.pem"))
    with http_receiver(tls=tls_settings(files, mutual=False)) as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{receiver.server.address}",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files / "ca.pem"),
        }
        transport = open_transport(read_settings(environment).metrics)
        try:
            reply = transport.send(transport.prepare(b""))
        finally:
            transport.close()
    assert reply.outcome is Outcome.ACCEPTED, reply.message
