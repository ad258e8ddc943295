"""One attempt to hand a request to an OTLP endpoint, over HTTP or gRPC. No queue, no retry."""

import gzip
import socket
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from math import inf
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from otel_rl.records import Signal
from otel_rl.redaction import redacted
from otel_rl.version import __version__
from otel_rl.worker import settings

if TYPE_CHECKING:
    import grpc
    from typing_extensions import Buffer

__all__ = ["Outcome", "Reply", "Transport", "http_session", "open_transport"]

_RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""As the OTLP specification lists them."""

_RETRYABLE_CODES: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
"""As the OTLP specification lists them; RESOURCE_EXHAUSTED is one only with RetryInfo."""

_CONNECT_TIMEOUT_S: Final = 3.0
"""After this long without an answer to a SYN a host is unreachable; the buffer must be emptied."""

_MAX_ANSWER_BYTES: Final = 64 << 10
"""Of an answer with its headers, and again of what is unzipped of it. A receiver's has some
hundred; a sender of more is none, and the memory is the trainer's."""

_SENT_AT_ONCE: Final = 64 << 10

_MAX_RETRY_AFTER_S: Final = 300.0
"""A wrong Retry-After must not silence a worker for a day."""

_GRPC_UNCONNECTED: Final = "failed to connect"
"""Text in gRPC's own status for an address where no server listens."""

_GRPC_TOO_LONG: Final = "CLIENT: Received message larger"
_GRPC_TOO_LONG_UNZIPPED: Final = "Decompressed message larger"
"""Text in gRPC's own status for an answer over our limit. For a zipped one it does not name the
side, so it may also be a receiver's status for a zipped request."""

_GRPC_METHODS: Final = {
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    Signal.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}


class Outcome(Enum):
    """Result of one send attempt."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reply:
    """The endpoint's answer.

    Attributes:
        outcome: Accepted, to be retried, or never to be taken.
        message: For people, empty if there is nothing to say.
        rejected: Of an accepted request, the points, log records or spans that were not taken.
        retry_after_s: What the endpoint asked for, or None.
        unreachable: There was no connection: as far as can be told, no server listens.
    """

    outcome: Outcome
    message: str = ""
    rejected: int = 0
    retry_after_s: float | None = None
    unreachable: bool = False


class Transport(Protocol):
    """Sends request bodies. Used by one thread."""

    def prepare(self, payload: bytes) -> bytes:
        """The body to keep until it is sent: compressed if so configured."""
        ...

    def send(self, body: bytes) -> Reply:
        """Try once. Does not raise for anything that the network or the endpoint can do."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def open_transport(signal: settings.SignalSettings, beside: Transport | None = None) -> Transport:
    """The transport that ``signal`` asks for. Loads grpc only if it does.

    Args:
        signal: Where to and how.
        beside: That of another signal. If both go to one place, they share a connection: a bridge
            has so many connections as it has workers, and gRPC survives a fork with one only.
    """
    if signal.protocol is settings.Protocol.GRPC:
        return _Grpc(signal, beside)
    return _Http(signal, beside)


def http_session(signal: settings.SignalSettings) -> requests.Session:
    """A session with the signal's TLS and proxy settings."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Connections())
    session.headers["User-Agent"] = f"otel_rl/{__version__}"
    # Answers are small, and one that cannot be unzipped would hide its own status.
    session.headers["Accept-Encoding"] = "identity"
    # A cluster's HTTP_PROXY is not meant for a bridge on this machine.
    session.trust_env = not signal.is_loopback
    if signal.certificate:
        session.verify = signal.certificate
    if signal.client_certificate and signal.client_key:
        session.cert = (signal.client_certificate, signal.client_key)
    elif signal.client_certificate:
        session.cert = signal.client_certificate
    return session


class _AnswerTooLong(HTTPException):
    """More than ``_MAX_ANSWER_BYTES``."""


class _Budget:
    """Remainder of one call: of its time, all of it together, and of the bytes of its answer.

    A timeout of a socket is none for a call: it begins anew with each byte.
    """

    def __init__(self) -> None:
        self._until_s = inf
        self._left = _MAX_ANSWER_BYTES

    def begin(self, timeout_s: float) -> None:
        self._until_s = monotonic() + timeout_s
        self._left = _MAX_ANSWER_BYTES

    def left_s(self) -> float:
        """Raises TimeoutError if there is none."""
        left_s = self._until_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("The time for the call is over.")
        return left_s

    def take(self, n_bytes: int) -> None:
        """Raises _AnswerTooLong once too many were read."""
        self._left -= n_bytes
        if self._left < 0:
            raise _AnswerTooLong(f"an answer of over {_MAX_ANSWER_BYTES} bytes")


class _AnswerStream(RawIOBase):
    """Stream of a socket, as far as the budget goes: status lines, headers, body and all."""

    def __init__(self, sock: socket.socket, budget: _Budget) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer", /) -> int | None:
        self._sock.settimeout(self._budget.left_s())
        n_bytes = self._raw.readinto(buffer)
        self._budget.take(n_bytes or 0)
        return n_bytes

    def close(self) -> None:
        self._raw.close()
        super().close()


class _AnsweringSocket:
    """Part of a socket that an ``HTTPResponse`` asks for."""

    def __init__(self, sock: socket.socket, budget: _Budget) -> None:
        self._sock = sock
        self._budget = budget

    def makefile(self, _mode: str) -> BufferedReader:
        return BufferedReader(_AnswerStream(self._sock, self._budget))


def _bounded(connection: type[HTTPConnection], budget: _Budget) -> type[HTTPConnection]:
    """The same kind of connection, plain, TLS or through a proxy, that keeps to the budget."""

    def answer(sock: socket.socket, *args: Any, **kwargs: Any) -> HTTPResponse:
        return HTTPResponse(_AnsweringSocket(sock, budget), *args, **kwargs)  # type: ignore[arg-type]

    class Bounded(connection):  # type: ignore[valid-type,misc]
        response_class = staticmethod(answer)

        def send(self, data: Any) -> None:
            if not isinstance(data, bytes) or self.sock is None:
                super().send(data)  # it connects first, within a timeout of its own
                return
            for place in range(0, len(data), _SENT_AT_ONCE):
                self.sock.settimeout(budget.left_s())
                super().send(data[place : place + _SENT_AT_ONCE])

    return Bounded


class _Way(NamedTuple):
    """Route that requests would take to an address, found out once.

    Attributes:
        pool: The connections.
        target: What stands behind POST.
        headers: All but the body's own.
        budget: Of the calls that go this way.
    """

    pool: HTTPConnectionPool
    target: str
    headers: dict[str, str]
    budget: _Budget


class _Connections(HTTPAdapter):
    """Lets go of the connections that requests has opened, with its TLS, proxies and headers.

    To prepare a request and a response takes requests as long as to send them, and the CPU is the
    trainer's.
    """

    def __init__(self) -> None:
        self.budget = _Budget()  # one thread makes one call at a time
        super().__init__()

    def way(self, session: requests.Session, url: str, added: Mapping[str, str]) -> _Way:
        """The way to ``url``, with the session's headers and those ``added``.

        Raises:
            requests.RequestException: There is none to such an address, or by such a proxy.
        """
        request = session.prepare_request(requests.Request("POST", url, added))
        # Else REQUESTS_CA_BUNDLE of a cluster would win over the exporter's own setting.
        settings = session.merge_environment_settings(url, {}, None, session.verify, None)
        verify, cert, proxies = settings["verify"], settings["cert"], settings["proxies"]
        pool = self.get_connection_with_tls_context(request, verify, proxies, cert)
        self.cert_verify(pool, url, verify, cert)
        kind = cast("type[HTTPConnection]", pool.ConnectionCls)
        if kind.response_class is HTTPResponse:  # not one of the other signal's
            pool.ConnectionCls = _bounded(kind, self.budget)
        del request.headers["Content-Length"]
        headers = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in request.headers.items()
        }
        return _Way(pool, self.request_url(request, proxies), headers, self.budget)


class _Http:
    """OTLP/HTTP with protobuf bodies."""

    def __init__(self, signal: settings.SignalSettings, beside: Transport | None) -> None:
        self._url = signal.url
        self._place = redacted(signal.url)
        self._gzip = signal.gzip
        self._timeout_s = signal.timeout_s
        self._timeout = Timeout(min(signal.timeout_s, _CONNECT_TIMEOUT_S), signal.timeout_s)
        self.peer = signal.peer
        if isinstance(beside, _Http) and beside.peer == self.peer:
            self.session: requests.Session = beside.session
        else:
            self.session = http_session(signal)
        self._headers = dict(signal.headers) | {"content-type": "application/x-protobuf"}
        if signal.gzip:
            self._headers["content-encoding"] = "gzip"
        self._way: _Way | None = None

    def prepare(self, payload: bytes) -> bytes:
        # Level 1: exemplars shrink to a third at any level, and the CPU is the trainer's.
        return gzip.compress(payload, compresslevel=1, mtime=0) if self._gzip else payload

    def send(self, body: bytes) -> Reply:
        try:
            way = self._way = self._way or self._find_way()
            way.budget.begin(self._timeout_s)
            response = way.pool.urlopen(
                "POST",
                way.target,
                body,
                way.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
            return self._reply(response)
        except HTTPError as error:
            vanished = _vanished(error)
            if vanished is not None:
                return Reply(Outcome.REFUSED, f"{vanished} for {self._place}")
            message = f"{_long_answer(error) or type(error).__name__} at {self._place}"
            is_unconnected = isinstance(error, NewConnectionError | ConnectTimeoutError)
            return Reply(Outcome.RETRY, message, unreachable=is_unconnected)
        except OSError as error:  # of requests: a proxy that cannot be; of a file that has vanished
            return Reply(
                Outcome.REFUSED, f"{type(error).__name__} at {self._place}: {redacted(str(error))}"
            )

    def _reply(self, response: BaseHTTPResponse) -> Reply:
        """Read the answer to its end, so that the connection can be used again.

        Raises:
            HTTPError: The fate of the request is unknown.
        """
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            body = _body(response)
            if response.headers.get("Content-Type", "").startswith("text/html"):
                # A proxy's page, not a receiver's answer: the request was not received.
                return Reply(Outcome.RETRY, f"a web page instead of an answer from {self._place}")
            return _accepted(body)
        with suppress(HTTPError):  # the status has said it all; the connection is closed
            _body(response)
        message = f"HTTP {response.status} {response.reason} from {self._place}"
        if response.status in _RETRYABLE_STATUS:
            after_s = _retry_after_s(response.headers.get("Retry-After"))
            return Reply(Outcome.RETRY, message, retry_after_s=after_s)
        return Reply(Outcome.REFUSED, message)

    def close(self) -> None:
        self.session.close()

    def _find_way(self) -> _Way:
        adapter = self.session.get_adapter(self._url)
        if not isinstance(adapter, _Connections):
            raise TypeError(f"{type(adapter).__name__} does not give its connections")
        return adapter.way(self.session, self._url, self._headers)


class _Grpc:
    """OTLP/gRPC, handing over ready bytes."""

    def __init__(self, signal: settings.SignalSettings, beside: Transport | None) -> None:
        import grpc  # most workers speak HTTP and never need it

        self._error: type[Exception] = grpc.RpcError
        self._signal = signal
        self.peer = signal.peer
        self._beside = beside if isinstance(beside, _Grpc) and beside.peer == self.peer else None
        self._channel: grpc.Channel | None = None
        self._call: Callable[..., bytes] | None = None
        self._metadata = (*signal.headers, ("user-agent", f"otel_rl/{__version__}"))
        self._timeout_s = signal.timeout_s
        self._url = signal.url
        self._place = redacted(signal.url)
        unzipped = () if signal.gzip else (_GRPC_TOO_LONG_UNZIPPED,)
        self._too_long = (_GRPC_TOO_LONG, *unzipped)

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, body: bytes) -> Reply:
        try:
            call = self._call = self._call or self._find_call()
            return _accepted(call(body, timeout=self._timeout_s, metadata=self._metadata))
        except self._error as error:
            return self._failed(error)
        except OSError as error:  # of a file that has vanished
            return Reply(
                Outcome.REFUSED, f"{type(error).__name__} at {self._place}: {redacted(str(error))}"
            )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def channel(self) -> "grpc.Channel":
        """The connections, opened if they were not.

        Raises:
            OSError: A file of theirs cannot be read.
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
        if code == "RESOURCE_EXHAUSTED" and any(words in details for words in self._too_long):
            # It is the answer that is too long, not the request: its content is unknown.
            return Reply(
                Outcome.RETRY, f"an answer of over {_MAX_ANSWER_BYTES} bytes {self._place}"
            )
        if code in _RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and delay_s is not None):
            unreachable = code == "UNAVAILABLE" and _GRPC_UNCONNECTED in details.lower()
            return Reply(Outcome.RETRY, message, retry_after_s=delay_s, unreachable=unreachable)
        return Reply(Outcome.REFUSED, message)


def _grpc_channel(signal: settings.SignalSettings) -> "grpc.Channel":
    import grpc

    target = urlsplit(signal.url).netloc
    compression = grpc.Compression.Gzip if signal.gzip else grpc.Compression.NoCompression
    options = [("grpc.max_receive_message_length", _MAX_ANSWER_BYTES)]
    if signal.insecure:
        return grpc.insecure_channel(target, options, compression)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(signal.certificate),
        private_key=_read(signal.client_key),
        certificate_chain=_read(signal.client_certificate),
    )
    return grpc.secure_channel(target, credentials, options, compression)


def _body(response: BaseHTTPResponse) -> bytes:
    parts = []
    # With a length, else room is made for as much as an answer claims to have; and to the end,
    # which alone says whether it broke off.
    while part := response.read(_MAX_ANSWER_BYTES):
        parts.append(part)
    body = b"".join(parts)
    if response.headers.get("Content-Encoding", "") == "gzip":  # though it was not asked for
        with suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(body, _MAX_ANSWER_BYTES)
    return body


def _long_answer(error: HTTPError) -> _AnswerTooLong | None:
    """Return the error of an answer that is too long, if that is why there is none."""
    return next((one for one in error.args if isinstance(one, _AnswerTooLong)), None)


def _identity(message: bytes) -> bytes:
    return message


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:  # noqa: PTH123  # a path from the environment, as text
        return file.read()


def _vanished(error: HTTPError) -> OSError | None:
    """Return the error of a connection's unreadable file, if that is why there is none."""
    if isinstance(error, SSLError):
        for cause in (error.__cause__, *error.args):
            if isinstance(cause, FileNotFoundError | IsADirectoryError | PermissionError):
                return cause
    return None


def _accepted(body: bytes) -> Reply:
    """An acknowledgement, which may say that some of the request was not taken.

    The answers of all signals are the same bytes; only their fields are called differently.
    """
    try:
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return Reply(Outcome.ACCEPTED, "its answer is no OTLP; is this the address of a receiver?")
    return Reply(Outcome.ACCEPTED, partial.error_message, rejected=partial.rejected_data_points)


def _retry_after_s(header: str | None) -> float | None:
    """Seconds from ``Retry-After``, which is a number or a date; None if it is neither."""
    if not header:
        return None
    try:
        delay_s = float(header)
    except ValueError:
        try:
            delay_s = parsedate_to_datetime(header).timestamp() - time()
        except (ValueError, OverflowError):
            return None
    return min(max(delay_s, 0.0), _MAX_RETRY_AFTER_S) if delay_s == delay_s else None


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
                    return min(max(delay_s, 0.0), _MAX_RETRY_AFTER_S)
    return None
