"""OTLP/HTTP as an ASGI application.

Exports are led past the framework, which answers everything else. Every answer has the encoding of
its request: an export response for 200, a ``google.rpc.Status`` for an error. The framework's own
error pages (404, 500, ...) never reach a sender.
"""

from collections.abc import Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.ingest import body
from otel_rl.bridge.ingest.error_answers import NOT_FOUND, Answer
from otel_rl.bridge.ingest.http.exports import Exports
from otel_rl.bridge.ingest.http.media import RequestHead, error_response
from otel_rl.bridge.ingest.limits import MAX_HEAD_BYTES
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.errors import MalformedRequest
from otel_rl.signals import Signal

__all__ = ["PATHS", "create_app"]

PATHS = {
    Signal.METRICS: "/v1/metrics",
    Signal.TRACES: "/v1/traces",
    Signal.LOGS: "/v1/logs",
}
"""Path of each signal, as OTLP names it."""

_SIGNALS = {path: signal for signal, path in PATHS.items()}


def create_app(intake: IngestPipeline, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Create the application: ``POST`` to each of ``PATHS``, and ``GET /healthz``.

    Args:
        intake: Takes the requests, from up to ``max_concurrent_requests`` threads at once.
        routes: Further ones, with other paths, that do not block.
    """
    exports, others = Exports(intake), _Others(intake)
    app = Starlette(
        routes=[
            # Exports are led past the framework, which refuses other methods.
            *(
                Route(path, partial(exports, signal), methods=["POST"])
                for signal, path in PATHS.items()
            ),
            Route("/healthz", others.healthz, methods=["GET"]),
            *routes,
        ],
        lifespan=exports.lifespan,
        exception_handlers={
            HTTPException: others.answer_framework_error,
            Exception: others.answer_framework_error,
        },
    )
    app.router.redirect_slashes = False
    return _Door(app, exports, others)


class _Door:
    """Leads exports past the framework, and refuses requests whose head is too large.

    The HTTP parser bounds only headers that arrive in pieces; those that arrive in one piece are of
    any size.
    """

    def __init__(self, app: ASGIApp, exports: Exports, others: "_Others") -> None:
        self._app = app
        self._exports = exports
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _head_bytes(scope) > MAX_HEAD_BYTES:
            response = await self._others.refuse_head(Request(scope, receive))
            await response(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in _SIGNALS:
            await self._exports(_SIGNALS[scope["path"]], scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    headers = scope["headers"]
    size = 4 * len(headers) + len(scope["raw_path"]) + len(scope["query_string"])  # ": ", CR, LF
    for name, value in headers:
        size += len(name) + len(value)
    return size


class _Others:
    """Answers to everything but exports."""

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake
        self._limits = intake.limits

    async def healthz(self, _: Request) -> Response:
        problem = self._intake.problem()
        status = 503 if problem else 200
        return Response(f"{problem or 'ok'}\n", status, media_type="text/plain")

    async def refuse_head(self, request: Request) -> Response:
        """Answer a request whose head is too large."""
        await body.drain(request.stream(), timeout_s=self._limits.body_timeout_s)
        error = MalformedRequest(f"The headers are over {MAX_HEAD_BYTES} bytes.")
        return self._error(request, *self._intake.answer(error, Where.HTTP))

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
            return self._error(request, NOT_FOUND, message)
        return self._error(request, *self._intake.answer(error, Where.HTTP))

    def _error(self, request: Request, answer: Answer, message: str) -> Response:
        media = RequestHead.of(request.scope).media
        return error_response(media, answer, message, retry_after_s=self._limits.retry_after_s)
