"""OTLP/HTTP with protobuf bodies: one attempt to hand over a request."""

import zlib
from contextlib import suppress
from time import time
from typing import Final

from otel_rl.redaction import redacted
from otel_rl.worker.export.http.client import (
    Answer,
    BadRoute,
    CallFailed,
    DirectClient,
    HttpClient,
    needs_requests,
)
from otel_rl.worker.export.reply import (
    MAX_ANSWER_BYTES,
    MAX_RETRY_AFTER_S,
    PERHAPS_TLS,
    Outcome,
    Reply,
    Transport,
    accepted,
)
from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.settings import SignalSettings

__all__ = ["HttpTransport"]

_OK: Final = 200
_UNAUTHORIZED: Final = 401
_REDIRECTS: Final = 300

_RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""As the OTLP specification lists them."""

_GZIP: Final = 31
"""Window bits of zlib for gzip's format."""


_DEFAULT: Final = " (the default endpoint: start a bridge and CMD with `otel-rl run -- CMD`)"


class HttpTransport:
    """OTLP/HTTP with protobuf bodies.

    Args:
        signal: Where to and how.
        beside: Transport of another signal; one to the same place shares its connection.
    """

    def __init__(self, signal: SignalSettings, beside: Transport | None) -> None:
        self._url = signal.url
        self._place = redacted(signal.url) + ("" if signal.is_named else _DEFAULT)
        self._gzip = signal.gzip
        self._timeout_s = signal.timeout_s
        self.peer = signal.peer
        self._headers = dict(signal.headers) | {"content-type": "application/x-protobuf"}
        if signal.gzip:
            self._headers["content-encoding"] = "gzip"
        if isinstance(beside, HttpTransport) and beside.peer == self.peer:
            self.client: HttpClient = beside.client
        else:
            self.client = _client(signal)

    def prepare(self, payload: bytes) -> bytes:
        """See ``Transport``."""
        # Level 1: exemplars shrink to a third at any level, and the CPU is the trainer's.
        return zlib.compress(payload, level=1, wbits=_GZIP) if self._gzip else payload

    def send(self, body: bytes) -> Reply:
        """See ``Transport``."""
        try:
            return self._reply(self.client.post(self._url, self._headers, body, self._timeout_s))
        except CallFailed as error:
            hint = PERHAPS_TLS if error.is_unanswered and self._url.startswith("http:") else ""
            message = f"{error} at {self._where()}{hint}"
            return Reply(Outcome.RETRY, message, unreachable=error.is_unconnected)
        except BadRoute as error:
            return Reply(Outcome.REFUSED, f"{redacted(str(error))} at {self._where()}")

    def close(self) -> None:
        """See ``Transport``."""
        self.client.close()

    def _where(self) -> str:
        """Return the place, for messages, with the proxy on the way."""
        return self._place + self.client.detour(self._url)

    def _reply(self, answer: Answer) -> Reply:
        if _OK <= answer.status < _REDIRECTS:
            if answer.body is None:  # the fate of the request is unknown
                return Reply(Outcome.RETRY, f"{answer.failure} at {self._where()}")
            if answer.headers.get("content-type", "").startswith("text/html"):
                # A proxy's page, not a receiver's answer: the request was not received.
                return Reply(Outcome.RETRY, f"a web page instead of an answer from {self._where()}")
            return accepted(_unzipped(answer.headers, answer.body))
        message = f"HTTP {answer.status} {answer.reason} from {self._where()}"
        if answer.status in _RETRYABLE_STATUS:
            after_s = _retry_after_s(answer.headers.get("retry-after"))
            return Reply(Outcome.RETRY, message, retry_after_s=after_s)
        return Reply(Outcome.REFUSED, message, wants_token=answer.status == _UNAUTHORIZED)


def _client(signal: SignalSettings) -> HttpClient:
    if needs_requests(signal):
        from otel_rl.worker.export.http.requests_client import RequestsClient  # 6 MB

        return RequestsClient(signal)
    return DirectClient(signal)


def _unzipped(headers: dict[str, str], body: bytes) -> bytes:
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
        with IMPORTS.work():
            from email.utils import parsedate_to_datetime  # slow to import, seldom needed

        try:
            delay_s = parsedate_to_datetime(header).timestamp() - time()
        except (ValueError, OverflowError):
            return None
    return min(max(delay_s, 0.0), MAX_RETRY_AFTER_S) if delay_s == delay_s else None
