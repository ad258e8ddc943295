"""OTLP/gRPC: one attempt to send encoded bytes."""

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import grpc

from otel_rl.redaction import redacted
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.export.transport import (
    MAX_RETRY_AFTER_S,
    PERHAPS_TLS,
    Outcome,
    Reply,
    Transport,
    accepted,
)
from otel_rl.worker.forks import Uncut
from otel_rl.worker.settings import SignalSettings

_RETRYABLE_CODES: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
"""As the OTLP specification lists them; RESOURCE_EXHAUSTED is one only with RetryInfo."""

_MAX_FORK_WAIT_S: Final = 0.5  # an endpoint that hangs must not hold up the program

_GRPC_UNCONNECTED: Final = "failed to connect"
"""Text in gRPC's own status for an address where no server listens."""

_GRPC_CLOSED: Final = "Socket closed"
"""Text in gRPC's own status for a server that ends the connection at once."""

_GRPC_METHODS: Final = {
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    Signal.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}


class GrpcTransport:
    """OTLP/gRPC. Transports to one place share its channel."""

    def __init__(self, signal: SignalSettings, beside: Sequence[Transport]) -> None:
        self._signal = signal
        self.peer = signal.peer
        self._beside = next(
            (one for one in beside if isinstance(one, GrpcTransport) and one.peer == self.peer),
            None,
        )
        self._channel: grpc.Channel | None = None
        self._call: Callable[..., bytes] | None = None
        self._calls = Uncut(_MAX_FORK_WAIT_S)
        self._metadata = (*signal.headers, ("user-agent", f"otel_rl/{__version__}"))
        self._timeout_s = signal.timeout_s
        self._place = redacted(signal.url)

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, body: bytes) -> Reply:
        try:
            call = self._call = self._call or self._find_call()
            with self._calls.work():
                answer = call(body, timeout=self._timeout_s, metadata=self._metadata)
            return accepted(answer)
        except grpc.RpcError as error:
            return self._failed(error)
        except OSError as error:  # of a file that has vanished
            return Reply(
                Outcome.RETRY, f"{type(error).__name__} at {self._place}: {redacted(str(error))}"
            )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def channel(self) -> grpc.Channel:
        """Return the channel, opening it if it was not.

        Raises:
            OSError: A file of its certificates or keys cannot be read.
        """
        if self._channel is None:
            beside = self._beside
            self._channel = _grpc_channel(self._signal) if beside is None else beside.channel()
        return self._channel

    def _find_call(self) -> Callable[..., bytes]:
        call: Callable[..., bytes] = self.channel().unary_unary(
            _GRPC_METHODS[self._signal.signal],
            request_serializer=_identity,
            response_deserializer=_identity,
        )
        return call

    def _failed(self, error: Exception) -> Reply:
        code = getattr(getattr(error, "code", lambda: None)(), "name", "UNKNOWN")
        delay_s = _retry_info_s(error)
        message = f"gRPC {code} from {self._place}"
        details = str(getattr(error, "details", lambda: None)() or "")
        if code in _RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and delay_s is not None):
            unreachable = code == "UNAVAILABLE" and _GRPC_UNCONNECTED in details.lower()
            if self._signal.insecure and _GRPC_CLOSED in details:
                message += PERHAPS_TLS
            return Reply(Outcome.RETRY, message, retry_after_s=delay_s, unreachable=unreachable)
        return Reply(Outcome.REFUSED, message, wants_token=code == "UNAUTHENTICATED")


def _grpc_channel(signal: SignalSettings) -> grpc.Channel:
    target = urlsplit(signal.url).netloc
    compression = grpc.Compression.Gzip if signal.gzip else grpc.Compression.NoCompression
    # A cluster's proxy is not meant for a bridge on this machine.
    options = [("grpc.enable_http_proxy", 0)] if signal.is_loopback else []
    if signal.insecure:
        return grpc.insecure_channel(target, options, compression)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(signal.certificate),
        private_key=_read(signal.client_key),
        certificate_chain=_read(signal.client_certificate),
    )
    return grpc.secure_channel(target, credentials, options, compression)


def _identity(message: bytes) -> bytes:
    return message


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:  # noqa: PTH123  # a path from the environment, as text
        return file.read()


def _retry_info_s(error: Exception) -> float | None:
    """The delay of ``google.rpc.RetryInfo`` in a gRPC status, or None."""
    # googleapis-common-protos has no stubs.
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    trailing = getattr(error, "trailing_metadata", lambda: None)() or ()
    for key, value in trailing:
        if key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    delay_s: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                    return min(max(delay_s, 0.0), MAX_RETRY_AFTER_S)
    return None
