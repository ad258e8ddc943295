"""The encoders at the edges: large messages, large integers, what is dropped, what says nothing."""

from itertools import pairwise

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext

from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.exemplars import Framing, pack
from otel_rl.worker.otlp.gauges import Encoder, Stream
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker, encode_resource
from otel_rl.worker.otlp.sdk_metrics import encode_sdk

SCOPE = InstrumentationScope("s")


@pytest.mark.parametrize("length", [127, 128, 16_383, 16_384, 20_000, 1 << 21])
def test_text_of_any_length_is_read_back(length: int) -> None:
    encoded = KeyValue.FromString(protobuf.key_value("k", "x" * length))
    assert encoded.value.string_value == "x" * length


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_an_integer_beyond_64_bits_is_sent_as_text(value: int) -> None:
    assert KeyValue.FromString(protobuf.key_value("k", value)).value.string_value == str(value)


def test_a_heartbeat_is_a_point_without_a_value() -> None:
    provider = BufferedMeterProvider(Resource({"service.name": "s"}), Guard(Drops()))
    request = provider.heartbeat()
    parsed = ExportMetricsServiceRequest.FromString(request.payload)
    (point,) = parsed.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert (point.flags, point.WhichOneof("value"), request.measurements) == (1, None, 0)
    assert point.time_unix_nano > 0


@pytest.mark.parametrize("length", [10, 3_000])
def test_a_request_with_a_large_resource_is_no_larger_than_allowed(length: int) -> None:
    resource = encode_resource(Resource({"text": "x" * length}))
    packer = RequestPacker(resource, Signal.METRICS, 4_000)
    encoder = Encoder(Intervals(0))
    framing = Framing()
    for n in range(300):
        exemplars = encoder.plain.setdefault(Stream(SCOPE, f"m{n}"), [])
        exemplars.append(pack(framing.before, n, float(n)))
    assert encoder.pack(packer) == 0
    requests = packer.requests()
    assert sum(request.measurements for request in requests) == 300
    assert max(len(request.payload) for request in requests) <= 4_000


def test_no_request_of_the_sdks_instruments_is_larger_than_allowed() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], Resource({"service.name": "s"}))
    counter = provider.get_meter("m").create_counter("c")
    for n in range(300):
        counter.add(1, {"n": n, "text": "x" * (n % 40)})
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    resource = encode_resource(Resource({"service.name": "s"}))
    packer = RequestPacker(resource, Signal.METRICS, 2_000)
    assert encode_sdk(data, Intervals(0), packer) == 0
    requests = packer.requests()
    assert max(len(request.payload) for request in requests) <= 2_000
    assert len(requests) > 10


def test_a_measurement_outside_of_spans_is_in_none_though_the_one_before_was() -> None:
    framing = Framing()
    span = NonRecordingSpan(SpanContext(1, 2, is_remote=False))
    framing(1, trace.set_span_in_context(span, Context()))
    inside = framing.after
    framing(1, None)
    assert (len(inside), framing.after) == (28, b"")


def test_a_series_that_was_forgotten_begins_after_all_that_were() -> None:
    intervals = Intervals(0, max_series=2)
    for n, at_ns in enumerate((10, 20, 30, 40)):
        intervals.following((b"m", b"%d" % n), at_ns)
    assert intervals.following((b"m", b"0"), 50) == (30, 50)


def test_the_intervals_of_a_series_that_comes_and_goes_never_overlap() -> None:
    intervals = Intervals(0, max_series=2)
    own = []
    for at_ns in range(10, 200, 10):
        if at_ns % 30 == 0:
            own.append(intervals.following((b"own", b""), at_ns))
        else:
            intervals.following((b"other", b"%d" % at_ns), at_ns)
    assert all(end <= start for (_, end), (start, _) in pairwise(own))
