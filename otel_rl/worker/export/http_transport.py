"""OTLP/HTTP with protobuf bodies over ``requests``, which knows proxies, ``.netrc`` and TLS."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Final
from urllib.parse import urlsplit

import requests
from requests.exceptions import InvalidSchema, InvalidURL
from requests.utils import select_proxy
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NewConnectionError,
)

from otel_rl.redaction import redacted
from otel_rl.version import __version__
from otel_rl.worker.export.transport import (
    MAX_RETRY_AFTER_S,
    PERHAPS_TLS,
    Outcome,
    Reply,
    Transport,
    accepted,
)
from otel_rl.worker.settings import SignalSettings

_MAX_ANSWER_BYTES: Final = 64 << 10
"""Read of an answer. That of a receiver has some hundred, and the memory is the trainer's."""

_CONNECT_S: Final = 3.0
"""Most that each address of the endpoint's name gets: several that swallow packets must together
take less than the time after which a bridge takes a worker for gone."""

_OK: Final = 200
_UNAUTHORIZED: Final = 401
_REDIRECTS: Final = 300

_RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""As the OTLP specification lists them."""

_GZIP: Final = 31
"""Window bits of zlib for gzip's format."""

_DEFAULT: Final = " (the default endpoint: start a bridge and CMD with `otel-rl run -- CMD`)"


class HttpTransport:
    """OTLP/HTTP with protobuf bodies. Transports to one place share its connection."""

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
        same = [one for one in beside if isinstance(one, HttpTransport) and one.peer == self.peer]
        self.session: requests.Session = same[0].session if same else requests.Session()
        # A cluster's proxy is not meant for a bridge on this machine.
        self.session.trust_env = not signal.is_loopback

    def prepare(self, payload: bytes) -> bytes:
        # Level 1: exemplars shrink to a third at any level, and the CPU is the trainer's.
        return zlib.compress(payload, level=1, wbits=_GZIP) if self._signal.gzip else payload

    def send(self, body: bytes) -> Reply:
        signal, session = self._signal, self.session
        where = self._place
        request = requests.Request("POST", signal.url, self._headers, data=body)
        if "authorization" in map(str.lower, self._headers):
            request.auth = _as_given  # else .netrc would replace it
        # As arguments: else REQUESTS_CA_BUNDLE of a cluster would win over the exporter's own.
        pair = (signal.client_certificate or "", signal.client_key or "")
        cert = pair if all(pair) else signal.client_certificate
        try:
            way = session.merge_environment_settings(
                signal.url, proxies={}, stream=True, verify=signal.certificate, cert=cert
            )
            where += _by_proxy(signal.url, select_proxy(signal.url, way["proxies"]))
            # Of the adapter, which follows no redirect.
            adapter = session.get_adapter(signal.url)
            try:
                prepared = session.prepare_request(request)
            except ValueError as error:  # later, it may also be of the answer
                return _impossible(error, where)
            timeouts_s = (min(signal.timeout_s, _CONNECT_S), signal.timeout_s)
            with closing(adapter.send(prepared, timeout=timeouts_s, **way)) as answer:
                if answer.status_code >= _OK:
                    return _reply(answer, where, signal.timeout_s)
            self.close()  # the final answer is still to come, and would be the next request's
            return Reply(Outcome.RETRY, f"HTTP {answer.status_code} from {where}")
        except (InvalidSchema, InvalidURL, LocationValueError, UnicodeEncodeError) as error:
            return _impossible(error, where)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            causes = tuple(_causes(error))
            is_closed = any(isinstance(one, ConnectionResetError) for one in causes)
            hint = PERHAPS_TLS if is_closed and signal.url.startswith("http:") else ""
            return Reply(
                Outcome.RETRY,
                f"{_in_words(causes)} at {where}{hint}",
                unreachable=any(
                    isinstance(one, NewConnectionError | ConnectTimeoutError) for one in causes
                ),
            )

    def close(self) -> None:
        self.session.close()


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _by_proxy(url: str, proxy: str | None) -> str:
    if not proxy:
        return ""
    avoided = f"NO_PROXY={urlsplit(url).hostname} avoids it"
    return f" by the proxy {redacted(proxy)} of this environment ({avoided})"


def _impossible(error: ValueError, where: str) -> Reply:
    """Return the reply for settings that allow no request, however often it is tried."""
    return Reply(
        Outcome.REFUSED,
        f"no request can be made ({type(error).__name__}) for {where}; check the names of hosts in "
        "the endpoint and its proxy, and OTEL_EXPORTER_OTLP_HEADERS",
    )


def _reply(answer: requests.Response, where: str, timeout_s: float) -> Reply:
    status = answer.status_code
    # A status stands though its body breaks off; without the whole acknowledgement the fate of the
    # request is unknown. What is read to its end leaves the connection for the next request.
    with nullcontext() if status < _REDIRECTS else suppress(HTTPError, TimeoutError):
        content = _body(answer, timeout_s)
    if status < _REDIRECTS:
        if answer.headers.get("content-type", "").startswith("text/html"):
            # A proxy's page, not a receiver's answer: the request was not received.
            return Reply(Outcome.RETRY, f"a web page instead of an answer from {where}")
        return accepted(content)
    message = f"HTTP {status} {answer.reason} from {where}"
    if status in _RETRYABLE_STATUS:
        after_s = _retry_after_s(answer.headers.get("retry-after"))
        return Reply(Outcome.RETRY, message, retry_after_s=after_s)
    return Reply(Outcome.REFUSED, message, wants_token=status == _UNAUTHORIZED)


def _body(answer: requests.Response, timeout_s: float) -> bytes:
    # The library's timeout is for single waits, and the thread has other requests to send.
    until_s, content = monotonic() + timeout_s, bytearray()
    while len(content) < _MAX_ANSWER_BYTES:
        piece = answer.raw.read1(_MAX_ANSWER_BYTES - len(content), decode_content=False)
        if not piece:
            break
        if monotonic() >= until_s:
            raise TimeoutError
        content += piece
    if answer.headers.get("content-encoding") == "gzip":  # though nobody has asked for it
        # Unpacked at the end, and within the bound: one wait of the library may unpack for ever.
        with suppress(zlib.error):
            return zlib.decompressobj(_GZIP).decompress(content, _MAX_ANSWER_BYTES)
    return bytes(content)


def _causes(error: BaseException) -> Iterator[BaseException]:
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
    """Return the system's text of a failure, else its type: other texts may hold a secret."""
    for one in causes:
        if isinstance(one, OSError) and one.strerror:
            return one.strerror + (f": {one.filename}" if one.filename else "")
        if type(one) is OSError:  # of ``requests``, about a file that has vanished
            return redacted(str(one))
    return type(causes[-1]).__name__


def _retry_after_s(header: str | None) -> float | None:
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
