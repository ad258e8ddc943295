"""Server of ``otel-rl view``."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from hashlib import sha256

import uvicorn
from starlette.applications import Starlette

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.ingest.security.exposure import is_loopback
from otel_rl.bridge.ingest.security.tokens import AuthSettings, Tokens, TokenSettings
from otel_rl.errors import ConfigError
from otel_rl.view.access import Access
from otel_rl.view.app import PageRoutes
from otel_rl.view.pages import Answer, Pages, Question

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
        self._token = "" if is_loopback(host) or is_behind_proxy else secrets.token_urlsafe(24)
        tokens = Tokens(_auth(self._token))
        access = Access(
            tokens.grant,
            wants_token=tokens.are_needed,
            host=host,
            is_behind_proxy=is_behind_proxy,
        )
        self._host = host
        # One thread: what was read is shared between questions.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otel-rl-view")
        self._routes = PageRoutes(self._answer, access)
        self._socket = _listen(host, port)

    @property
    def url(self) -> str:
        """Return the link to open, with the token if one is needed."""
        port = self._socket.getsockname()[1]
        is_any = self._host in {"0.0.0.0", "::", ""}  # noqa: S104  # compared, not bound
        host = socket.gethostname() if is_any else self._host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?token={self._token}" if self._token else "")

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
            server.run(sockets=[self._socket])

    async def _answer(self, question: Question) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._pages.answer, question
        )


class _Server(uvicorn.Server):
    """Ends open streams first."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop()
        await super().shutdown(sockets)


def _auth(token: str) -> AuthSettings:
    if not token:
        return AuthSettings()
    digest = sha256(token.encode()).hexdigest()
    return AuthSettings(
        tokens=(
            TokenSettings(name="view", experiments=("*",), sha256=(digest,), file=None, share=None),
        )
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as exc:
        raise ConfigError(
            f"--listen: cannot use {host}:{port}: {exc.strerror}.",
            hint="Choose another port, or 0 for a free one.",
        ) from exc
    return listener
