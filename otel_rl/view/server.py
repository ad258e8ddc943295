"""Server of ``otel-rl view``."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from otel_rl.bridge.config import BridgeSettings
from otel_rl.view.app import PageRoutes, again
from otel_rl.view.listener import Listener
from otel_rl.view.pages import Answer, Pages, Question
from otel_rl.view.report_jobs import ReportJobs

__all__ = ["ViewServer"]


class ViewServer:
    """Shows the journals of a directory or database until it is interrupted.

    On another address than loopback a token is needed, which is made here.

    Args:
        settings: Of the bridge that writes, or wrote, the journals.
        host: Address to listen on.
        port: 0 picks a free one.
        is_behind_proxy: Whether a proxy in front authenticates readers.

    Raises:
        ConfigError: The address cannot be used.
    """

    def __init__(
        self, settings: BridgeSettings, host: str, port: int, *, is_behind_proxy: bool = False
    ) -> None:
        self._pages = Pages(settings)
        self._jobs = ReportJobs(self._pages)
        self._listener = Listener("--listen", host, port, is_behind_proxy=is_behind_proxy)
        # One thread: what was read is shared between questions.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otel-rl-view")
        self._routes = PageRoutes(self._answer, self._listener.access, again(settings))

    @property
    def url(self) -> str:
        """Return the link to open, with the token if one is needed."""
        token = self._listener.token
        return self._listener.url + (f"?token={token}" if token else "")

    def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Answer until SIGINT or SIGTERM.

        Args:
            started: Called once requests are answered.
        """

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncIterator[None]:
            started()
            yield
            self._routes.stop()
            self._thread.shutdown()
            self._pages.close()

        app = Starlette(routes=[*self._routes.routes()], lifespan=lifespan)
        config = uvicorn.Config(
            app, access_log=False, log_config=None, server_header=False, ws="none"
        )
        server = _Server(config, self._routes.stop)
        with contextlib.suppress(KeyboardInterrupt):  # it has ended in order by then
            server.run(sockets=[self._listener.socket])

    async def _answer(self, question: Question) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._jobs.answer, question
        )


class _Server(uvicorn.Server):
    """Ends open streams first."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop()
        await super().shutdown(sockets)
