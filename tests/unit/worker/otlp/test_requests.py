"""Requests of any items keep the limit, the order and the scopes; their points tile time."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import GaugeEncoder, Measured, Stream
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.otlp.requests import (
    Intervals,
    Request,
    RequestPacker,
    encode_resource,
    encode_scope,
    pack_collected,
)

RESOURCE = encode_resource(Resource({"service.name": "s"}, "https://r/1"))
SCOPES = [encode_scope(InstrumentationScope(name, "1", f"https://{name}/1")).head for name in "ab"]


def item(name: str) -> bytes:
    """A span with a name."""
    encoded: bytes = Span(name=name).SerializeToString()
    return encoded


def names(requests: list[Request]) -> list[dict[str, list[str]]]:
    """The names in each request by scope; each request has the resource."""
    found = []
    for request in requests:
        (part,) = ExportTraceServiceRequest.FromString(request.payload).resource_spans
        assert part.schema_url == "https://r/1"
        assert [pair.key for pair in part.resource.attributes] == ["service.name"]
        for scope in part.scope_spans:
            assert (scope.scope.version, scope.schema_url) == ("1", f"https://{scope.scope.name}/1")
        scopes = [scope.scope.name for scope in part.scope_spans]
        assert len(scopes) == len(set(scopes))
        found.append({s.scope.name: [span.name for span in s.spans] for s in part.scope_spans})
    return found


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300)), max_size=40))
def test_requests_keep_the_order_the_scopes_and_the_limit(sizes: list[tuple[int, int]]) -> None:
    packer = RequestPacker(RESOURCE, Signal.TRACES, 300)
    sent: dict[str, list[str]] = {"a": [], "b": []}
    for number, (scope, size) in enumerate(sizes):
        name = f"{number}" + "x" * size
        if packer.add(SCOPES[scope], item(name)):
            sent["ab"[scope]].append(name)
        else:
            assert size > 150
    requests = packer.requests()
    assert all(len(request.payload) <= 300 for request in requests)
    arrived = names(requests)
    for name_of_scope, own in sent.items():
        assert [name for request in arrived for name in request.get(name_of_scope, [])] == own
    counts = [sum(map(len, request.values())) for request in arrived]
    assert [request.measurements for request in requests] == counts
    assert 0 not in counts


def test_an_item_that_just_fits_is_added_and_one_more_byte_is_not() -> None:
    sizes = []
    for size in range(100, 300):
        packer = RequestPacker(RESOURCE, Signal.TRACES, 300)
        if packer.add(SCOPES[0], item("x" * size)):
            (request,) = packer.requests()
            sizes.append(len(request.payload))
        else:
            assert not packer.has_items
    assert 300 - 12 <= max(sizes) <= 300  # the bound allows for heads of any length


def test_a_new_request_begins_only_where_the_last_one_is_full() -> None:
    packer = RequestPacker(RESOURCE, Signal.TRACES, 400)
    for number in range(100):
        assert packer.add(SCOPES[number % 2], item(f"{number:06}"))
    *full, _ = packer.requests()
    assert min(len(request.payload) for request in full) > 400 - 30


@pytest.mark.parametrize("signal", list(Signal))
def test_nothing_is_no_request_and_a_request_has_its_signal(signal: Signal) -> None:
    packer = RequestPacker(RESOURCE, signal)
    assert not packer.has_items
    assert packer.requests() == []
    packer = RequestPacker(RESOURCE, signal)
    packer.add(SCOPES[0], item("x"), 7)
    (request,) = packer.requests()
    assert (request.signal, request.measurements) == (signal, 7)


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
    encoder = GaugeEncoder(Guard(Drops()), Intervals(0))
    streams = [Stream(InstrumentationScope("s"), f"m{n}") for n in range(300)]
    encoder.pack([(stream, 1.0, None, 1, Context()) for stream in streams], packer)
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
    assert pack_collected(data, Intervals(0), packer) == 0
    requests = packer.requests()
    assert max(len(request.payload) for request in requests) <= 2_000
    assert len(requests) > 10


def test_a_series_that_was_forgotten_begins_after_all_that_were() -> None:
    intervals = Intervals(0, max_series=2)
    for n, at_ns in enumerate((10, 20, 30, 40)):
        intervals.following((b"", "m", b"%d" % n), at_ns)
    assert intervals.following((b"", "m", b"0"), 50) == (30, 50)


def test_the_intervals_of_a_series_that_comes_and_goes_never_overlap() -> None:
    intervals = Intervals(0, max_series=2)
    own = []
    for at_ns in range(10, 200, 10):
        if at_ns % 30 == 0:
            own.append(intervals.following((b"", "own", b""), at_ns))
        else:
            intervals.following((b"", "other", b"%d" % at_ns), at_ns)
    assert all(end <= start for (_, end), (start, _) in pairwise(own))


BEGIN_NS = 1_000
_SCOPES = [InstrumentationScope("a"), InstrumentationScope("a", attributes={"rl.reduce": "max"})]
# Two of one identity: the unit is no part of it.
STREAMS = [Stream(_SCOPES[0], "m", "s"), Stream(_SCOPES[0], "m", "By"), Stream(_SCOPES[1], "m")]

# A clock that runs, stands still, and is set back and forth.
CLOCK = st.integers(0, 2_000)
MEASURED = st.tuples(st.sampled_from(STREAMS), st.sampled_from([None, {"k": 1}, {"k": 2}]), CLOCK)
EXPORTS = st.lists(st.lists(MEASURED, max_size=12), max_size=12)

Interval = tuple[int, int]
Exports = list[list[tuple[Stream, dict[str, int] | None, int]]]
Found = dict[tuple[bytes, ...], list[Interval]]


def points_of(payloads: list[bytes]) -> Found:
    """The intervals of each series, in the order of the wire."""
    found: Found = defaultdict(list)
    for payload in payloads:
        (resource,) = ExportMetricsServiceRequest.FromString(payload).resource_metrics
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    series = (
                        scope.scope.SerializeToString(),
                        metric.name.encode(),
                        *(pair.SerializeToString() for pair in point.attributes),
                    )
                    found[series].append((point.start_time_unix_nano, point.time_unix_nano))
    return found


def exported(
    exports: Exports,
    intervals: Intervals,
    max_exemplars: int = 3,
    max_request_bytes: int = 1 << 20,
) -> Found:
    encoder = GaugeEncoder(Guard(Drops()), intervals, max_exemplars)
    payloads = []
    for measured in exports:
        entries: list[Measured] = [
            (stream, 1.0, {**attributes} if attributes else None, time_ns, Context())
            for stream, attributes, time_ns in measured
        ]
        packer = RequestPacker(RESOURCE, Signal.METRICS, max_request_bytes)
        encoder.pack(entries, packer)
        payloads += [request.payload for request in packer.requests()]
    return points_of(payloads)


@given(EXPORTS, st.integers(1, 4), st.integers(250, 1_000))
def test_the_points_of_a_series_tile_time_whatever_the_clock_and_the_split(
    exports: Exports,
    max_exemplars: int,
    max_request_bytes: int,
) -> None:
    found = exported(exports, Intervals(BEGIN_NS), max_exemplars, max_request_bytes)
    for series in found.values():
        in_time = sorted(series)  # two streams of one identity may stand in either order
        assert in_time[0][0] == BEGIN_NS
        assert all(start < end for start, end in in_time)
        assert all(before[1] == after[0] for before, after in pairwise(in_time))


@given(EXPORTS, st.integers(1, 4))
def test_forgotten_series_leave_gaps_but_never_overlap(exports: Exports, max_series: int) -> None:
    found = exported(exports, Intervals(BEGIN_NS, max_series), max_exemplars=1)
    for series in found.values():
        in_time = sorted(series)
        assert in_time[0][0] >= BEGIN_NS
        assert all(start < end for start, end in in_time)
        assert all(before[1] <= after[0] for before, after in pairwise(in_time))


def test_a_point_ends_at_its_last_measurement() -> None:
    exports: Exports = [[(STREAMS[0], None, 1_500), (STREAMS[0], None, 1_700)]]
    found = exported(exports, Intervals(BEGIN_NS))
    assert list(found.values()) == [[(BEGIN_NS, 1_700)]]


def test_a_clock_set_back_moves_a_point_by_one_nanosecond() -> None:
    exports: Exports = [[(STREAMS[0], None, time_ns)] for time_ns in (5_000, 2_000, 9_000)]
    found = exported(exports, Intervals(BEGIN_NS))
    assert list(found.values()) == [[(1_000, 5_000), (5_000, 5_001), (5_001, 9_000)]]


def test_a_series_in_use_is_not_forgotten_for_the_sake_of_new_ones() -> None:
    def label(n: int) -> tuple[Stream, dict[str, int] | None, int]:
        return STREAMS[0], {"id": n}, 2_000 + n

    exports = [[(STREAMS[2], None, 2_000 + n), label(n)] for n in range(50)]
    found = exported(exports, Intervals(BEGIN_NS, max_series=4))
    regular = max(found.values(), key=len)
    assert len(regular) == 50
    assert all(before[1] == after[0] for before, after in pairwise(regular))
