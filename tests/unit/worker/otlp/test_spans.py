"""Spans as OTLP bytes: what the SDK's own encoder says of them."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceState

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.request_packer import Request
from otel_rl.worker.otlp.spans import span_requests
from tests.otlp_sink import pairs

times = st.integers(1, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0, 1, 0.0, -0.0, 1.0, False, True])  # equal in Python, not in OTLP
    | st.floats(allow_nan=False)
    | texts
)
attributes = st.dictionaries(
    texts.filter(bool), scalars | st.lists(texts, max_size=3).map(tuple), max_size=4
)
contexts = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    trace_state=st.sampled_from([TraceState(), TraceState([("ot", "rv:1;th:0"), ("x", "y")])]),
)
scopes = st.sampled_from(
    [
        InstrumentationScope("a", "1"),
        InstrumentationScope("a", "1", "https://schema", {"k": 1}),
        InstrumentationScope("b"),
    ]
)
resources = st.sampled_from(
    [Resource({"service.name": "a"}), Resource({"service.name": "b", "n": 1}, "https://schema")]
)
statuses = st.sampled_from(
    [Status(), Status(StatusCode.OK), Status(StatusCode.ERROR), Status(StatusCode.ERROR, "why")]
)
spans = st.builds(
    ReadableSpan,
    texts,
    contexts,
    st.none() | contexts,
    resources,
    attributes,
    st.lists(st.builds(Event, texts, attributes, times), max_size=2),
    st.lists(st.builds(Link, contexts, attributes), max_size=2),
    st.sampled_from(SpanKind),
    status=statuses,
    start_time=times,
    end_time=times,
    instrumentation_scope=scopes,
)


def read(requests: list[Request]) -> list[ExportTraceServiceRequest]:
    assert all(request.signal is Signal.TRACES for request in requests)
    return [ExportTraceServiceRequest.FromString(request.payload) for request in requests]


def said(
    requests: list[ExportTraceServiceRequest],
) -> list[tuple[str, str, bytes, str, bytes]]:
    """Each span with all around it, in an order of its own."""
    return sorted(
        (
            repr(sorted(pairs(part.resource.attributes).items())),
            part.schema_url,
            scope.scope.SerializeToString(deterministic=True),
            scope.schema_url,
            span.SerializeToString(deterministic=True),
        )
        for request in requests
        for part in request.resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    )


@given(st.lists(spans, max_size=6))
def test_it_is_what_the_sdk_would_have_sent(ended: list[ReadableSpan]) -> None:
    guard = Guard(Drops())
    requests = span_requests(ended, guard)
    assert not guard.drops.counts()
    assert said(read(requests)) == said([encode_spans(ended)])
    assert sum(request.measurements for request in requests) == len(ended)


@given(st.lists(st.integers(0, 400), max_size=30))
def test_requests_keep_the_order_and_the_bound(sizes: list[int]) -> None:
    resource, scope = Resource({"service.name": "a"}), InstrumentationScope("a")
    context = SpanContext(1, 1, is_remote=False)
    ended = [
        ReadableSpan(
            "x" * size,
            context,
            resource=resource,
            start_time=number,
            end_time=number,
            instrumentation_scope=scope,
        )
        for number, size in enumerate(sizes)
    ]
    guard = Guard(Drops())
    requests = span_requests(ended, guard, max_request_bytes=300)
    too_large = guard.drops.counts().get(DropReason.TOO_LARGE, 0)
    assert all(len(request.payload) <= 300 for request in requests)
    arrived = [
        span.start_time_unix_nano
        for request in read(requests)
        for part in request.resource_spans
        for scope_spans in part.scope_spans
        for span in scope_spans.spans
    ]
    assert arrived == sorted(arrived)
    assert len(arrived) + too_large == len(sizes)
    assert {n for n, size in enumerate(sizes) if size <= 100} <= set(arrived)


def test_text_that_is_no_utf8_is_sent_as_far_as_it_is() -> None:
    context = SpanContext(1, 1, is_remote=False)
    span = ReadableSpan("a\ud800b", context, attributes={"k": "\udfff"}, start_time=1, end_time=2)
    (request,) = span_requests([span], Guard(Drops()))
    ((found,),) = (
        scope.spans
        for part in ExportTraceServiceRequest.FromString(request.payload).resource_spans
        for scope in part.scope_spans
    )
    assert (found.name, pairs(found.attributes)) == ("a?b", {"k": "?"})


def test_a_span_that_cannot_be_encoded_costs_no_other() -> None:
    class Broken(str):
        __slots__ = ()

        def encode(self, *_arguments: object) -> bytes:
            raise UnicodeError("broken")

    context = SpanContext(1, 1, is_remote=False)
    broken, whole = (
        ReadableSpan("s", context, attributes={"k": value}, start_time=1, end_time=2)
        for value in (Broken("x"), "x")
    )
    guard = Guard(Drops())
    (request,) = span_requests([broken, whole], guard)
    assert request.measurements == 1
    assert guard.drops.counts() == {DropReason.INTERNAL: 1}
