"""OTLP/HTTP as an ASGI application.

Exports and health probes are led past the framework, which answers everything else. Every answer
has the encoding of its request: an export response for 200, a ``google.rpc.Status`` for an error.
The framework's own error pages (422, 500, ...) never reach a sender.
"""

import asyncio
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_rl.bridge.counters import Where
from otel_rl.bridge.ingest import body
from otel_rl.bridge.ingest.http.health import HEALTH_PATH, Health
from otel_rl.bridge.ingest.http.requests.exports import PATHS, Exports
from otel_rl.bridge.ingest.http.requests.media import RequestHead, error_response
from otel_rl.bridge.ingest.limits import MAX_HEAD_BYTES
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.errors import MalformedRequest
from otel_rl.signals import Signal

__all__ = ["create_app", "create_health_app"]

_SIGNALS = {path: signal for signal, path in PATHS.items()}


def create_health_app(intake: IngestPipeline) -> ASGIApp:
    """Create an application that answers ``GET /healthz`` and nothing else."""
    health = Health(intake)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_probe = scope["method"] == "GET" and scope["path"] == HEALTH_PATH
        response = await health.answer() if is_probe else Response(status_code=404)
        await response(scope, receive, send)

    return answer


def create_app(
    intake: IngestPipeline, routes: Sequence[BaseRoute] = (), *, takes_exports: bool = True
) -> ASGIApp:
    """Create the application: ``POST`` to each of ``PATHS``, and ``GET /healthz``.

    Args:
        intake: Takes the requests, from up to ``max_concurrent_requests`` threads at once.
        routes: Further ones, with other paths, that do not block.
        takes_exports: False for a server without ``PATHS``.
    """
    return _Door(intake, Exports(intake), routes, _SIGNALS if takes_exports else {})


class _Door:
    """Leads exports and health probes past the framework; refuses heads that are too large.

    The HTTP parser bounds only headers that arrive in pieces; those that arrive in one piece are of
    any size.
    """

    def __init__(
        self,
        intake: IngestPipeline,
        exports: Exports,
        routes: Sequence[BaseRoute],
        paths: Mapping[str, Signal],
    ) -> None:
        self._paths = paths
        self._intake = intake
        self._exports = exports
        self._health = Health(intake)
        self._routes = routes
        self._lifespan = Router(lifespan=exports.lifespan)
        self._framework: ASGIApp | None = None
        # _loading is held by the first request that needs the framework.
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
        elif _head_bytes(scope) > MAX_HEAD_BYTES:
            response = await self._refuse_head(Request(scope, receive))
            await response(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in self._paths:
            await self._exports(self._paths[scope["path"]], scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] == HEALTH_PATH:
            response = await self._health.answer()
            await response(scope, receive, send)
        else:
            framework = self._framework or await self._loaded()
            await framework(scope, receive, send)

    async def _loaded(self) -> ASGIApp:
        """Load the framework, in a thread: it takes as much CPU as all else of a bridge's start."""
        async with self._loading:
            if self._framework is None:
                self._framework = await asyncio.to_thread(self._load)
        return self._framework

    def _load(self) -> ASGIApp:
        from otel_rl.bridge.ingest.http.framework import create_framework

        return create_framework(
            self._intake, self._exports, self._health, self._routes, self._paths
        )

    async def _refuse_head(self, request: Request) -> Response:
        """Answer a request whose head is too large."""
        limits = self._intake.limits
        await body.drain(request.stream(), timeout_s=limits.body_timeout_s)
        error = MalformedRequest(f"The headers are over {MAX_HEAD_BYTES} bytes.")
        answer, message = self._intake.answer(error, Where.HTTP)
        media = RequestHead.of(request.scope).media
        return error_response(media, answer, message, retry_after_s=limits.retry_after_s)


def _head_bytes(scope: Scope) -> int:
    headers = scope["headers"]
    size = 4 * len(headers) + len(scope["raw_path"]) + len(scope["query_string"])  # ": ", CR, LF
    for name, value in headers:
        size += len(name) + len(value)
    return size
