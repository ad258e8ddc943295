"""Routes of the page, for the server of ``otel-rl view`` and for that of a bridge.

Everything comes from the server itself: the page loads nothing from elsewhere, and its policy
forbids it.
"""

import asyncio
import gzip
import importlib.resources
import shlex
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from typing import Final
from urllib.parse import parse_qs

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.receive.tokens import Grant
from otel_rl.errors import ConfigError, Unauthenticated
from otel_rl.view.access import COOKIE, Access, Forbidden
from otel_rl.view.questions import Answer, Question
from otel_rl.view.report import one_file, report_answers

Ask = Callable[[Question], Awaitable[Answer]]
"""Answers a question, elsewhere than on the thread of the server."""

_STATIC: Final = importlib.resources.files("otel_rl.view") / "static"
_MEDIA: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

# plotly.js adds its rules to the page by scripts; everything that a sender names is text.
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_MAX_STREAMS: Final = 16
_MAX_REPORTS: Final = 4  # that are made at once, each of some MB of memory
_MAX_TOLD: Final = 16  # as many as can be compared
_LOOK_S: Final = 1.0
_MAX_FORM_BYTES: Final = 4_096

_SIGN_IN: Final = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>otel_rl</title>
<link rel="stylesheet" href="/static/page.css">
<main class="sign-in"><h1>otel_rl</h1><form method="post" action="/sign-in">
<label>Token of this bridge <input type="password" name="token" autofocus></label>
<button>Show runs</button></form></main></html>"""


class PageRoutes:
    """Routes of one server.

    Args:
        ask: Answers questions.
        access: Who may see the page.
        again: Command that shows the runs once this server has ended; empty if there is none.
    """

    def __init__(self, ask: Ask, access: Access, again: str = "") -> None:
        self._ask = ask
        self._access = access
        self._again = again
        self._stopping = threading.Event()
        self._streams = self._reports = 0

    def routes(self) -> Sequence[BaseRoute]:
        """Return them; none has a path of OTLP."""
        return [
            Route("/", self._index, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/static/{name}", self._static, methods=["GET"]),
            Route("/api/events", self._events, methods=["GET"]),
            Route("/api/{path:path}", self._api, methods=["GET"]),
        ]

    def stop(self) -> None:
        """End the streams, which would hold up the end of the server. Any thread may call it."""
        self._stopping.set()

    async def _index(self, request: Request) -> Response:
        token = request.query_params.get("token", "")
        if token and self._access.wants_token:
            return self._signed_in(request, token)
        try:
            self._access.experiments(request)
        except Unauthenticated:
            return HTMLResponse(_SIGN_IN, 401, headers=_HEADERS)
        except Forbidden as exc:
            return _words(403, str(exc))
        return Response(_asset("index.html"), media_type="text/html", headers=_HEADERS)

    async def _sign_in(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                return _words(413, "The form is too long.")
        (token,) = parse_qs(body.decode(errors="replace")).get("token", [""])[:1]
        return self._signed_in(request, token)

    def _signed_in(self, request: Request, token: str) -> Response:
        if not self._access.wants_token or not self._access.knows(token.strip()):
            return HTMLResponse(_SIGN_IN, 401, headers=_HEADERS)
        # The token does not stay in the address.
        response = RedirectResponse("/", 303, headers=_HEADERS)
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, token.strip(), httponly=True, samesite="strict", secure=is_secure
        )
        return response

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        media = _MEDIA.get(name.rpartition(".")[2])
        if media is None or not (_STATIC / name).is_file():
            return _words(404, "There is no such file.")
        headers = {**_HEADERS, "vary": "accept-encoding"}
        if name == "plotly.js":
            headers["cache-control"] = "private, max-age=86400"
        if not _takes_gzip(request):
            return Response(_asset(name), media_type=media, headers=headers)
        headers["content-encoding"] = "gzip"
        return Response(_compressed(name), media_type=media, headers=headers)

    async def _api(self, request: Request) -> Response:
        try:
            grant = self._access.reader(request)
        except Unauthenticated as exc:
            return _error(401, str(exc))
        except Forbidden as exc:
            return _error(403, str(exc))
        path = request.path_params["path"]
        query = dict(request.query_params)
        question = Question(path, query, None if grant is None else grant.experiments)
        match path.split("/"):
            case ["runs", run, "report"]:
                answer = await self._report(run, question, request)
            case _:
                answer = await self._ask(question)
        self._tell(grant, request, answer.status)
        headers = {**_HEADERS, "vary": "accept-encoding"}
        body = answer.body
        if answer.encoding and _takes_gzip(request):
            headers["content-encoding"] = answer.encoding
        elif answer.encoding:
            body = gzip.decompress(body)
        return Response(body, answer.status, headers, answer.media)

    async def _report(self, run: str, question: Question, request: Request) -> Answer:
        """Return a run as one HTML file; others are answered between its many questions."""
        if self._reports >= _MAX_REPORTS:
            return _refusal("Too many reports are being made, try again in a minute.")
        self._reports += 1
        steps = report_answers(run)
        try:
            asked = next(steps)
            while not self._stopping.is_set() and not await request.is_disconnected():
                answer = await self._ask(asked._replace(experiments=question.experiments))
                if answer.status != 200:
                    return answer
                asked = steps.send(answer)
        except StopIteration as end:
            html = await asyncio.to_thread(one_file, end.value)
            body = await asyncio.to_thread(gzip.compress, html.encode(), 1)
            return Answer(200, body, "text/html", "gzip")
        except ConfigError as exc:
            return _refusal(str(exc))
        finally:
            self._reports -= 1
        return _refusal("The report was given up.")

    def _tell(self, grant: Grant | None, request: Request, status: int) -> None:
        """Tell the audit log what was asked for, but for what is of no run."""
        address, path = request.client.host if request.client else "", request.path_params["path"]
        match path.split("/"):
            case ["runs", run, part]:
                asked = [(part, run)]
            case ["compare"]:
                sides = (request.query_params.get(side, "") for side in ("a", "b"))
                asked = [(path, run) for side in sides for run in side.split(".")]
            case ["runs"]:
                asked = [(path, "")]
            case _:
                return
        for route, run in asked[:_MAX_TOLD]:
            self._access.audit.read(grant, address, route=route, run=run, status=status)

    async def _events(self, request: Request) -> Response:
        """Tell when there is something new, as server-sent events."""
        try:
            self._access.experiments(request)
        except Unauthenticated as exc:
            return _error(401, str(exc))
        except Forbidden as exc:
            return _error(403, str(exc))
        if self._streams >= _MAX_STREAMS:
            return _error(503, "Too many pages are open; this one asks now and then.")
        return StreamingResponse(
            self._stream(request), media_type="text/event-stream", headers=_HEADERS
        )

    async def _stream(self, request: Request) -> AsyncIterator[bytes]:
        self._streams += 1
        told = b""
        try:
            while not self._stopping.is_set() and not await request.is_disconnected():
                try:  # a token may be gone since the last look
                    experiments = self._access.experiments(request)
                except Unauthenticated:
                    return
                answer = await self._ask(Question("revision", {}, experiments))
                if answer.status == 200 and answer.body != told:
                    told = answer.body
                    yield b"data: " + told + b"\n\n"
                else:
                    yield b": \n\n"  # so that a reader who has gone is noticed
                await asyncio.sleep(_LOOK_S)
            if self._stopping.is_set():  # a page that is told does not look like one that broke
                yield b"event: end\ndata: " + orjson.dumps({"again": self._again}) + b"\n\n"
        finally:
            self._streams -= 1


def again(settings: BridgeSettings) -> str:
    """Return the command that shows the runs of a bridge without it; empty for a database's."""
    if settings.journal.url is not None:
        return ""
    return shlex.join(["otel-rl", "view", str(settings.data)])


def _refusal(why: str) -> Answer:
    return Answer(503, orjson.dumps({"error": why}))


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _asset(name: str) -> bytes:
    return (_STATIC / name).read_bytes()


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(_asset(name), compresslevel=1)


def _words(status: int, text: str) -> Response:
    return Response(f"{text}\n", status, headers=_HEADERS, media_type="text/plain")


def _error(status: int, text: str) -> Response:
    return Response(
        orjson.dumps({"error": text}), status, headers=_HEADERS, media_type="application/json"
    )
