"""Runs the HTTP application on a socket and a thread of its own."""

import asyncio
import errno
import logging
import math
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import uvicorn
from google.protobuf.json_format import MessageToJson
from starlette.routing import BaseRoute

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.once_a_minute import OnceAMinute
from otel_rl.bridge.receive.answers import TOO_MANY_CONNECTIONS, status_message
from otel_rl.bridge.receive.app import create_app, create_health_app
from otel_rl.bridge.receive.listener import BoundedListener
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.bridge.receive.protocol import BoundedProtocol, SenderBounds
from otel_rl.bridge.receive.tls import Tls, exposure
from otel_rl.errors import ConfigError

_log = logging.getLogger(__name__)

# Kernel buffer of each connection. Answers are small; by default it grows to megabytes for a sender
# that does not read them.
_SEND_BUFFER_BYTES = 64 << 10

_BACKLOG = 2048  # uvicorn's value; connections wait in it before ``start``


class HttpServer:
    """Serves OTLP/HTTP from ``start`` until ``stop``.

    The socket is bound by the constructor, so a port in use is an error at start and ``address`` is
    final; ``start`` begins to answer. Connections made in between wait.

    Args:
        port: TCP port; 0 picks a free one.
        grpc: OTLP/gRPC address as ``host:port``, for gRPC clients that connect here by mistake.
        routes: Routes of pages beside OTLP, which do not block.
        metrics: Returns the text of ``GET /metrics``; with it the server is a health port, which
            answers only ``GET /healthz`` and ``GET /metrics``.
        takes_exports: Whether exports are answered; else only ``routes`` and ``GET /healthz`` are.

    Raises:
        ConfigError: The address cannot be bound.
    """

    def __init__(
        self,
        intake: IngestPipeline,
        host: str = "127.0.0.1",
        port: int = 4318,
        tls: Tls | None = None,
        *,
        grpc: str | None = None,
        routes: Sequence[BaseRoute] = (),
        metrics: Callable[[], str] | None = None,
        takes_exports: bool = True,
    ) -> None:
        limits = intake.limits
        name = "http" if metrics is None else "health"
        self._socket = _listen(name, (host, port), intake, has_tls=tls is not None)
        self._address = _address_of(self._socket)
        danger = exposure(
            host,
            wants_token=intake.tokens.are_needed,
            has_tls=tls is not None,
            is_mutual=tls is not None and tls.is_mutual,
        )
        if danger and metrics is None:
            _log.warning("OTLP/HTTP: %s", danger)
        self._intake = intake
        self._grpc = grpc
        # A client retries every second, and there may be a thousand ranks.
        self._log_lines = OnceAMinute()
        bounds = SenderBounds(
            header_timeout_s=limits.header_timeout_s,
            answer_timeout_s=limits.answer_timeout_s,
            count=intake.count,
            set_busy=self._socket.set_busy,
            on_http2=self._on_http2,
        )
        config = uvicorn.Config(
            create_app(intake, routes, takes_exports=takes_exports)
            if metrics is None
            else create_health_app(intake, metrics),
            # uvicorn calls the value; its annotation is a class.
            http=partial(BoundedProtocol, bounds=bounds),  # type: ignore[arg-type]
            loop="asyncio",  # other loops do not ask the listener for connections
            access_log=False,
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=math.ceil(limits.idle_timeout_s),
            ws="none",
        )
        config.load()
        config.ssl = tls.context if tls is not None else None
        self._server = _Server(config, partial(intake.count_failure, Where.HTTP))
        self._thread = threading.Thread(target=self._serve, name=f"otel-rl-{name}", daemon=True)
        # _lock makes a second stop wait for the first.
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Begin to answer. Returns once requests are served."""
        self._thread.start()
        self._server.has_begun.wait()
        if not self._server.started:
            self._thread.join()
            raise ConfigError(f"The HTTP server on {self._address} did not start. See the log.")

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop listening, finish the requests in flight, then return. Idempotent.

        Nothing is accepted after this returns. A request that is being stored is always waited for;
        a request whose body has not arrived after ``grace_s`` is cut off, and its sender retries.
        """
        with self._lock:
            self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
            self._server.should_exit = True
            if self._thread.is_alive():
                self._thread.join()
                self._intake.settle()
            self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _on_http2(self) -> str:
        """Count and log a gRPC client at the wrong port. The server's thread calls this."""
        self._intake.count(Outcome.HTTP2)
        way_out = (
            f"OTLP/gRPC is on {self._grpc}: set OTEL_EXPORTER_OTLP_ENDPOINT to that, or write "
            "otel-rl run --grpc."
            if self._grpc is not None
            else "This bridge does not listen on gRPC: set OTEL_EXPORTER_OTLP_PROTOCOL to "
            "http/protobuf."
        )
        message = f"A gRPC client has connected to {self._address}, which is OTLP/HTTP. {way_out}"
        if self._log_lines.is_due("http2"):
            _log.warning(message)
        return message

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.has_begun.set()


class _Server(uvicorn.Server):
    """Signals when it has begun to serve. Off the main thread it installs no signal handlers.

    Args:
        failed: Called for an exception that nobody else handles.
    """

    def __init__(self, config: uvicorn.Config, failed: Callable[[], None]) -> None:
        super().__init__(config)
        self._failed = failed
        self.has_begun = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._count)
        await super().startup(sockets)
        self.has_begun.set()

    def _count(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failed()
        loop.default_exception_handler(context)


def _listen(
    name: str, place: tuple[str, int], intake: IngestPipeline, *, has_tls: bool
) -> BoundedListener:
    limits, (host, port) = intake.limits, place
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = BoundedListener(
            family,
            kind,
            protocol,
            max_connections=limits.max_connections,
            # With TLS no answer is possible before the handshake, whose cost must be avoided.
            farewell=b"" if has_tls else _farewell(limits.max_connections, limits.retry_after_s),
            on_refused=partial(intake.count, Outcome.TOO_MANY_CONNECTIONS),
        )
    except OSError as exc:
        raise _cannot_listen(name, place, exc) from exc
    try:
        # A restarted bridge does not wait for old connections to time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise _cannot_listen(name, place, exc) from exc
    return listener


def _farewell(max_connections: int, retry_after_s: int) -> bytes:
    """Build the answer to a connection over the bound, whose request is not read."""
    message = f"The bridge has {max_connections} connections."
    status = status_message(TOO_MANY_CONNECTIONS, message, retry_after_s=retry_after_s)
    body = MessageToJson(status, indent=None).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nretry-after: {retry_after_s}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _cannot_listen(name: str, place: tuple[str, int], error: OSError) -> ConfigError:
    host, port = place
    is_used = error.errno == errno.EADDRINUSE
    advice = (
        f"Stop what uses port {port}, or give another one" if is_used else "Give another address"
    )
    return ConfigError(
        f"{name}: cannot listen on {host}:{port} ({error.strerror or error}).",
        hint=f"{advice} with --{name} HOST:PORT of otel-rl bridge or "
        f"OTEL_RL_BRIDGE__LISTEN__{name.upper()} (port 0 is free).",
    )


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
