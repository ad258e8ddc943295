"""Measurements of gauges: what goes in comes out, whatever goes in, and nothing waits."""

import gc
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from threading import Thread
from weakref import ref

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.util.types import AnyValue

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import Buffer, GaugeEncoder, Logged, Measured, Stream
from otel_rl.worker.otlp.requests import Intervals, Request, RequestPacker, encode_resource
from otel_rl.worker.tensors import Deferred
from tests.support.otlp_sink import measurements, pairs
from tests.support.slow import examples

RESOURCE = Resource({"service.name": "s", "process.pid": 1, "flags": (True, False)}, "https://r/1")
SCOPE = InstrumentationScope("meter", "1.0", "https://s/1", {"rl.reduce": "max"})

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Steps follow each other; here also across the borders of a varint's digits.
NEIGHBOURS = st.one_of([st.integers(n - 3, n + 2) for n in (0, 128, 256, 1 << 14, (1 << 63) - 3)])
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ATTRIBUTE = st.one_of(TEXT, st.booleans(), INT64, st.floats(allow_nan=False))
MEASUREMENT = st.tuples(
    st.integers(0, 2),
    st.one_of(st.floats(), INT64),
    st.one_of(st.none(), INT64, NEIGHBOURS),
    # The step has an argument of its own; as an attribute it must be a number.
    st.dictionaries(
        TEXT.filter(lambda key: key not in ("", RL_LOOP_ITERATION)), ATTRIBUTE, max_size=3
    ),
    st.integers(0, (1 << 63) - 1),
    st.one_of(
        st.none(),
        st.sampled_from([(1, 1), (2, 2)]),
        st.tuples(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1)),
    ),
)


def encode(
    entries: Sequence[Measured | Logged],
    drops: Drops | None = None,
    *,
    max_exemplars: int = 1024,
    max_request_bytes: int = 3 << 20,
) -> list[Request]:
    packer = RequestPacker(encode_resource(RESOURCE), Signal.METRICS, max_request_bytes)
    encoder = GaugeEncoder(Guard(drops or Drops()), Intervals(0), max_exemplars)
    encoder.pack(entries, packer)
    return packer.requests()


Made = tuple[int, float, int | None, dict[str, AnyValue], int, tuple[int, int] | None]


def parse(requests: list[Request]) -> list[ExportMetricsServiceRequest]:
    return [ExportMetricsServiceRequest.FromString(request.payload) for request in requests]


def entry(
    stream: Stream,
    value: float,
    step: int | None = None,
    attributes: dict[str, AnyValue] | None = None,
    time_ns: int = 1,
    ids: tuple[int, int] | None = None,
) -> Measured:
    """One call of ``gauge.set``, as the buffer holds it."""
    given = {**(attributes or {})} | ({} if step is None else {RL_LOOP_ITERATION: step})
    return stream, value, given or None, time_ns, in_span(ids)


@cache  # what is recorded in one span has one context
def in_span(ids: tuple[int, int] | None) -> Context:
    if ids is None:
        return Context()
    span = NonRecordingSpan(SpanContext(ids[0], ids[1], is_remote=False))
    return trace.set_span_in_context(span, Context())


def key(*facts: object) -> str:
    """Comparable facts: NaN equals itself, 1 differs from True and from 1.0."""
    return repr(facts)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(MEASUREMENT, max_size=30), st.integers(1, 5))
def test_every_measurement_is_read_back_as_it_was_made(
    made: list[Made],
    max_exemplars: int,
) -> None:
    streams = [Stream(SCOPE, f"metric.{n}", "1", "about") for n in range(3)]
    entries = [entry(streams[made_by[0]], *made_by[1:]) for made_by in made]
    expected = sorted(
        key(
            f"metric.{which}",
            value,
            step,
            sorted(attributes.items()),
            time_ns,
            f"{ids[0]:032x}" if ids else "",
            f"{ids[1]:016x}" if ids else "",
        )
        for which, value, step, attributes, time_ns, ids in made
    )
    assert expected == sorted(
        key(m.name, m.value, m.step, sorted(m.attributes.items()), m.time_ns, m.trace_id, m.span_id)
        for m in measurements(parse(encode(entries, max_exemplars=max_exemplars)))
    )


# Few names and orders, so that most rows are like the one before.
ROWS = st.lists(
    st.tuples(
        st.sampled_from([("a", "b"), ("b", "a"), ("a",), ("a", "b", "c"), ()]),
        st.one_of(st.floats(), st.floats(), st.floats(), st.integers(-9, 9)),
        st.one_of(st.none(), INT64, NEIGHBOURS, NEIGHBOURS),
        st.sampled_from([None, None, None, "max"]),
        st.sampled_from([None, None, (1, 1), (2, 2)]),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(ROWS, st.integers(1, 1024))
def test_every_row_is_read_back_as_it_was_logged_and_in_order(
    rows: list[tuple[tuple[str, ...], float, int | None, str | None, tuple[int, int] | None]],
    max_exemplars: int,
) -> None:
    entries = [
        Logged(dict.fromkeys(names, value), step, reduce, time_ns, in_span(ids))
        for time_ns, (names, value, step, reduce, ids) in enumerate(rows)
    ]
    found: dict[tuple[str, object], list[str]] = {}
    for m in measurements(parse(encode(entries, max_exemplars=max_exemplars))):
        facts = key(m.value, m.step, m.time_ns, m.trace_id, m.span_id)
        found.setdefault((m.name, m.scope.get("rl.reduce")), []).append(facts)
    expected: dict[tuple[str, object], list[str]] = {}
    for time_ns, (names, value, step, reduce, ids) in enumerate(rows):
        trace_id, span_id = (f"{ids[0]:032x}", f"{ids[1]:016x}") if ids else ("", "")
        for name in names:
            facts = key(value, step, time_ns, trace_id, span_id)
            expected.setdefault((name, reduce), []).append(facts)
    assert found == expected


def test_many_rows_of_one_shape_are_all_encoded() -> None:
    entries = [Logged({"a": n / 2, "b": n / 4}, n, None, n, Context()) for n in range(3_000)]
    found = [(m.name, m.step, m.value) for m in measurements(parse(encode(entries)))]
    expected = [("a", n, n / 2) for n in range(3_000)] + [("b", n, n / 4) for n in range(3_000)]
    assert sorted(found) == expected


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(MEASUREMENT, min_size=1, max_size=30), st.integers(1, 5))
def test_a_point_repeats_its_last_measurement_and_keeps_to_its_limit(
    made: list[Made],
    max_exemplars: int,
) -> None:
    stream = Stream(SCOPE, "m")
    entries = [entry(stream, *made_by[1:]) for made_by in made]
    for request in parse(encode(entries, max_exemplars=max_exemplars)):
        for point in request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points:
            last = point.exemplars[-1]
            assert 1 <= len(point.exemplars) <= max_exemplars
            assert key(point.as_double, point.as_int) == key(last.as_double, last.as_int)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 200), st.integers(600, 4000))
def test_no_request_is_larger_than_allowed_and_none_is_lost(count: int, max_bytes: int) -> None:
    streams = [Stream(SCOPE, f"m{n}", "s", "description") for n in range(7)]
    entries = [
        entry(streams[step % 7], float(step), step, {"k": step % 3}, step) for step in range(count)
    ]
    requests = encode(entries, max_request_bytes=max_bytes, max_exemplars=4)
    assert all(len(request.payload) <= max_bytes for request in requests)
    assert sum(request.measurements for request in requests) == count
    assert sorted(m.value for m in measurements(parse(requests))) == list(range(count))


def test_a_point_that_no_request_can_hold_is_counted_and_the_others_are_sent() -> None:
    stream, drops = Stream(SCOPE, "m"), Drops()
    entries = [entry(stream, 1.0, 1, {"text": "x" * 3000}), entry(stream, 2.0, 2, None, 2)]
    requests = encode(entries, drops, max_request_bytes=2000)
    assert [m.value for m in measurements(parse(requests))] == [2.0]
    assert drops.counts() == {DropReason.TOO_LARGE: 1}


def test_resource_and_scope_arrive_whole() -> None:
    (request,) = parse(encode([entry(Stream(SCOPE, "m", "By", "what it is"), 1)]))
    resource = request.resource_metrics[0]
    assert pairs(resource.resource.attributes) == {
        "service.name": "s",
        "process.pid": 1,
        "flags": [True, False],
    }
    assert resource.schema_url == "https://r/1"
    scope = resource.scope_metrics[0]
    assert (scope.scope.name, scope.scope.version, scope.schema_url) == (
        "meter",
        "1.0",
        "https://s/1",
    )
    assert pairs(scope.scope.attributes) == {"rl.reduce": "max"}
    metric = scope.metrics[0]
    assert (metric.name, metric.unit, metric.description) == ("m", "By", "what it is")


def test_attributes_that_python_calls_equal_are_different_series() -> None:
    stream = Stream(SCOPE, "m")
    sets: list[dict[str, AnyValue]] = [
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": 1, "b": 1.0},
        {"a": 1.0, "b": 1},
        {"a": (1,)},
        {"a": (True,)},
    ]
    (request,) = parse(encode([entry(stream, 0.5, None, found) for found in sets * 2]))
    points = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert [len(point.exemplars) for point in points] == [2] * len(sets)


def test_the_order_of_attributes_makes_no_new_series() -> None:
    stream = Stream(SCOPE, "m")
    entries = [
        entry(stream, 1.0, None, {"a": 1, "b": 2}, 1),
        entry(stream, 2.0, None, {"b": 2, "a": 1}, 2),
    ]
    (request,) = parse(encode(entries))
    assert len(request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points) == 1


def test_measurements_of_a_series_stay_in_order() -> None:
    stream = Stream(SCOPE, "m")
    entries = [entry(stream, math.sqrt(step), step, None, step) for step in range(3000)]
    steps = [m.step for m in measurements(parse(encode(entries)))]
    assert all((a or 0) < (b or 0) for a, b in pairwise(steps))
    assert len(steps) == 3000


def test_calls_of_mlogger_between_gauges_leave_their_steps_alone() -> None:
    stream, context = Stream(SCOPE, "m"), in_span((1, 1))
    row = Logged({"a": 1.0}, 70_000, None, 3, in_span(None))
    entries: list[Measured | Logged] = [
        (stream, 0.5, 300, 1, context),
        (stream, 0.5, 301, 2, context),
        row,
    ]
    entries += [(stream, 0.5, 302, 4, context), (stream, 0.5, 303, 5, context)]
    found = [(m.name, m.step, m.span_id != "") for m in measurements(parse(encode(entries)))]
    gauges = [("m", step, True) for step in range(300, 304)]
    assert sorted(found) == [("a", 70_000, False), *gauges]


@given(st.text())
def test_a_lone_surrogate_is_no_reason_to_fail(text: str) -> None:
    requests = encode([entry(Stream(SCOPE, text or "m"), 1.0, None, {"label": text})])
    assert len(list(measurements(parse(requests)))) == 1


STREAM = Stream(InstrumentationScope("m"), "loss")


def numbered(number: int) -> Measured:
    return STREAM, number, None, number, Context()


def test_what_was_put_comes_out_in_order() -> None:
    buffer = Buffer()
    entries = [numbered(number) for number in range(3000)]
    buffer.entries.extend(entries)
    assert list(buffer.take_all()) == entries
    assert not buffer.entries


def test_what_is_put_while_it_is_emptied_stays_for_the_next_time() -> None:
    buffer = Buffer()
    buffer.entries.extend(numbered(number) for number in range(3))
    for _ in buffer.take_all():
        buffer.entries.append(numbered(9))
    assert len(buffer.entries) == 3


def test_two_threads_that_empty_it_share_what_is_there() -> None:
    buffer = Buffer()
    buffer.entries.extend(numbered(number) for number in range(50_000))
    taken: list[int] = []

    def take() -> None:
        for found in buffer.take_all():
            taken.append(found[3])  # noqa: PERF401  # an entry at a time, so that they interleave

    threads = [Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(50_000))


def test_what_is_abandoned_is_counted_in_measurements() -> None:
    buffer = Buffer()
    buffer.entries.append(numbered(1))
    buffer.entries.append(Logged({"a": 1, "b": 2}, None, None, 1, Context()))
    assert buffer.abandon() == 3


def test_what_is_abandoned_waits_for_no_device_any_more() -> None:
    buffer = Buffer()
    buffer.put_back([numbered(1)])
    buffer.abandon()
    assert buffer.unready_since_ns is None


class Pinned(Deferred):
    """A copy of a tensor."""

    is_ready = False

    def read(self) -> float:
        return 0.5


def test_a_forked_child_forgets_entries_but_frees_no_copy_of_a_tensor() -> None:
    buffer = Buffer()
    copies = [Pinned(), Pinned()]
    alive = [ref(copy) for copy in copies]
    buffer.entries.append((STREAM, copies[0], None, 1, Context()))
    buffer.entries.append(Logged({"loss": copies[1]}, None, None, 1, Context()))
    copies.clear()
    buffer.forget()
    gc.collect()
    assert not buffer.entries
    assert all(copy() is not None for copy in alive)
