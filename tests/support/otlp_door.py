"""One way to send OTLP over either protocol, whatever the signal, with one answer and one error."""

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import grpc
import httpx
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.signals import Signal
from tests.support.otlp_requests import Receiver, grpc_receiver, http_receiver

PROTOCOLS = ["http", "grpc"]

_PROTOBUF = {"content-type": "application/x-protobuf"}
_PATHS = {Signal.METRICS: "/v1/metrics", Signal.TRACES: "/v1/traces", Signal.LOGS: "/v1/logs"}
_SERVICES = {
    Signal.METRICS: "metrics.v1.MetricsService",
    Signal.TRACES: "trace.v1.TraceService",
    Signal.LOGS: "logs.v1.LogsService",
}


class Refused(Exception):
    """The sender was answered by an error.

    Args:
        code: Of gRPC; over HTTP, as the Status of the body has it.
        http: Status of HTTP, None over gRPC.
        status: That came with it.
        message: In words.
    """

    def __init__(self, code: int, http: int | None, status: Status, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.http = http
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Door:
    """A receiver, and a way to send to it."""

    protocol: str
    receiver: Receiver
    client: httpx.Client
    channel: grpc.Channel

    def send(
        self,
        body: bytes,
        signal: Signal = Signal.METRICS,
        *,
        is_zipped: bool = False,
        token: str = "",
    ) -> bytes:
        """Send a request in protobuf.

        Returns:
            The body of the answer.

        Raises:
            Refused: The answer is an error.
        """
        bearer = {"authorization": f"Bearer {token}"} if token else {}
        if self.protocol == "grpc":
            return self._call(body, signal, bearer, is_zipped=is_zipped)
        encoding = {"content-encoding": "gzip"} if is_zipped else {}
        sent = gzip.compress(body) if is_zipped else body
        headers = _PROTOBUF | bearer | encoding
        answer = self.client.post(_PATHS[signal], content=sent, headers=headers)
        assert answer.headers["content-type"] == "application/x-protobuf"
        if answer.status_code != 200:
            status = Status.FromString(answer.content)
            raise Refused(status.code, answer.status_code, status, status.message)
        return answer.content

    def _call(
        self, body: bytes, signal: Signal, metadata: Mapping[str, str], *, is_zipped: bool
    ) -> bytes:
        method = f"/opentelemetry.proto.collector.{_SERVICES[signal]}/Export"
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = self.channel.unary_unary(method, bytes, bytes)
        compression = grpc.Compression.Gzip if is_zipped else None
        try:
            return call(body, timeout=60, metadata=tuple(metadata.items()), compression=compression)
        except grpc.RpcError as error:
            details = {datum.key: datum.value for datum in error.trailing_metadata() or ()}
            status = Status.FromString(details.get("grpc-status-details-bin", b""))
            code, message = error.code().value[0], error.details() or ""
            raise Refused(code, None, status, message) from error


@contextmanager
def door_of(
    protocol: str,
    limits: ReceiveLimits | None = None,
    auth: Sequence[TeamSettings] = (),
    audit: Audit | None = None,
) -> Iterator[Door]:
    """Run a receiver of a protocol inside the context."""
    receivers: dict[str, Callable[..., AbstractContextManager[Receiver]]] = {
        "http": http_receiver,
        "grpc": grpc_receiver,
    }
    with (
        receivers[protocol](limits, auth=auth, audit=audit) as receiver,
        httpx.Client(base_url=receiver.url, timeout=60, verify=False) as client,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        yield Door(protocol, receiver, client, channel)
