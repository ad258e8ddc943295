"""HTTP client through proxies, ``.netrc`` and other ways that ``requests`` knows.

It lets go of the connections that ``requests`` has opened, with its TLS, proxies and headers: to
prepare a request and a response takes ``requests`` as long as to send them, and the CPU is the
trainer's.
"""

import socket
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from otel_rl.redaction import redacted
from otel_rl.worker.export.call_budget import AnswerTooLong, CallBudget
from otel_rl.worker.export.http.client import (
    CONNECT_TIMEOUT_S,
    HEADERS,
    SENT_AT_ONCE,
    Answer,
    BadRoute,
    CallFailed,
)
from otel_rl.worker.export.reply import MAX_ANSWER_BYTES
from otel_rl.worker.settings import SignalSettings

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RequestsClient"]


class _LongAnswer(HTTPException):
    """``AnswerTooLong`` as an error that urllib3 expects of a connection."""


class _AnswerBytes(RawIOBase):
    """Bytes of a socket, as far as the budget goes: status lines, headers, body and all."""

    def __init__(self, sock: socket.socket, budget: CallBudget) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer", /) -> int | None:
        self._sock.settimeout(self._budget.left_s())
        n_bytes = self._raw.readinto(buffer)
        try:
            self._budget.take(n_bytes or 0)
        except AnswerTooLong as error:
            raise _LongAnswer(str(error)) from error
        return n_bytes

    def close(self) -> None:
        self._raw.close()
        super().close()


class _AnsweringSocket:
    """Part of a socket that an ``HTTPResponse`` asks for."""

    def __init__(self, sock: socket.socket, budget: CallBudget) -> None:
        self._sock = sock
        self._budget = budget

    def makefile(self, _mode: str) -> BufferedReader:
        return BufferedReader(_AnswerBytes(self._sock, self._budget))


def _bounded(connection: type[HTTPConnection], budget: CallBudget) -> type[HTTPConnection]:
    """The same kind of connection, plain, TLS or through a proxy, that keeps to the budget."""

    def answer(sock: socket.socket, *args: Any, **kwargs: Any) -> HTTPResponse:
        return HTTPResponse(_AnsweringSocket(sock, budget), *args, **kwargs)  # type: ignore[arg-type]

    class Bounded(connection):  # type: ignore[valid-type,misc]
        response_class = staticmethod(answer)

        def send(self, data: Any) -> None:
            if not isinstance(data, bytes) or self.sock is None:
                super().send(data)  # it connects first, within a timeout of its own
                return
            for place in range(0, len(data), SENT_AT_ONCE):
                self.sock.settimeout(budget.left_s())
                super().send(data[place : place + SENT_AT_ONCE])

    return Bounded


class _Way(NamedTuple):
    """Route of requests to an address, determined once.

    Attributes:
        pool: The connections.
        target: What stands behind POST.
        headers: All but the body's own.
    """

    pool: HTTPConnectionPool
    target: str
    headers: dict[str, str]


class _Connections(HTTPAdapter):
    """Gives away the connections of requests."""

    def __init__(self) -> None:
        self.budget = CallBudget()  # one thread makes one call at a time
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
        return _Way(pool, self.request_url(request, proxies), headers)


class RequestsClient:
    """Client of the connections that ``requests`` opens. See ``HttpClient``.

    Args:
        signal: The files of its TLS.
    """

    def __init__(self, signal: SignalSettings) -> None:
        self._session = session = requests.Session()
        self._connections = _Connections()
        for scheme in ("http://", "https://"):
            session.mount(scheme, self._connections)
        session.headers.update(HEADERS)
        session.trust_env = not signal.is_loopback
        if signal.certificate:
            session.verify = signal.certificate
        if signal.client_certificate and signal.client_key:
            session.cert = (signal.client_certificate, signal.client_key)
        elif signal.client_certificate:
            session.cert = signal.client_certificate
        self._ways: dict[str, _Way] = {}

    def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """See ``HttpClient``."""
        try:
            way = self._ways.get(url)
            if way is None:
                way = self._ways[url] = self._connections.way(self._session, url, headers)
            self._connections.budget.begin(timeout_s)
            response = way.pool.urlopen(
                "POST",
                way.target,
                body,
                way.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=Timeout(min(timeout_s, CONNECT_TIMEOUT_S), timeout_s),
                preload_content=False,
                decode_content=False,
            )
        except HTTPError as error:
            vanished = _vanished(error)
            if vanished is not None:
                raise BadRoute(str(vanished)) from error
            is_unconnected = isinstance(error, NewConnectionError | ConnectTimeoutError)
            raise CallFailed(
                _reason(error),
                is_unconnected=is_unconnected,
                is_unanswered=any(isinstance(one, ConnectionResetError) for one in error.args),
            ) from error
        except OSError as error:  # of requests: a proxy that cannot be; of a file that has vanished
            raise BadRoute(f"{type(error).__name__}: {error}") from error
        return _answer(response)

    def detour(self, url: str) -> str:
        """See ``HttpClient``."""
        way = self._ways.get(url)
        proxy = None if way is None else way.pool.proxy
        if way is None or proxy is None:
            return ""
        host = urlsplit(url).hostname
        where = redacted(str(proxy))
        return f" by the proxy {where} of this environment (NO_PROXY={host} avoids it)"

    def close(self) -> None:
        """See ``HttpClient``."""
        self._session.close()


def _answer(response: BaseHTTPResponse) -> Answer:
    """Read the answer to its end, so that the connection can be used again."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    reason = response.reason or ""
    parts = []
    try:
        # With a length, else room is made for as much as an answer claims to have; and to the end,
        # which alone shows whether it broke off.
        while part := response.read(MAX_ANSWER_BYTES):
            parts.append(part)
    except HTTPError as error:
        return Answer(response.status, reason, headers, None, _reason(error))
    return Answer(response.status, reason, headers, b"".join(parts))


def _reason(error: HTTPError) -> str:
    long = next((one for one in error.args if isinstance(one, _LongAnswer)), None)
    return type(error).__name__ if long is None else str(long)


def _vanished(error: HTTPError) -> OSError | None:
    """Return the error of a connection's unreadable file, if that is why there is none."""
    if isinstance(error, SSLError):
        for cause in (error.__cause__, *error.args):
            if isinstance(cause, FileNotFoundError | IsADirectoryError | PermissionError):
                return cause
    return None
