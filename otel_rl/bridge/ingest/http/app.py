"""OTLP/HTTP as a FastAPI application.

Every answer has the encoding of its request: an export response for 200, a ``google.rpc.Status``
for an error. The framework's own error pages (422, 500, ...) never reach a sender.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from inspect import signature

from fastapi import FastAPI, Request
from fastapi.responses import Response
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.ingest import body
from otel_rl.bridge.ingest.accepted_answer import export_response
from otel_rl.bridge.ingest.admission.call_slots import Places
from otel_rl.bridge.ingest.admission.token_shares import token_of
from otel_rl.bridge.ingest.error_answers import NOT_FOUND, Answer, status_message
from otel_rl.bridge.ingest.limits import MAX_HEAD_BYTES
from otel_rl.bridge.ingest.peers import address_of
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.security.tokens import Grant
from otel_rl.bridge.ingest.validation.validate import Validated
from otel_rl.errors import JournalClosed, MalformedRequest
from otel_rl.records import Signal

__all__ = ["PATHS", "create_app"]

PATHS = {
    Signal.METRICS: "/v1/metrics",
    Signal.TRACES: "/v1/traces",
    Signal.LOGS: "/v1/logs",
}
"""Path of each signal, as OTLP names it."""


class _Media(StrEnum):
    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


# Newer versions of FastAPI report every request to the global providers, which belong to the
# program around the bridge: exported to the bridge itself, each request would cause the next one,
# for ever. They also log exceptions with their text.
_QuietFastAPI: Callable[..., FastAPI] = (
    partial(
        FastAPI,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    if "telemetry" in signature(FastAPI).parameters
    else FastAPI
)

_CLIENT_CLOSED = 499  # nginx's code for a closed request; it is never sent


def create_app(intake: IngestPipeline, routes: Sequence[BaseRoute] = ()) -> FastAPI:
    """Create the application: ``POST`` to each of ``PATHS``, and ``GET /healthz``.

    Args:
        intake: Takes the requests, from up to ``max_concurrent_requests`` threads at once.
        routes: Further ones, with other paths, that do not block.
    """
    receiver = _Receiver(intake)
    app = _QuietFastAPI(
        title="otel_rl bridge",
        lifespan=receiver.lifespan,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={
            HTTPException: receiver.answer_framework_error,
            Exception: receiver.answer_framework_error,
        },
    )
    for signal, path in PATHS.items():
        app.post(path)(receiver.endpoint(signal))
    app.get("/healthz")(receiver.healthz)
    app.router.routes.extend(routes)
    app.add_middleware(_BoundedHead, refuse=receiver.refuse_head)
    return app


class _BoundedHead:
    """Refuses requests whose head is too large.

    The HTTP parser bounds only headers that arrive in pieces; those that arrive in one piece are of
    any size.
    """

    def __init__(self, app: ASGIApp, refuse: Callable[[Request], Awaitable[Response]]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_bytes(scope) > MAX_HEAD_BYTES:
            response = await self._refuse(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])  # ": ", CR, LF
    return len(scope["raw_path"]) + len(scope["query_string"]) + headers


class _Receiver:
    """Endpoints, and the threads in which they parse and store."""

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake
        self._limits = intake.limits
        self._threads: ThreadPoolExecutor
        self._places: Places

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncGenerator[None]:
        with ThreadPoolExecutor(
            self._limits.max_concurrent_requests, thread_name_prefix="otel-rl-http-worker"
        ) as threads:
            self._threads = threads
            self._places = Places(
                asyncio.get_running_loop(),
                self._limits.max_concurrent_requests,
                max_waiting=self._limits.max_connections,  # a connection has one request at a time
                wait_s=math.inf,  # as long as the sender waits
                patience_s=math.inf,
            )
            yield
            # Requests cut off while they waited for a thread must not be stored later.
            threads.shutdown(wait=True, cancel_futures=True)

    async def healthz(self) -> Response:
        problem = self._intake.problem()
        status = 503 if problem else 200
        return Response(f"{problem or 'ok'}\n", status, media_type="text/plain")

    def endpoint(self, signal: Signal) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of ``POST`` requests of a signal."""

        async def export(request: Request) -> Response:
            chunks = request.stream()
            media = _media_of(request)
            try:
                return await self._export(signal, request, media, chunks)
            except ClientDisconnect:
                self._intake.count(Outcome.DISCONNECTED)
                return Response(status_code=_CLIENT_CLOSED)
            except asyncio.CancelledError:
                # The server stops. A 500 is not retried by every sender.
                closed = JournalClosed(
                    "The bridge is stopping.", hint="Send the batch again later."
                )
                return self._error(media, *self._intake.answer(closed, Where.HTTP))
            except Exception as error:  # noqa: BLE001  # the edge: counted, logged, retryable
                await body.drain(chunks, timeout_s=self._limits.body_timeout_s)
                answer, message = self._intake.answer(error, Where.HTTP)
                return self._error(media, answer, message)

        return export

    async def refuse_head(self, request: Request) -> Response:
        """Answer a request whose head is too large."""
        await body.drain(request.stream(), timeout_s=self._limits.body_timeout_s)
        error = MalformedRequest(f"The headers are over {MAX_HEAD_BYTES} bytes.")
        return self._error(_media_of(request), *self._intake.answer(error, Where.HTTP))

    async def answer_framework_error(self, request: Request, error: Exception) -> Response:
        """Answer unknown paths and wrong methods, which the framework detects by itself."""
        await body.drain(request.stream(), timeout_s=self._limits.body_timeout_s)
        if isinstance(error, HTTPException) and error.status_code == 405:
            self._intake.count(Outcome.WRONG_METHOD)
            allowed = (error.headers or {}).get("allow", "POST")
            return Response(
                f"405 method not allowed, supported: [{allowed}]",
                status_code=405,
                headers={"allow": allowed},
                media_type="text/plain",
            )
        if isinstance(error, HTTPException) and error.status_code == 404:
            self._intake.count(Outcome.NOT_FOUND)
            message = f"{request.url.path!r} is not served. Paths: {', '.join(PATHS.values())}."
            return self._error(_media_of(request), NOT_FOUND, message)
        answer, message = self._intake.answer(error, Where.HTTP)
        return self._error(_media_of(request), answer, message)

    async def _export(
        self, signal: Signal, request: Request, media: _Media | None, chunks: AsyncIterator[bytes]
    ) -> Response:
        # Checked first, so that nothing of an unauthorised request is read into memory.
        grant = self._intake.grant(request.headers.get("authorization"))
        encoding = _encoding_of(request)
        if media is None:
            await body.drain(chunks, timeout_s=self._limits.body_timeout_s)
            self._intake.count(Outcome.UNSUPPORTED_MEDIA_TYPE)
            return Response(
                f"415 unsupported media type, supported: [{', '.join(_Media)}]",
                status_code=415,
                media_type="text/plain",
            )
        limits = self._limits
        with self._intake.hold(grant) as held:
            compressed = await body.read(
                chunks,
                max_bytes=limits.max_body_bytes,
                timeout_s=limits.body_timeout_s,
                held=held,
            )
            unpack = partial(
                body.decompress, compressed, encoding, max_bytes=limits.max_body_bytes, held=held
            )
            is_json = media is _Media.JSON
            take = partial(self._intake.take, signal, unpack, grant, is_json=is_json)
            admitted = await self._by_turns(take, request, grant)
        return _encoded(media, export_response(signal, admitted))

    async def _by_turns(
        self, take: Callable[[], Validated], request: Request, grant: Grant | None
    ) -> Validated:
        """Call ``take`` in a thread when it is the sender's turn."""
        host, port = request.client or ("", 0)
        address = address_of(host)
        place = await self._places.take((token_of(grant), address, f"{address}:{port}"))
        self._places.arrived(place)
        loop = asyncio.get_running_loop()
        try:
            taking = self._threads.submit(take)
        except BaseException:
            self._places.release(place)
            raise
        # Also for a request that was cut off: its thread goes on.
        taking.add_done_callback(lambda _: loop.call_soon_threadsafe(self._places.release, place))
        try:
            return await asyncio.wrap_future(taking)
        finally:
            del (
                taking
            )  # its error would keep this frame, and the request, until the next collection

    def _error(self, media: _Media | None, answer: Answer, message: str) -> Response:
        retry_after_s = self._limits.retry_after_s
        status = status_message(answer, message, retry_after_s=retry_after_s)
        # A request without a media type comes from a browser or curl.
        response = _encoded(media or _Media.JSON, status, status_code=answer.http)
        if answer.is_retryable:
            response.headers["retry-after"] = str(retry_after_s)
        if answer.http == 401:
            response.headers["www-authenticate"] = "Bearer"
        return response


def _media_of(request: Request) -> _Media | None:
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return _Media(name) if name in list(_Media) else None


def _encoding_of(request: Request) -> str:
    encoding = request.headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding not in body.ENCODINGS:
        msg = f"Content-Encoding {encoding[:40]!r} is not known."
        raise MalformedRequest(msg, hint=f"Use one of {', '.join(body.ENCODINGS)}.")
    return encoding


def _encoded(media: _Media, message: Message, *, status_code: int = 200) -> Response:
    if media is _Media.PROTOBUF:
        content = message.SerializeToString()
    else:
        content = MessageToJson(message, indent=None).encode()
    # A Response with a media_type appends a charset to some; these two are sent unchanged.
    return Response(content, status_code=status_code, headers={"content-type": str(media)})
