"""OTLP over gRPC."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import NoReturn, Self

import grpc

from otel_rl.bridge.counters import Counters, Where
from otel_rl.bridge.receive.intake import Intake
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.response import export_response
from otel_rl.bridge.receive.status import status_message
from otel_rl.errors import ConfigError
from otel_rl.records import Batch, Signal

__all__ = ["SERVICES", "GrpcServer"]

SERVICES = {
    Signal.METRICS: "opentelemetry.proto.collector.metrics.v1.MetricsService",
    Signal.TRACES: "opentelemetry.proto.collector.trace.v1.TraceService",
}
"""Where each signal is sent, as OTLP names it. Logs are not taken: UNIMPLEMENTED."""

_STATUS_DETAILS = "grpc-status-details-bin"  # where gRPC keeps a google.rpc.Status


class GrpcServer:
    """Serves ``Export`` of metrics and traces.

    The port is bound by the constructor, so a port in use is an error at start and ``address`` is
    final; ``start`` begins to answer.

    Args:
        accept: Makes the batches of a request durable before it returns; called from up to
            ``limits.max_concurrent_requests`` threads at once.
        limits: Bounds on requests.
        counters: Counts every request, point and span.
        clock_ns: The bridge's own clock.
        host: Address to listen on.
        port: 0 picks a free one.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(
        self,
        *,
        accept: Callable[[Sequence[Batch]], None],
        limits: ReceiveLimits,
        counters: Counters,
        clock_ns: Callable[[], int] = time.time_ns,
        host: str = "127.0.0.1",
        port: int = 4317,
    ) -> None:
        self._intake = Intake(accept=accept, limits=limits, counters=counters, clock_ns=clock_ns)
        self._limits = limits
        self._threads = ThreadPoolExecutor(
            limits.max_concurrent_requests, thread_name_prefix="otel-rl-grpc"
        )
        self._server = grpc.server(
            self._threads,
            options=[
                # gRPC holds both the compressed and the decompressed message to it, and answers
                # RESOURCE_EXHAUSTED by itself.
                ("grpc.max_receive_message_length", limits.max_body_bytes),
                # Else a second bridge on the same port would silently take half of the requests.
                ("grpc.so_reuseport", 0),
            ],
        )
        self._server.add_generic_rpc_handlers([self._handlers(signal) for signal in SERVICES])
        try:
            bound_port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as exc:
            raise ConfigError(
                f"grpc: cannot listen on {host}:{port}.",
                hint=f"Stop what uses port {port}, or give another one with --grpc HOST:PORT "
                "(0 is free).",
            ) from exc
        self._address = f"{host}:{bound_port}"

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return self._address

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop listening, finish the requests in flight, then return. Idempotent.

        Nothing is accepted after it returns. A request that is being made durable is always waited
        for; one whose message has not arrived after ``grace_s`` is cut off, and its sender retries.
        """
        self._server.stop(grace_s).wait()
        self._threads.shutdown(wait=True, cancel_futures=True)

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
        # one that cannot be parsed, and INVALID_ARGUMENT is what OTLP says.
        export = grpc.unary_unary_rpc_method_handler(partial(self._export, signal))
        return grpc.method_handlers_generic_handler(SERVICES[signal], {"Export": export})

    def _export(self, signal: Signal, message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            admitted = self._intake.take(signal, message)
        except Exception as error:  # noqa: BLE001  # the edge: counted, logged, retryable
            self._abort(context, error)
        return export_response(signal, admitted).SerializeToString()

    def _abort(self, context: grpc.ServicerContext, error: Exception) -> NoReturn:
        answer, message = self._intake.answer(error, Where.GRPC)
        status = status_message(answer, message, retry_after_s=self._limits.retry_after_s)
        context.set_trailing_metadata(((_STATUS_DETAILS, status.SerializeToString()),))
        context.abort(answer.grpc, status.message)
        raise AssertionError("abort always raises")
