"""OTLP over gRPC."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import NoReturn, Self

import grpc

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.receive.deadlines import Deadlines
from otel_rl.bridge.receive.exposure import exposure
from otel_rl.bridge.receive.intake import Intake
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.response import export_response
from otel_rl.bridge.receive.status import status_message
from otel_rl.bridge.receive.tls import Tls
from otel_rl.errors import ConfigError, MalformedRequest
from otel_rl.records import Signal

__all__ = ["SERVICES", "GrpcServer"]

_log = logging.getLogger(__name__)

SERVICES = {
    Signal.METRICS: "opentelemetry.proto.collector.metrics.v1.MetricsService",
    Signal.TRACES: "opentelemetry.proto.collector.trace.v1.TraceService",
    Signal.LOGS: "opentelemetry.proto.collector.logs.v1.LogsService",
}
"""Where each signal is sent, as OTLP names it."""

# A call without a message waits so long to be told so. Whether gRPC has ended it is known a moment
# later, and decides what it is counted as.
_END_S = 0.5

_STATUS_DETAILS = "grpc-status-details-bin"  # where gRPC keeps a google.rpc.Status

# Exporters have one call in flight, a collector ten. What is over it waits at the sender.
_MAX_STREAMS_PER_CONNECTION = 32

# Calls that wait for a thread, as a multiple of the connections. gRPC answers further ones by
# RESOURCE_EXHAUSTED, which Go's exporter does not repeat, so this is the last resort of a flood.
_CALLS_PER_CONNECTION = 4

_MIN_PING_INTERVAL_MS = 10_000  # what Go's and Python's exporters can be set to, and no less


class GrpcServer:
    """Serves ``Export`` of each of ``SERVICES``.

    The port is bound by the constructor, so a port in use is an error at start and ``address`` is
    final; ``start`` begins to answer.

    Args:
        intake: Takes the requests, from up to ``max_concurrent_requests`` threads at once.
        host: Address to listen on.
        port: 0 picks a free one.
        tls: Encrypts, if given.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(
        self, intake: Intake, host: str = "127.0.0.1", port: int = 4317, tls: Tls | None = None
    ) -> None:
        limits = intake.limits
        self._intake = intake
        self._limits = limits
        self._threads = ThreadPoolExecutor(
            limits.max_concurrent_requests, thread_name_prefix="otel-rl-grpc"
        )
        self._deadlines = Deadlines(limits.body_timeout_s, "otel-rl-grpc-deadlines")
        # _lock makes a second stop wait for the first.
        self._lock = threading.Lock()
        self._server = grpc.server(
            self._threads,
            options=_options(limits),
            maximum_concurrent_rpcs=_CALLS_PER_CONNECTION * limits.max_connections,
        )
        self._server.add_generic_rpc_handlers([self._handlers(signal) for signal in SERVICES])
        try:
            if tls is None:
                bound_port = self._server.add_insecure_port(f"{host}:{port}")
            else:
                bound_port = self._server.add_secure_port(f"{host}:{port}", tls.credentials)
        except RuntimeError as exc:
            raise ConfigError(
                f"grpc: cannot listen on {host}:{port}.",
                hint=f"Stop what uses port {port}, or give another one with --grpc HOST:PORT "
                "(0 is free).",
            ) from exc
        self._address = f"{host}:{bound_port}"
        danger = exposure(
            host,
            wants_token=intake.wants_token,
            has_tls=tls is not None,
            is_mutual=tls is not None and tls.is_mutual,
        )
        if danger:
            _log.warning("OTLP/gRPC on %s", danger)

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return self._address

    def start(self) -> None:
        """Begin to answer."""
        self._deadlines.start()
        self._server.start()

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop listening, finish the requests in flight, then return. Idempotent.

        Nothing is accepted after it returns. A request that is being made durable is always waited
        for; one whose message has not arrived after ``grace_s`` is cut off, and its sender retries.
        """
        with self._lock:
            self._server.stop(grace_s).wait()
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._deadlines.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _handlers(self, signal: Signal) -> "grpc.GenericRpcHandler[bytes, bytes]":
        # Without a deserializer the message arrives as bytes: gRPC itself would answer INTERNAL to
        # one that cannot be parsed, and INVALID_ARGUMENT is what OTLP says. As a stream, which is
        # the same on the wire, the call reaches us before its message: so it has a deadline, and
        # nothing of a stranger's message is read.
        export = grpc.stream_unary_rpc_method_handler(partial(self._export, signal))
        return grpc.method_handlers_generic_handler(SERVICES[signal], {"Export": export})

    def _export(
        self, signal: Signal, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> bytes:
        try:
            grant = self._intake.grant(_authorization(context))
            message = self._receive(messages, context)
            with self._intake.hold() as held:
                held.add(len(message))
                admitted = self._intake.take(signal, lambda: message, grant)
        except _Cancelled:
            return b""  # nobody listens
        except Exception as error:  # noqa: BLE001  # the edge: counted, logged, retryable
            self._abort(context, error)
        return export_response(signal, admitted).SerializeToString()

    def _receive(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._deadlines.within(context.cancel) as deadline:
            try:
                message = next(messages, None)
            except grpc.RpcError:
                message = None
        if message is not None:
            return message
        if deadline.has_passed:
            self._intake.count(Outcome.SLOW)
        elif _has_ended(context) or not context.time_remaining():
            self._intake.count(Outcome.CANCELLED)
        else:
            raise MalformedRequest("The call has no message.")
        raise _Cancelled

    def _abort(self, context: grpc.ServicerContext, error: Exception) -> NoReturn:
        answer, message = self._intake.answer(error, Where.GRPC)
        status = status_message(answer, message, retry_after_s=self._limits.retry_after_s)
        context.set_trailing_metadata(((_STATUS_DETAILS, status.SerializeToString()),))
        context.abort(answer.grpc, status.message)
        raise AssertionError("abort always raises")


def _has_ended(context: grpc.ServicerContext) -> bool:
    """Whether gRPC itself ended the call, of which it tells a moment after there is no message."""
    ended = threading.Event()
    return not context.add_callback(ended.set) or ended.wait(_END_S)


class _Cancelled(Exception):
    """The call ended before its message was complete."""


def _options(limits: ReceiveLimits) -> list[tuple[str, int]]:
    idle_ms = int(limits.idle_timeout_s * 1000)
    return [
        # gRPC holds both the compressed and the decompressed message to it, and answers
        # RESOURCE_EXHAUSTED by itself.
        ("grpc.max_receive_message_length", limits.max_body_bytes),
        # Else a second bridge on the same port would silently take half of the requests.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_concurrent_streams", _MAX_STREAMS_PER_CONNECTION),
        # A connection without calls is closed, and one whose other end is dead is noticed.
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.keepalive_time_ms", idle_ms),
        ("grpc.keepalive_timeout_ms", int(limits.answer_timeout_s * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.server_handshake_timeout_ms", int(limits.header_timeout_s * 1000)),
    ]


def _authorization(context: grpc.ServicerContext) -> str | None:
    for key, value in context.invocation_metadata():
        if key == "authorization" and isinstance(value, str):
            return value
    return None
