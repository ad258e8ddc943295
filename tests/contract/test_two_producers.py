"""ADR 0000: the same calls through our provider and through a stock SDK are the same on the wire.

Equal: resource, scopes, metrics, series, the order of measurements, values, steps and span ids.
Free: times, and the order in which equal parts stand.
"""

from collections.abc import Callable
from itertools import count

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.metrics import MeterProvider
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Tracer

from otel_rl.sdk import exact_view
from tests.support.doors import Program, stock_requests

RESOURCE = Resource({"service.instance.id": "i", "process.pid": 7}, "https://schema/1")
Calls = Callable[[MeterProvider, Tracer], None]


def plain_steps(provider: MeterProvider, _tracer: Tracer) -> None:
    gauge = provider.get_meter("m", "1.2", "https://schema/2").create_gauge("loss", "1", "the loss")
    for step in range(100):
        gauge.set(step / 3, {"rl.loop.iteration": step})


def no_step(provider: MeterProvider, _tracer: Tracer) -> None:
    gauge = provider.get_meter("m").create_gauge("depth")
    gauge.set(3)
    gauge.set(-4)


def several_series(provider: MeterProvider, _tracer: Tracer) -> None:
    gauge = provider.get_meter("m").create_gauge("latency", "s")
    for step in range(30):
        gauge.set(float(step), {"rl.loop.iteration": step, "replica": step % 3, "kind": "a"})
        gauge.set(step, {"ratio": 0.5, "flag": True, "sizes": (1, 2)})


def a_reduction(provider: MeterProvider, _tracer: Tracer) -> None:
    meter = provider.get_meter("m", attributes={"rl.reduce": "max"})
    meter.create_gauge("grad").set(1.5, {"rl.loop.iteration": 4})


def inside_spans(provider: MeterProvider, tracer: Tracer) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    gauge.set(0.0)
    with tracer.start_as_current_span("a"):
        gauge.set(1.0, {"rl.loop.iteration": 1})
        with tracer.start_as_current_span("b"):
            gauge.set(2.0, {"rl.loop.iteration": 2})
    gauge.set(3.0)


def several_meters(provider: MeterProvider, _tracer: Tracer) -> None:
    for name in ("m1", "m2"):
        for metric in ("a", "b"):
            provider.get_meter(name).create_gauge(metric).set(1, {"rl.loop.iteration": 0})


def ours(calls: Calls, tracer: Tracer) -> object:
    program = Program(RESOURCE)
    calls(program.meters, tracer)
    return normal([request.payload for request in program.export()])


def stock(calls: Calls, tracer: Tracer) -> object:
    reader = InMemoryMetricReader()
    provider = SdkMeterProvider(
        [reader],
        RESOURCE,
        views=[exact_view()],
        exemplar_filter=AlwaysOnExemplarFilter(),
        shutdown_on_exit=False,
    )
    calls(provider, tracer)
    return normal([request.payload for request in stock_requests(reader.get_metrics_data())])


def normal(payloads: list[bytes]) -> object:
    """The request without times, and with the parts whose order is free in a fixed one."""
    (payload,) = payloads
    return _normal(MessageToDict(ExportMetricsServiceRequest.FromString(payload)))


def _normal(part: object, name: str = "") -> object:
    if isinstance(part, dict):
        return {
            key: _normal(value, key) for key, value in part.items() if not key.endswith("UnixNano")
        }
    if isinstance(part, list):
        items = [_normal(item) for item in part]
        # The order of measurements within a series is theirs and must be kept.
        return items if name == "exemplars" else sorted(items, key=repr)
    return part


class CountingIds(IdGenerator):
    """The same span ids in each of the two runs."""

    def __init__(self) -> None:
        self._next = count(1)

    def generate_span_id(self) -> int:
        return next(self._next)

    def generate_trace_id(self) -> int:
        return next(self._next)


@pytest.mark.parametrize(
    "calls",
    [plain_steps, no_step, several_series, a_reduction, inside_spans, several_meters],
)
def test_both_producers_put_the_same_on_the_wire(calls: Calls) -> None:
    recorded = TracerProvider(shutdown_on_exit=False, id_generator=CountingIds()).get_tracer("t")
    again = TracerProvider(shutdown_on_exit=False, id_generator=CountingIds()).get_tracer("t")
    assert ours(calls, recorded) == stock(calls, again)
