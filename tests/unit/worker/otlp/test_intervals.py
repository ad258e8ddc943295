"""Points tile time per series, so that a repeated point is known by its own times alone."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.buffer import Measured
from otel_rl.worker.metrics.expander import Expander
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker, encode_resource

BEGIN_NS = 1_000
RESOURCE = encode_resource(Resource({"service.name": "s"}))
SCOPES = [InstrumentationScope("a"), InstrumentationScope("a", attributes={"rl.reduce": "max"})]
# Two of one identity: the unit is no part of it.
STREAMS = [Stream(SCOPES[0], "m", "s"), Stream(SCOPES[0], "m", "By"), Stream(SCOPES[1], "m")]

# A clock that runs, stands still, and is set back and forth.
CLOCK = st.integers(0, 2_000)
MEASURED = st.tuples(st.sampled_from(STREAMS), st.sampled_from([None, {"k": 1}, {"k": 2}]), CLOCK)
EXPORTS = st.lists(st.lists(MEASURED, max_size=12), max_size=12)

Interval = tuple[int, int]
Exports = list[list[tuple[Stream, dict[str, int] | None, int]]]
Found = dict[tuple[bytes, ...], list[Interval]]


def points(payloads: list[bytes]) -> Found:
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
    expander = Expander(Guard(Drops()), intervals, max_exemplars)
    payloads = []
    for measured in exports:
        entries: list[Measured] = [
            (stream, 1.0, {**attributes} if attributes else None, time_ns, Context())
            for stream, attributes, time_ns in measured
        ]
        packer = RequestPacker(RESOURCE, Signal.METRICS, max_request_bytes)
        expander.pack(entries, packer)
        payloads += [request.payload for request in packer.requests()]
    return points(payloads)


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
