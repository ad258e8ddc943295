"""Doors: how tests of promises reach a room of the package, whatever is inside of it.

A test of a promise (``tests/property``, ``contract``, ``process``, ``simulation``, ...) imports no
module of a room. When a room is rebuilt, this file changes, and the bodies of the tests do not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import time_ns

from opentelemetry.context import attach, detach, get_current
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import Attributes

from otel_rl.bridge.otlp.decode import decode_parts
from otel_rl.records import Batch, Decoded, Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.otlp.requests import Request
from otel_rl.worker.step_context import StepScope, in_step

__all__ = ["Program", "Request", "decode", "stock_requests"]


class _Block:
    """Stands for the object that ``with otel_rl.step(...)`` holds."""


class Program:
    """Program to wire: calls of the OpenTelemetry API in, OTLP requests out.

    The provider of a worker, without a process, a thread or a socket.

    Args:
        resource: Of the worker.
    """

    def __init__(self, resource: Resource) -> None:
        self.drops = Drops()
        self._provider = BufferedMeterProvider(resource, Guard(self.drops))

    @property
    def meters(self) -> MeterProvider:
        """The provider that the program gets."""
        return self._provider

    def get_meter(self, name: str, attributes: Attributes = None) -> Meter:
        """See ``MeterProvider.get_meter``."""
        return self._provider.get_meter(name, attributes=attributes)

    def export(self, *, with_heartbeat: bool = False) -> Sequence[Request]:
        """Return what was recorded since the last call, as the exporter thread sends it."""
        return self._provider.collect(with_heartbeat=with_heartbeat)

    def heartbeat(self) -> Request:
        """Return the request of a worker that has nothing else to send."""
        return self._provider.heartbeat()

    @contextmanager
    def step(self, number: int, clock: Callable[[], int] = time_ns) -> Iterator[None]:
        """What ``otel_rl.step`` does, by any clock."""
        scope = StepScope(number)
        token = attach(in_step(get_current(), scope))
        block = _Block()
        end = self._provider.steps.open(scope, clock(), block)
        try:
            yield
        finally:
            scope.ended_ns = clock()
            detach(token)
            end(scope.ended_ns)


def stock_requests(data: MetricsData | None) -> Sequence[Request]:
    """Return what the exporter of the stock SDK sends of a collection."""
    if data is None:
        return []
    return [Request(encode_metrics(data).SerializeToString(), measurements=0)]


def decode(batch: Batch) -> Decoded:
    """Return all of a stored batch as the row stage gets it, in one part."""
    *_, found = decode_parts(batch, most=1 << 62)
    return replace(found, points=[*found.points]) if batch.signal is Signal.METRICS else found
