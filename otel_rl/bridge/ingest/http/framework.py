"""Requests that are neither exports nor health probes, answered by FastAPI.

Imported for the first of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.ingest import body
from otel_rl.bridge.ingest.error_answers import NOT_FOUND, Answer
from otel_rl.bridge.ingest.http.health import HEALTH_PATH, Health
from otel_rl.bridge.ingest.http.requests.exports import PATHS, Exports
from otel_rl.bridge.ingest.http.requests.media import RequestHead, error_response
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.signals import Signal

__all__ = ["create_framework"]

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


def create_framework(
    intake: IngestPipeline,
    exports: Exports,
    health: Health,
    routes: Sequence[BaseRoute],
    paths: Mapping[str, Signal],
) -> ASGIApp:
    """Create the application that answers ``routes``, unknown paths and wrong methods.

    Args:
        intake: Takes the requests.
        exports: Answers those of ``paths``.
        health: Answers probes.
        routes: Of pages.
        paths: Of OTLP, with their signals.
    """
    others = _Others(intake)
    app = _QuietFastAPI(
        title="otel_rl bridge",
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={
            HTTPException: others.answer_framework_error,
            Exception: others.answer_framework_error,
        },
    )
    # These are led past the framework, which refuses other methods.
    for path, signal in paths.items():
        app.router.routes.append(Route(path, partial(exports, signal), methods=["POST"]))
    app.get(HEALTH_PATH)(health.answer)
    app.router.routes.extend(routes)
    return app


class _Others:
    """Answers of the bridge itself."""

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake
        self._limits = intake.limits

    async def answer_framework_error(self, request: Request, error: Exception) -> Response:
        """Answer unknown paths and wrong methods, which the framework detects by itself."""
        await body.drain(request.stream(), timeout_s=self._limits.body_timeout_s)
        if isinstance(error, HTTPException) and error.status_code == 405:
            self._intake.count(Outcome.WRONG_METHOD)
            allowed = (error.headers or {}).get("Allow", "POST")
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
