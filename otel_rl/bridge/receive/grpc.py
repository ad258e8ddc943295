"""OTLP/gRPC server."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, NoReturn, Self, TypeVar

import grpc
import grpc.aio

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.receive.answers import export_response, status_message
from otel_rl.bridge.receive.gate import Gate, Sender
from otel_rl.bridge.receive.limits import MAX_HEAD_BYTES, ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.bridge.receive.senders import host_of_call, peer_of_call
from otel_rl.bridge.receive.tls import Tls, exposure
from otel_rl.bridge.receive.tokens import Grant, token_of
from otel_rl.bridge.receive.validate import Validated
from otel_rl.errors import ConfigError, MalformedRequest, Overloaded, SlowSender
from otel_rl.signals import Signal

_T = TypeVar("_T")

_Context = grpc.aio.ServicerContext[bytes, bytes]

_log = logging.getLogger(__name__)

SERVICES = {
    Signal.METRICS: "opentelemetry.proto.collector.metrics.v1.MetricsService",
    Signal.TRACES: "opentelemetry.proto.collector.trace.v1.TraceService",
    Signal.LOGS: "opentelemetry.proto.collector.logs.v1.LogsService",
}
"""gRPC service of each signal, as OTLP names it."""

# Grace period of a call without a message, to be answered. Whether gRPC has ended it is known only
# a moment later, and decides its outcome counter.
_END_S = 0.5

_STATUS_DETAILS = "grpc-status-details-bin"  # gRPC's key of a google.rpc.Status

# Exporters have one call in flight, a collector ten. Further ones wait at the sender.
_MAX_STREAMS_PER_CONNECTION = 32

# Calls whose messages may wait to be read, as a multiple of the connections. Further ones are asked
# to retry.
_CALLS_PER_CONNECTION = 4

# An exporter sends its message with its call. While the messages of others wait to be read, a call
# is given this long.
_MOMENT_S = 0.5

# A slow event loop learns of a message long after it has arrived: a call is given up only after
# this many more rounds of the loop.
_ROUNDS = 16

# Of a call, as of a request over HTTP. gRPC's own default starts to refuse at 8 KiB, at random.
_MAX_METADATA_BYTES = MAX_HEAD_BYTES

_MIN_PING_INTERVAL_MS = 10_000  # the lowest interval of Go's and Python's exporters


class GrpcServer:
    """Serves ``Export`` of each of ``SERVICES``.

    The port is bound by the constructor, so a port in use is an error at start and ``address`` is
    final; ``start`` begins to answer.

    One thread reads the messages of all calls, a bounded number at a time: gRPC keeps incomplete
    messages in memory. A call uses no message memory before its token was checked.

    Args:
        port: TCP port; 0 picks a free one.

    Raises:
        ConfigError: The address cannot be bound.
    """

    def __init__(
        self,
        intake: IngestPipeline,
        host: str = "127.0.0.1",
        port: int = 4317,
        tls: Tls | None = None,
    ) -> None:
        # _lock makes a second stop wait for the first.
        self._lock = threading.Lock()
        self._loop_thread = _LoopThread("otel-rl-grpc")
        try:
            self._calls = self._loop_thread.run(_serve(intake, host, port, tls))
        except RuntimeError as exc:
            self._loop_thread.stop()
            raise ConfigError(
                f"grpc: cannot listen on {host}:{port}.",
                hint=f"Stop what uses port {port}, or give another one with --grpc HOST:PORT of "
                "otel-rl bridge or OTEL_RL_BRIDGE__LISTEN__GRPC (port 0 is free).",
            ) from exc
        self._address = f"{host}:{self._calls.port}"
        danger = exposure(
            host,
            wants_token=intake.tokens.are_needed,
            has_tls=tls is not None,
            is_mutual=tls is not None and tls.is_mutual,
        )
        if danger:
            _log.warning("OTLP/gRPC: %s", danger)

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        self._loop_thread.run(self._calls.start())

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop listening, finish the requests in flight, then return. Idempotent.

        Nothing is accepted after this returns. A request that is being stored is always waited for;
        a request whose message has not arrived after ``grace_s`` is cut off, and its sender
        retries.
        """
        with self._lock:
            if self._loop_thread.is_running:
                self._loop_thread.run(self._calls.stop(grace_s))
                self._loop_thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _serve(intake: IngestPipeline, host: str, port: int, tls: Tls | None) -> "_Calls":
    """Bind the port, on the event loop that will answer."""
    server = grpc.aio.server(options=_options(intake.limits))
    calls = _Calls(intake, server)
    try:
        if tls is None:
            calls.port = server.add_insecure_port(f"{host}:{port}")
        else:
            calls.port = server.add_secure_port(f"{host}:{port}", tls.credentials)
    except RuntimeError:
        await calls.stop(0)
        raise
    return calls


class _Calls:
    """Calls of a server. Only the thread of its event loop uses it."""

    def __init__(self, intake: IngestPipeline, server: grpc.aio.Server) -> None:
        limits = intake.limits
        self.port = 0
        self._intake = intake
        self._limits = limits
        self._server = server
        self._has_started = False
        self._loop = asyncio.get_running_loop()
        self._reading = Gate(
            lambda token: intake.tokens.shares.of_sender(token, limits.max_concurrent_requests),
            max_waiting=_CALLS_PER_CONNECTION * limits.max_connections,
        )
        self._storing: set[asyncio.Task[Validated]] = set()
        server.add_generic_rpc_handlers([self._handlers(signal) for signal in SERVICES])

    async def start(self) -> None:
        self._has_started = True
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        if not self._has_started:
            await self._server.start()  # a server that never started keeps its port
        await self._server.stop(grace_s)
        await asyncio.gather(*self._storing, return_exceptions=True)

    def _handlers(self, signal: Signal) -> "grpc.GenericRpcHandler[bytes, bytes]":
        # Without a deserializer the message arrives as bytes: gRPC itself would answer INTERNAL to
        # an unparsable one, where OTLP asks for INVALID_ARGUMENT. As a stream, which is the same on
        # the wire, the call arrives before its message: it has a deadline, and no message is read
        # before its token was checked.
        export = grpc.stream_unary_rpc_method_handler(partial(self._export, signal))
        return grpc.method_handlers_generic_handler(SERVICES[signal], {"Export": export})

    async def _export(self, signal: Signal, _messages: object, context: _Context) -> bytes:
        try:
            host, target = host_of_call(context.peer()), f"{SERVICES[signal]}/Export"
            grant = self._intake.grant_to(host, target, _authorization(context))
            admitted = await self._take(signal, grant, context)
        except Exception as error:  # noqa: BLE001  # the edge: counted, logged, retryable
            answer, message = self._intake.answer(error, Where.GRPC)
            status = status_message(answer, message, retry_after_s=self._limits.retry_after_s)
            details = ((_STATUS_DETAILS, status.SerializeToString()),)
            await context.abort(grpc.StatusCode[answer.grpc.name], status.message, details)
        return export_response(signal, admitted).SerializeToString()

    async def _take(self, signal: Signal, grant: Grant | None, context: _Context) -> Validated:
        sender = token_of(grant), *peer_of_call(context.peer())
        try:
            message = await self._message(sender, context)
        except asyncio.CancelledError:
            self._intake.count(Outcome.CANCELLED)
            raise
        if message is None:
            return await self._without_message(context)
        storing = self._loop.create_task(self._store(signal, message, grant, sender))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        try:
            # A request is stored even if its sender has stopped waiting.
            return await asyncio.shield(storing)
        except asyncio.CancelledError:
            storing.add_done_callback(self._count_failure)
            raise
        finally:
            del storing  # its error would keep this frame, and the message, until a collection

    async def _message(self, sender: Sender, context: _Context) -> bytes | None:
        """Read the call's message when its turn comes; None if the call ends without a message.

        Raises:
            Overloaded: The messages of too many other calls are being read.
            SlowSender: The message did not arrive in time, or messages of other calls wait to be
                read.
        """
        timeout_s = self._limits.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                turn = await self._reading.wait(sender)
        except TimeoutError:
            raise Overloaded(
                "The messages of too many other calls are being read.",
                hint="Send it again later. If this stays, spread the senders over several bridges.",
            ) from None
        try:
            # Never cancelled: gRPC would keep later data of it.
            reading: asyncio.Future[Any] = asyncio.ensure_future(context.read())
            reading.add_done_callback(_look_at)
            is_read = await self._is_read(reading, timeout_s)
        finally:
            turn.leave()
        if not is_read:
            self._intake.count(Outcome.SLOW)
            await context.abort(
                grpc.StatusCode.CANCELLED,
                f"The message took longer than {timeout_s:g} s to arrive.",
            )
        message = reading.result()
        return message if isinstance(message, bytes) else None

    async def _is_read(self, reading: "asyncio.Future[Any]", timeout_s: float) -> bool:
        """Wait for a message. Returns whether the message arrived in time.

        Raises:
            SlowSender: Messages of other calls wait to be read.
        """
        until_s = self._loop.time() + timeout_s
        while (left_s := until_s - self._loop.time()) > 0:
            await asyncio.wait([reading], timeout=min(left_s, _MOMENT_S))
            for _ in range(_ROUNDS):
                if reading.done():
                    return True
                await asyncio.sleep(0)
            if self._reading.waiting:
                raise SlowSender(
                    "Others wait, and the message of this call has not come.",
                    hint="Send it again, with its message.",
                )
        return False

    async def _without_message(self, context: _Context) -> NoReturn:
        if context.time_remaining() != 0:
            try:
                await asyncio.sleep(_END_S)
            except asyncio.CancelledError:
                self._intake.count(Outcome.CANCELLED)
                raise
            raise MalformedRequest("The call has no message.")
        self._intake.count(Outcome.CANCELLED)
        raise asyncio.CancelledError

    async def _store(
        self, signal: Signal, message: bytes, grant: Grant | None, sender: Sender
    ) -> Validated:
        with self._intake.hold(grant) as held:
            held.add(len(message))
            return await self._intake.taken(signal, message, grant, sender=sender[:2])

    def _count_failure(self, storing: "asyncio.Task[Validated]") -> None:
        error = None if storing.cancelled() else storing.exception()
        if isinstance(error, Exception):
            self._intake.answer(error, Where.GRPC)


def _look_at(reading: "asyncio.Future[Any]") -> None:
    """Retrieve the result of a read that nobody waits for any more."""
    if not reading.cancelled():
        reading.exception()


class _LoopThread:
    """Event loop on a thread of its own, which other threads give work to."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_failure)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self, doing: Coroutine[object, object, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # gRPC wakes all loops of the process when one of them has work.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


def _options(limits: ReceiveLimits) -> list[tuple[str, int]]:
    idle_ms = int(limits.idle_timeout_s * 1000)
    return [
        # gRPC applies it to both the compressed and the decompressed message, and answers
        # RESOURCE_EXHAUSTED by itself.
        ("grpc.max_receive_message_length", limits.max_body_bytes),
        # Calls not yet accepted; fewer would be refused at random in a flood.
        ("grpc.server_max_pending_requests", _CALLS_PER_CONNECTION * limits.max_connections),
        (
            "grpc.server_max_pending_requests_hard_limit",
            _CALLS_PER_CONNECTION * limits.max_connections,
        ),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        # Otherwise a second bridge on the same port would silently take half of the requests.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_concurrent_streams", _MAX_STREAMS_PER_CONNECTION),
        # Closes connections without calls, and detects dead peers.
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.keepalive_time_ms", idle_ms),
        ("grpc.keepalive_timeout_ms", int(limits.answer_timeout_s * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.server_handshake_timeout_ms", int(limits.header_timeout_s * 1000)),
    ]


def _authorization(context: _Context) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            return value
    return None
