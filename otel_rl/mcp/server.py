"""Serves the tools over standard input and output, or over HTTP."""

import contextlib
from collections.abc import Callable

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_rl.errors import Unauthenticated
from otel_rl.view.access import Access, Forbidden
from otel_rl.view.listener import Listener

_LOOK_S = 1
_END_S = 2  # for requests that are being answered


def serve_stdio(server: MCPServer) -> None:
    """Answer the program that has started this process, until it closes the pipe."""
    anyio.run(server.run_stdio_async)


def serve_http(server: MCPServer, listener: Listener, look: Callable[[], None]) -> None:
    """Answer at ``/mcp`` until SIGINT or SIGTERM; each request for itself.

    Args:
        server: Has the tools.
        listener: Its socket, and who may ask.
        look: Called about every second.
    """

    async def notify() -> None:
        look()

    host = listener.socket.getsockname()[0]
    app = server.streamable_http_app(stateless_http=True, json_response=True, host=host)
    config = uvicorn.Config(
        _Door(app, listener.access),
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=_END_S,
        callback_notify=notify,
        timeout_notify=_LOOK_S,
    )
    with contextlib.suppress(KeyboardInterrupt):  # it has ended in order by then
        uvicorn.Server(config).run(sockets=[listener.socket])


class _Door:
    """Admits readers of runs; the tools check which runs they may see."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refused(Request(scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refused(self, request: Request) -> PlainTextResponse | None:
        try:
            self._access.experiments(request)
        except Unauthenticated as exc:
            return PlainTextResponse(str(exc), 401, {"www-authenticate": "Bearer"})
        except Forbidden as exc:
            return PlainTextResponse(str(exc), 403)
        return None
