"""OTLP/HTTP with protobuf bodies over ``requests``, which knows proxies, ``.netrc`` and TLS.

``requests`` has timeouts for single waits, which begin anew with each byte. Its connections are
made to keep one deadline for a whole call, and to read no more of an answer than a receiver's has.
"""

import socket
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from io import BufferedReader, RawIOBase
from math import inf
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from otel_rl.redaction import redacted
from otel_rl.version import __version__
from otel_rl.worker.export.transport import (
    MAX_ANSWER_BYTES,
    MAX_RETRY_AFTER_S,
    PERHAPS_TLS,
    Outcome,
    Reply,
    Transport,
    accepted,
)
from otel_rl.worker.settings import SignalSettings

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HttpTransport"]

_CONNECT_TIMEOUT_S: Final = 3.0
"""After this long without an answer to a SYN a host is unreachable; the buffer must be emptied."""

_SENT_AT_ONCE: Final = 64 << 10

_OK: Final = 200
_UNAUTHORIZED: Final = 401
_REDIRECTS: Final = 300

_RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""As the OTLP specification lists them."""

_GZIP: Final = 31
"""Window bits of zlib for gzip's format."""

_DEFAULT: Final = " (the default endpoint: start a bridge and CMD with `otel-rl run -- CMD`)"


class _TooLong(HTTPException):
    """An answer of more than ``MAX_ANSWER_BYTES``."""

    def __init__(self) -> None:
        super().__init__(f"an answer of over {MAX_ANSWER_BYTES} bytes")


class _Budget:
    """Remainder of one call: of its time, all of it together, and of the bytes of its answer."""

    def __init__(self) -> None:
        self._until_s = inf
        self._left_bytes = MAX_ANSWER_BYTES

    def begin(self, timeout_s: float) -> None:
        self._until_s = monotonic() + timeout_s
        self._left_bytes = MAX_ANSWER_BYTES

    def left_s(self) -> float:
        left_s = self._until_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("The time for the call is over.")
        return left_s

    def take(self, n_bytes: int) -> None:
        self._left_bytes -= n_bytes
        if self._left_bytes < 0:
            raise _TooLong


class _AnswerBytes(RawIOBase):
    """Bytes of a socket, as far as the budget goes: status lines, headers, body and all."""

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
        return BufferedReader(_AnswerBytes(self._sock, self._budget))


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


class _Connections(HTTPAdapter):
    """Connections to one place, which keep to the budget of the call. Used by one thread."""

    def __init__(self) -> None:
        self.budget = _Budget()
        self.proxy = ""
        """Proxy of the last call; empty without one."""
        super().__init__()

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> HTTPConnectionPool:
        """See ``HTTPAdapter``."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        self.proxy = "" if pool.proxy is None else str(pool.proxy)
        kind = cast("type[HTTPConnection]", pool.ConnectionCls)
        if kind.response_class is HTTPResponse:  # not yet bounded
            pool.ConnectionCls = _bounded(kind, self.budget)
        return pool


class _BadRoute(Exception):
    """No request can be sent: a file cannot be read, a header or proxy is none."""


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Leave the headers of a request as they are."""
    return request


class HttpTransport:
    """OTLP/HTTP with protobuf bodies.

    Args:
        signal: Where to and how.
        beside: Transports of other signals; one to the same place shares its connection.
    """

    def __init__(self, signal: SignalSettings, beside: Sequence[Transport]) -> None:
        self._signal = signal
        self._place = redacted(signal.url) + ("" if signal.is_named else _DEFAULT)
        self._headers = {
            **dict(signal.headers),
            "user-agent": f"otel_rl/{__version__}",
            # Answers are small, and one that cannot be unzipped would hide its own status.
            "accept-encoding": "identity",
            "content-type": "application/x-protobuf",
        }
        if signal.gzip:
            self._headers["content-encoding"] = "gzip"
        self.peer = signal.peer
        self.connections = _Connections()  # it opens none before the first call
        for other in beside:
            if isinstance(other, HttpTransport) and other.peer == self.peer:
                self.connections = other.connections
        self._session = requests.Session()  # it knows the environment, and opens no connection
        # A cluster's proxy is not meant for a bridge on this machine.
        self._session.trust_env = not signal.is_loopback

    def prepare(self, payload: bytes) -> bytes:
        """See ``Transport``."""
        # Level 1: exemplars shrink to a third at any level, and the CPU is the trainer's.
        return zlib.compress(payload, level=1, wbits=_GZIP) if self._signal.gzip else payload

    def send(self, body: bytes) -> Reply:
        """See ``Transport``."""
        try:
            answer = self._post(self._prepared(body))
            return self._reply(answer, *_content(answer))
        except _BadRoute as error:
            return Reply(Outcome.REFUSED, f"{redacted(str(error))} at {self._where()}")
        except (requests.RequestException, HTTPError, OSError) as error:
            causes = tuple(_causes(error))
            is_closed = any(isinstance(one, ConnectionResetError) for one in causes)
            hint = PERHAPS_TLS if is_closed and self._signal.url.startswith("http:") else ""
            return Reply(
                Outcome.RETRY,
                f"{_in_words(causes)} at {self._where()}{hint}",
                unreachable=any(
                    isinstance(one, NewConnectionError | ConnectTimeoutError) for one in causes
                ),
            )

    def close(self) -> None:
        """See ``Transport``."""
        self.connections.close()

    def _prepared(self, body: bytes) -> requests.PreparedRequest:
        request = requests.Request("POST", self._signal.url, self._headers, data=body)
        if "authorization" in map(str.lower, self._headers):
            request.auth = _as_given  # else .netrc would replace it
        try:
            return self._session.prepare_request(request)
        except requests.exceptions.InvalidHeader as error:  # its text has the header
            raise _BadRoute("a header of more than one line, or with a space before it") from error
        except ValueError as error:
            raise _BadRoute(f"{type(error).__name__}: {error}") from error

    def _post(self, request: requests.PreparedRequest) -> requests.Response:
        signal = self._signal
        # As arguments: else REQUESTS_CA_BUNDLE of a cluster would win over the exporter's own.
        verify = signal.certificate
        cert = signal.client_certificate
        pair = (cert, signal.client_key) if cert and signal.client_key else cert
        way = self._session.merge_environment_settings(
            signal.url, proxies={}, stream=True, verify=verify, cert=pair
        )
        self.connections.budget.begin(signal.timeout_s)
        timeout = (min(signal.timeout_s, _CONNECT_TIMEOUT_S), signal.timeout_s)
        try:
            return self.connections.send(request, timeout=timeout, **way)
        except requests.exceptions.InvalidHeader:
            raise  # of the answer
        except requests.RequestException as error:
            vanished = isinstance(error, requests.exceptions.SSLError) and _vanished(error)
            if vanished or isinstance(error, ValueError):  # of a URL or proxy that is none
                raise _BadRoute(f"{type(error).__name__}: {vanished or error}") from error
            raise
        except UnicodeError as error:
            raise _BadRoute("a header that is not Latin-1") from error
        except (OSError, ValueError) as error:  # of a file that has vanished, a host that is none
            raise _BadRoute(f"{type(error).__name__}: {error}") from error

    def _where(self) -> str:
        """Return the place, for messages, with the proxy on the way."""
        proxy = self.connections.proxy
        if not proxy:
            return self._place
        avoided = f"NO_PROXY={urlsplit(self._signal.url).hostname} avoids it"
        return f"{self._place} by the proxy {redacted(proxy)} of this environment ({avoided})"

    def _reply(self, answer: requests.Response, body: bytes | None, failure: str) -> Reply:
        """Judge an answer, whose body is None if it broke off, for the reason ``failure``."""
        status = answer.status_code
        if status < _OK:
            self.close()  # the final answer is still to come, and would be taken for the next one's
            return Reply(Outcome.RETRY, f"an interim answer, HTTP {status}, from {self._where()}")
        if status < _REDIRECTS:
            if body is None:  # the fate of the request is unknown
                return Reply(Outcome.RETRY, f"{failure} at {self._where()}")
            if answer.headers.get("content-type", "").startswith("text/html"):
                # A proxy's page, not a receiver's answer: the request was not received.
                return Reply(Outcome.RETRY, f"a web page instead of an answer from {self._where()}")
            return accepted(_unzipped(answer.headers, body))
        message = f"HTTP {status} {answer.reason} from {self._where()}"
        if status in _RETRYABLE_STATUS:
            after_s = _retry_after_s(answer.headers.get("retry-after"))
            return Reply(Outcome.RETRY, message, retry_after_s=after_s)
        return Reply(Outcome.REFUSED, message, wants_token=status == _UNAUTHORIZED)


def _content(answer: requests.Response) -> tuple[bytes | None, str]:
    """Read the answer to its end, so that the connection can be used again.

    Returns:
        The body, or None and what has ended it too early.
    """
    parts = []
    try:
        # With a length, else room is made for as much as an answer claims to have.
        while part := answer.raw.read(MAX_ANSWER_BYTES, decode_content=False):
            parts.append(part)
    except HTTPError as error:
        answer.close()
        return None, _in_words(tuple(_causes(error)))
    return b"".join(parts), ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and then those that it came from."""
    waiting, known = [error], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in known:
            continue
        known.add(id(one))
        yield one
        others = (getattr(one, "reason", None), one.__cause__, one.__context__, *one.args)
        waiting += [other for other in others if isinstance(other, BaseException)]


def _in_words(causes: tuple[BaseException, ...]) -> str:
    """Return the system's text of a failure, else its type: a timeout, for example, has no text."""
    for one in causes:
        if isinstance(one, _TooLong):
            return str(one)
        if isinstance(one, RemoteDisconnected | IncompleteRead):
            return "the answer broke off"
        if isinstance(one, HTTPException | requests.exceptions.InvalidHeader):
            return "the answer is no HTTP"
        if isinstance(one, OSError) and one.strerror:
            return one.strerror
    return type(causes[-1]).__name__


def _vanished(error: requests.RequestException) -> OSError | None:
    """Return the error of an unreadable file of TLS, if that is why there is no connection."""
    kinds = FileNotFoundError | IsADirectoryError | PermissionError
    return next((one for one in _causes(error) if isinstance(one, kinds)), None)


def _unzipped(headers: Mapping[str, str], body: bytes) -> bytes:
    if headers.get("content-encoding", "") == "gzip":  # though it was not asked for
        with suppress(zlib.error):
            return zlib.decompressobj(wbits=_GZIP).decompress(body, MAX_ANSWER_BYTES)
    return body


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
    return min(max(delay_s, 0.0), MAX_RETRY_AFTER_S) if delay_s == delay_s else None
