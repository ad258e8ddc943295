"""OTLP/HTTP as an ASGI application.

    head ─ authorise ─> body ─ turn ─> unpack, parse, validate ─> journal ─> answer

Every answer has the encoding of its request: an export response for 200, a ``google.rpc.Status``
for an error. The framework's own error pages (404, 405, 500, ...) never reach a sender.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from functools import partial
from inspect import signature
from typing import Any, Final, NamedTuple, Self

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.receive import body
from otel_rl.bridge.receive.answers import NOT_FOUND, Answer, export_response, status_message
from otel_rl.bridge.receive.limits import MAX_HEAD_BYTES
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.bridge.receive.senders import address_of
from otel_rl.bridge.receive.tokens import token_of
from otel_rl.errors import JournalClosed, MalformedRequest
from otel_rl.signals import Signal

PATHS: Final = {
    Signal.METRICS: "/v1/metrics",
    Signal.TRACES: "/v1/traces",
    Signal.LOGS: "/v1/logs",
}
"""Path of each signal, as OTLP names it."""

_HEALTH_PATH: Final = "/healthz"
_OF_PROMETHEUS: Final = "text/plain; version=0.0.4"

_CLIENT_CLOSED: Final = 499  # nginx's code for a closed request; it is never sent


class _Media(StrEnum):
    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


_MEDIA: Final = {str(media): media for media in _Media}


def create_app(
    intake: IngestPipeline, routes: Sequence[BaseRoute] = (), *, takes_exports: bool = True
) -> ASGIApp:
    """Create the application: ``POST`` to each of ``PATHS``, and ``GET /healthz``.

    Args:
        routes: Further routes that do not block, with other paths.
        takes_exports: Whether the server has ``PATHS``.
    """
    from fastapi import FastAPI  # the port of health probes does without it

    exports, others = _Exports(intake), _Others(intake)
    signals = {path: signal for signal, path in PATHS.items() if takes_exports}
    # Newer versions report every request to the global providers, which belong to the program
    # around the bridge: exported to the bridge itself, each request would cause the next one, for
    # ever. They also log exceptions with their text.
    quiet: dict[str, Any] = {}
    if "telemetry" in signature(FastAPI).parameters:
        silent = dict.fromkeys(("tracing", "metrics", "logs", "auto_configure"), False)
        quiet = {"telemetry": silent}
    app = FastAPI(
        **quiet,
        openapi_url=None,
        routes=[_health(intake), *routes],
        exception_handlers={HTTPException: others.answer, Exception: others.answer},
    )
    app.router.redirect_slashes = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        # The parser bounds only headers that arrive in pieces.
        if _head_bytes(scope) > MAX_HEAD_BYTES:
            refused = await others.refuse_head(Request(scope, receive))
            await refused(scope, receive, send)
        elif (signal := signals.get(scope["path"])) is None:
            await app(scope, receive, send)
        elif scope["method"] == "POST":
            await exports(signal, scope, receive, send)
        else:
            refused = await others.refuse_method(Request(scope, receive), "POST")
            await refused(scope, receive, send)

    return answer


def create_health_app(intake: IngestPipeline, metrics: Callable[[], str]) -> ASGIApp:
    """Create the application of the health port: ``GET /healthz`` and ``GET /metrics``.

    Args:
        metrics: Returns the text that Prometheus scrapes; it may block.
    """

    def answer(_request: Request) -> Response:  # in a thread, since it is no coroutine
        return Response(metrics(), media_type=_OF_PROMETHEUS)

    return Starlette(routes=[_health(intake), Route("/metrics", answer, methods=["GET"])])


def _health(intake: IngestPipeline) -> BaseRoute:
    """Return the route that answers 200, or 503 with the problem of the bridge.

    A notice that an operator should see, though all requests are accepted, is a second line.
    """

    async def answer(_request: Request) -> Response:
        problem = intake.storage.problem()
        status = 503 if problem else 200
        lines = filter(None, (problem or "ok", intake.notice))
        return Response("".join(f"{line}\n" for line in lines), status, media_type="text/plain")

    route = Route(_HEALTH_PATH, answer, methods=["GET"])
    route.methods = {"GET"}  # without HEAD
    return route


class _Head(NamedTuple):
    """Headers that decide how a request is read. Of a repeated header, the first counts.

    Attributes:
        authorization: None if absent.
        media: Encoding of the body; None if the header is absent or names another kind.
        content_encoding: Content-Encoding as sent, in lower case.
    """

    authorization: str | None
    media: _Media | None
    content_encoding: str

    @classmethod
    def of(cls, scope: Scope) -> Self:
        headers = dict(reversed(scope["headers"]))
        authorization = headers.get(b"authorization")
        media = headers.get(b"content-type", b"").decode("latin-1")
        return cls(
            None if authorization is None else authorization.decode("latin-1"),
            _MEDIA.get(media.partition(";")[0].strip().lower()),
            headers.get(b"content-encoding", b"").decode("latin-1").strip().lower(),
        )

    @property
    def encoding(self) -> str:
        encoding = self.content_encoding or "identity"
        if encoding not in body.ENCODINGS:
            msg = f"Content-Encoding {encoding[:40]!r} is not known."
            raise MalformedRequest(msg, hint=f"Use one of {', '.join(body.ENCODINGS)}.")
        return encoding


class _Exports:
    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake
        self._limits = intake.limits

    async def __call__(self, signal: Signal, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answered(signal, scope, receive)
        await response(scope, receive, send)

    async def _answered(self, signal: Signal, scope: Scope, receive: Receive) -> Response:
        head, chunks = _Head.of(scope), _chunks(receive)
        try:
            return await self._export(signal, scope, head, chunks)
        except ClientDisconnect:
            self._intake.count(Outcome.DISCONNECTED)
            return Response(status_code=_CLIENT_CLOSED)
        except asyncio.CancelledError:
            # The server stops. A 500 is not retried by every sender.
            closed = JournalClosed("The bridge is stopping.", hint="Send the batch again later.")
            return _failed(head.media, self._intake, closed)
        except Exception as error:  # noqa: BLE001  # the edge: counted, logged, retryable
            await body.drain(chunks, timeout_s=self._limits.body_timeout_s)
            return _failed(head.media, self._intake, error)

    async def _export(
        self, signal: Signal, scope: Scope, head: _Head, chunks: AsyncIterator[bytes]
    ) -> Response:
        # Checked first, so that nothing of an unauthorised request is read into memory.
        host, _ = scope.get("client") or ("", 0)
        grant = self._intake.grant_to(host, PATHS[signal], head.authorization)
        encoding, media, limits = head.encoding, head.media, self._limits
        if media is None:
            await body.drain(chunks, timeout_s=limits.body_timeout_s)
            self._intake.count(Outcome.UNSUPPORTED_MEDIA_TYPE)
            return Response(
                f"415 unsupported media type, supported: [{', '.join(_Media)}]",
                status_code=415,
                media_type="text/plain",
            )
        with self._intake.hold(grant) as held:
            received = await body.read(
                chunks,
                max_bytes=limits.max_body_bytes,
                timeout_s=limits.body_timeout_s,
                held=held,
            )
            sender = token_of(grant), address_of(host)
            payload = received
            if encoding != "identity":
                unpack = partial(
                    body.decompress, received, encoding, max_bytes=limits.max_body_bytes, held=held
                )
                payload = await self._intake.unpacked(unpack, len(received), sender)
            admitted = await self._intake.taken(
                signal, payload, grant, is_json=media is _Media.JSON, sender=sender
            )
        return _encoded(media, export_response(signal, admitted))


class _Others:
    """Answers requests that belong neither to exports nor to any other route."""

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake

    async def answer(self, request: Request, error: Exception) -> Response:
        """Answer unknown paths, wrong methods, and pages that failed."""
        if isinstance(error, HTTPException) and error.status_code == 405:
            return await self.refuse_method(request, (error.headers or {}).get("Allow", "GET"))
        await self._drain(request)
        media = _Head.of(request.scope).media
        if isinstance(error, HTTPException) and error.status_code == 404:
            self._intake.count(Outcome.NOT_FOUND)
            message = f"{request.url.path!r} is not served. Paths: {', '.join(PATHS.values())}."
            return _refused(media, NOT_FOUND, message, self._intake.limits.retry_after_s)
        return _failed(media, self._intake, error)

    async def refuse_head(self, request: Request) -> Response:
        await self._drain(request)
        error = MalformedRequest(f"The headers are over {MAX_HEAD_BYTES} bytes.")
        return _failed(_Head.of(request.scope).media, self._intake, error)

    async def refuse_method(self, request: Request, allowed: str) -> Response:
        """Answer a request for a known path with another method than ``allowed``."""
        await self._drain(request)
        self._intake.count(Outcome.WRONG_METHOD)
        return Response(
            f"405 method not allowed, supported: [{allowed}]",
            status_code=405,
            headers={"allow": allowed},
            media_type="text/plain",
        )

    async def _drain(self, request: Request) -> None:
        await body.drain(request.stream(), timeout_s=self._intake.limits.body_timeout_s)


def _encoded(media: _Media, message: Message, *, status_code: int = 200) -> Response:
    if media is _Media.PROTOBUF:
        content = message.SerializeToString()
    else:
        content = MessageToJson(message, indent=None).encode()
    # A Response with a media_type appends a charset to some; these two are sent unchanged.
    return Response(content, status_code=status_code, headers={"content-type": str(media)})


def _failed(media: _Media | None, intake: IngestPipeline, error: BaseException) -> Response:
    """Count a request that ended in an error, and return its answer."""
    answer, message = intake.answer(error, Where.HTTP)
    return _refused(media, answer, message, intake.limits.retry_after_s)


def _refused(media: _Media | None, answer: Answer, message: str, retry_after_s: int) -> Response:
    status = status_message(answer, message, retry_after_s=retry_after_s)
    # A request without a media type comes from a browser or curl.
    response = _encoded(media or _Media.JSON, status, status_code=answer.http)
    if answer.is_retryable:
        response.headers["retry-after"] = str(retry_after_s)
    if answer.http == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _head_bytes(scope: Scope) -> int:
    headers = scope["headers"]
    size = 4 * len(headers) + len(scope["raw_path"]) + len(scope["query_string"])  # ": ", CR, LF
    for name, value in headers:
        size += len(name) + len(value)
    return size


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        if piece:
            yield piece
        if not message.get("more_body", False):
            return
