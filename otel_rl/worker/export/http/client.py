"""HTTP client of a worker: POST to one place over one connection that is kept open.

A request to a plain or TLS address goes over a socket. What else ``requests`` knows (proxies,
``.netrc``, credentials in the URL) is left to it, and it is loaded only then: with what it imports
it takes as much memory as all the rest of a worker.
"""

import os
import re
import select
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import SplitResult, quote, urlsplit

from otel_rl.version import __version__
from otel_rl.worker.export.call_budget import AnswerTooLong, CallBudget
from otel_rl.worker.export.http.answer import Answer, AnswerStream, BrokenAnswer, read_answer
from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.settings import SignalSettings

if TYPE_CHECKING:
    import ssl

__all__ = [
    "CONNECT_TIMEOUT_S",
    "HEADERS",
    "SENT_AT_ONCE",
    "Answer",
    "BadRoute",
    "CallFailed",
    "DirectClient",
    "HttpClient",
    "needs_requests",
]

CONNECT_TIMEOUT_S: Final = 3.0
"""After this long without an answer to a SYN a host is unreachable; the buffer must be emptied."""

SENT_AT_ONCE: Final = 64 << 10

HEADERS: Final = {
    "user-agent": f"otel_rl/{__version__}",
    # Answers are small, and one that cannot be unzipped would hide its own status.
    "accept-encoding": "identity",
}
"""Of every request."""

_READ_AT_ONCE: Final = 16 << 10

_PORTS: Final = {"http": 80, "https": 443}

_PATH_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"
"""Of a URL, beside letters, digits and _.-"""

_NOT_IN_A_HEADER: Final = re.compile("[\r\n\0]")

_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name other certificates than certifi's, as ``requests`` reads them."""


class CallFailed(Exception):
    """There is no answer; the request may be sent again.

    Attributes:
        is_unconnected: There was no connection.
        is_unanswered: The connection was closed without any answer.
    """

    def __init__(
        self, message: str, *, is_unconnected: bool = False, is_unanswered: bool = False
    ) -> None:
        super().__init__(message)
        self.is_unconnected = is_unconnected
        self.is_unanswered = is_unanswered


class BadRoute(Exception):
    """No request can be sent: a file cannot be read, a header or proxy is none."""


class HttpClient(Protocol):
    """Sends requests to one place. Used by one thread."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """Send a request and read its answer to the end.

        Args:
            url: The place, any path of it.
            headers: Lower-case names, beside ``HEADERS``.
            body: Of the request.
            timeout_s: For all of it.

        Raises:
            CallFailed: The fate of the request is unknown.
            BadRoute: It was not sent.
        """
        ...

    def detour(self, url: str) -> str:
        """Return what leads to a place beside its address, for a message; empty if nothing."""
        ...

    def close(self) -> None:
        """Release the connections."""
        ...


def needs_requests(signal: SignalSettings) -> bool:
    """Report whether the way to an endpoint needs what only ``requests`` knows."""
    place = urlsplit(signal.url).netloc
    if "@" in place or not place.isascii():
        return True
    # A cluster's HTTP_PROXY is not meant for a bridge on this machine.
    return not signal.is_loopback and (_has_proxies() or _has_netrc())


def _has_proxies() -> bool:
    if sys.platform in {"darwin", "win32"}:  # their settings have proxies, too
        return True
    return any(
        name.lower().endswith("_proxy") and name.lower() != "no_proxy" and value
        for name, value in os.environ.items()
    )


def _has_netrc() -> bool:
    named = os.environ.get("NETRC")
    paths = ("~/.netrc", "~/_netrc") if named is None else (named,)
    return any(os.path.exists(os.path.expanduser(path)) for path in paths)  # noqa: PTH110, PTH111  # no home is no error


class DirectClient:
    """Client over one socket, plain or TLS.

    Args:
        signal: The place, and the files of its TLS.
    """

    def __init__(self, signal: SignalSettings) -> None:
        self._signal = signal
        self._socket: socket.socket | None = None
        self._is_answered = False
        self._budget = CallBudget()

    def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """See ``HttpClient``."""
        parts = urlsplit(url)
        head = _head(parts, headers, len(body))
        self._budget.begin(timeout_s)
        sock = self._connection(parts)
        answer, is_sent, self._is_answered = None, False, False
        try:
            is_sent = self._send(sock, head, body)
            answer = read_answer(AnswerStream(lambda: self._received(sock)))
        except AnswerTooLong as error:
            raise CallFailed(str(error)) from error
        except BrokenAnswer as error:
            raise CallFailed(str(error), is_unanswered=not self._is_answered) from error
        except ConnectionResetError as error:
            raise CallFailed(_in_words(error), is_unanswered=not self._is_answered) from error
        except OSError as error:
            raise CallFailed(_in_words(error)) from error
        finally:
            if answer is None or not is_sent or not answer.keeps_alive:
                self.close()
        return answer

    def detour(self, url: str) -> str:  # noqa: ARG002
        """See ``HttpClient``."""
        return ""

    def close(self) -> None:
        """See ``HttpClient``."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _connection(self, parts: SplitResult) -> socket.socket:
        """Return the connection, opened if there is none or the server has closed it.

        Raises:
            CallFailed: There is none.
            BadRoute: A file of its TLS cannot be read.
        """
        if self._socket is not None and _is_readable(self._socket):
            self.close()  # an end of the stream, or bytes that nothing has asked for
        if self._socket is None:
            host = parts.hostname or ""
            context = _tls_context(self._signal) if parts.scheme == "https" else None
            sock = self._connected(host, parts.port or _PORTS[parts.scheme])
            self._socket = sock if context is None else self._encrypted(context, sock, host)
        return self._socket

    def _connected(self, host: str, port: int) -> socket.socket:
        try:
            timeout_s = min(self._budget.left_s(), CONNECT_TIMEOUT_S)
            # As bytes: for text Python loads the tables of international names.
            address = cast("tuple[str, int]", (host.encode("ascii"), port))
            sock = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise CallFailed(_in_words(error), is_unconnected=True) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _encrypted(
        self, context: "ssl.SSLContext", sock: socket.socket, host: str
    ) -> socket.socket:
        try:
            sock.settimeout(self._budget.left_s())
            return context.wrap_socket(sock, server_hostname=host)
        except (OSError, ValueError) as error:  # of a name that no certificate can have
            sock.close()
            raise CallFailed(_in_words(error)) from error

    def _send(self, sock: socket.socket, head: bytes, body: bytes) -> bool:
        """Send a request. False if the server closed first, perhaps with an answer."""
        if len(body) <= SENT_AT_ONCE:
            head, body = head + body, b""  # one packet instead of two
        for data in (head, body):
            for place in range(0, len(data), SENT_AT_ONCE):
                sock.settimeout(self._budget.left_s())
                try:
                    sock.sendall(data[place : place + SENT_AT_ONCE])
                except (BrokenPipeError, ConnectionResetError):
                    return False
        return True

    def _received(self, sock: socket.socket) -> bytes:
        sock.settimeout(self._budget.left_s())
        data = sock.recv(_READ_AT_ONCE)
        self._budget.take(len(data))
        self._is_answered = self._is_answered or bool(data)
        return data


def _head(parts: SplitResult, headers: Mapping[str, str], body_bytes: int) -> bytes:
    """Encode the request up to its body.

    Raises:
        BadRoute: A header cannot be sent.
    """
    host = parts.netloc.lower().removesuffix(f":{_PORTS[parts.scheme]}")
    every = {"host": host, **HEADERS, **headers, "content-length": str(body_bytes)}
    target = quote(parts.path or "/", safe=_PATH_CHARACTERS)
    if parts.query:
        target += "?" + quote(parts.query, safe=_PATH_CHARACTERS)
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items())]
    if any(map(_NOT_IN_A_HEADER.search, lines)):
        raise BadRoute("a header of more than one line")
    try:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeError as error:
        raise BadRoute("a header that is not Latin-1") from error


def _in_words(error: OSError | ValueError) -> str:
    """Return the system's text of a failure, else its type: a timeout, for example, has no text."""
    return getattr(error, "strerror", None) or type(error).__name__


def _is_readable(sock: socket.socket) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()  # unlike select, for any number of open files
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _tls_context(signal: SignalSettings) -> "ssl.SSLContext":
    """Make the context of a connection, from its files as they are now.

    Raises:
        BadRoute: One cannot be read.
    """
    with IMPORTS.work():
        import ssl  # most workers have no use for its 5 MB

    authorities = signal.certificate or _authorities(signal)
    certificate, key = signal.client_certificate, signal.client_key
    try:
        if os.path.isdir(authorities):  # noqa: PTH112  # a path from the environment, as text
            context = ssl.create_default_context(capath=authorities)
        else:
            _check_readable(authorities)
            context = ssl.create_default_context(cafile=authorities)
        context.set_alpn_protocols(["http/1.1"])
        if certificate:
            _check_readable(certificate)
            if key:
                _check_readable(key)
            context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise BadRoute(f"{type(error).__name__}: {error}") from error
    return context


def _authorities(signal: SignalSettings) -> str:
    for variable in () if signal.is_loopback else _BUNDLES:
        if path := os.environ.get(variable):
            return path
    with IMPORTS.work():
        from certifi import where

    return where()


def _check_readable(path: str) -> None:
    """Raise an error that names the file, as those of ``ssl`` do not."""
    with Path(path).open("rb"):
        pass
