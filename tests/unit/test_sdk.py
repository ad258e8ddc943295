from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_rl.sdk import exact_view
from otel_rl.signals import Signal
from otel_rl.worker.otlp.requests import Intervals, RequestPacker, pack_collected
from tests.support.otlp_sink import Measurement, measurements


def collected(reader: InMemoryMetricReader) -> list[Measurement]:
    data = reader.get_metrics_data()
    assert data is not None
    packer = RequestPacker(b"", Signal.METRICS)
    pack_collected(data, Intervals(0), packer)
    requests = packer.requests()
    return list(measurements([ExportMetricsServiceRequest.FromString(r.payload) for r in requests]))


def exact_provider() -> tuple[MeterProvider, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider(
        [reader],
        views=[exact_view()],
        exemplar_filter=AlwaysOnExemplarFilter(),
        shutdown_on_exit=False,
    )
    return provider, reader


def test_a_stock_provider_keeps_every_measurement_in_order() -> None:
    provider, reader = exact_provider()
    gauge = provider.get_meter("m").create_gauge("loss")
    for step in range(500):
        gauge.set(step / 2, {"rl.loop.iteration": step, "kind": "a"})
    found = collected(reader)
    assert [(m.value, m.step) for m in found] == [(step / 2, step) for step in range(500)]
    assert {tuple(m.attributes.items()) for m in found} == {(("kind", "a"),)}


def test_each_export_holds_its_own_measurements() -> None:
    provider, reader = exact_provider()
    gauge = provider.get_meter("m").create_gauge("loss")
    gauge.set(1.0)
    assert [m.value for m in collected(reader)] == [1.0]
    gauge.set(2.0)
    assert [m.value for m in collected(reader)] == [2.0]


def test_other_instruments_are_left_alone() -> None:
    provider, reader = exact_provider()
    provider.get_meter("m").create_counter("c").add(1)
    data = reader.get_metrics_data()
    assert data is not None
    assert data.resource_metrics[0].scope_metrics[0].metrics[0].name == "c"
