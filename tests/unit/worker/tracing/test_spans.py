"""Spans on their way to an endpoint that is away, refuses them, or is not wanted any more."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.export.sender import Sender, Source, open_transports
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import Request
from otel_rl.worker.settings import read_settings
from otel_rl.worker.tracing import CountedSpans, made_tracer_provider, span_requests
from tests.support.otlp_sink import OK, Sink, serve

LONG_S = 3600.0
PATIENCE_S = 90.0
RESOURCE = Resource({"service.name": "r"})
AWAY = (503, {"Retry-After": "0"}, b"")


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


class Rig:
    """A tracer, the spans behind it, and who sends them."""

    def __init__(
        self,
        sink: Sink,
        capacity: int = 100,
        interval_s: float = LONG_S,
        spans: CountedSpans | None = None,
    ) -> None:
        self.spans = spans or CountedSpans(RESOURCE, capacity)
        traces = read_settings({}, endpoint=sink.url).traces
        self.sender = Sender(
            Source(
                self.spans.collect,
                lambda: (0, self.spans.abandon()),
                lambda: self.spans.is_crowded,
            ),
            lambda: open_transports([traces]),
            interval_s,
            Guard(Drops()),
            spans_guard=self.spans.guard,
        )
        self.spans.open(self.sender.flush_spans)
        self.sender.start()
        self.tracer = made_tracer_provider(RESOURCE, self.spans, None).get_tracer("t")

    def end(self, *names: object) -> None:
        for name in names:
            self.tracer.start_span(str(name)).end()

    def flush(self) -> bool:
        return self.spans.force_flush(int(PATIENCE_S * 1000))

    def close(self, timeout_s: float = 0.0) -> None:
        self.sender.shutdown(timeout_s)
        self.spans.close(self.sender.flush_spans)

    @property
    def lost(self) -> dict[DropReason, int]:
        return dict(self.spans.guard.drops.counts())


def arrived(sink: Sink) -> Counter[str]:
    return Counter(
        span.name
        for request in sink.traces
        for part in request.resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    )


def test_they_wait_for_an_endpoint_that_is_away_and_arrive_once(sink: Sink) -> None:
    rig = Rig(sink, interval_s=0.01)
    sink.answer = lambda _number: AWAY
    rig.end(*range(50))
    sink.wait(lambda got: got.requests >= 2, PATIENCE_S)
    sink.answer = lambda _number: OK
    rig.end(*range(50, 60))
    assert rig.flush()
    assert arrived(sink) == Counter(map(str, range(60)))
    assert not rig.lost
    rig.close()


def test_a_crowded_queue_is_stored_before_the_interval_is_over(sink: Sink) -> None:
    rig = Rig(sink, capacity=8)
    rig.end(*range(8))
    sink.wait(lambda got: arrived(got) == Counter(map(str, range(8))), PATIENCE_S)
    rig.close()


def test_what_finds_no_room_is_counted_however_many_it_is(sink: Sink) -> None:
    spans = CountedSpans(RESOURCE, 3)
    rig = Rig(sink, spans=spans)
    assert rig.flush()  # the first look is over, and the next one is a second away
    rig.end(*range(23))
    assert rig.flush()
    assert sum(arrived(sink).values()) + rig.lost[DropReason.BUFFER_FULL] == 23
    assert rig.lost.keys() == {DropReason.BUFFER_FULL}
    before = rig.lost
    rig.end("later")
    assert rig.flush()
    assert rig.lost == before
    rig.close()


def test_an_endpoint_without_traces_is_named_once_and_each_loss_counted(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(sink)
    sink.answer = lambda _number: (404, {}, b"")
    for number in range(3):
        rig.end(number)
        assert rig.flush()
    assert rig.lost == {DropReason.REJECTED: 3}
    (said,) = [record.getMessage() for record in caplog.records]
    assert "The endpoint accepts no spans: HTTP 404" in said
    assert "OTEL_TRACES_EXPORTER=none" in said
    rig.close()


def test_the_end_counts_what_was_not_sent_and_is_silent_if_there_is_nothing(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(sink)
    rig.end("sent")
    assert rig.flush()
    rig.close(PATIENCE_S)
    assert not rig.lost
    assert not caplog.records
    again = Rig(sink)
    again.end(1, 2)
    again.close()
    assert again.lost == {DropReason.SHUTDOWN: 2}
    assert "lost are 2 spans" in caplog.text


def test_a_later_sender_takes_over_what_ends_from_then_on(sink: Sink) -> None:
    rig = Rig(sink)
    later = Rig(sink, spans=rig.spans)
    rig.spans.close(rig.sender.flush_spans)
    rig.end("later")
    assert rig.flush()
    later.close(PATIENCE_S)
    rig.end("nobody's")
    assert rig.spans.abandon() == 0
    assert arrived(sink) == Counter(["later"])
    assert rig.lost == {DropReason.NOT_STARTED: 1}
    rig.sender.shutdown(0.0)


def read(requests: list[Request]) -> list[str]:
    return [
        span.name
        for request in requests
        for part in ExportTraceServiceRequest.FromString(request.payload).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def ended(name: str) -> ReadableSpan:
    return ReadableSpan(
        name,
        SpanContext(1, 1, is_remote=False),
        resource=Resource({"service.name": "a"}),
        start_time=1,
        end_time=2,
        instrumentation_scope=InstrumentationScope("a"),
    )


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30))
def test_requests_keep_the_order_and_the_bound(sizes: list[int]) -> None:
    spans = [ended(f"{number:04}" + "x" * size) for number, size in enumerate(sizes)]
    guard = Guard(Drops())
    requests = list(span_requests(b"", spans, guard, max_request_bytes=300))
    assert all(len(request.payload) <= 300 for request in requests)
    names = read(requests)
    assert names == sorted(names)
    assert sum(request.measurements for request in requests) == len(names)
    assert len(names) + guard.drops.counts().get(DropReason.TOO_LARGE, 0) == len(sizes)
    assert {span.name for span in spans if len(span.name) <= 100} <= set(names)


def test_a_span_that_cannot_be_encoded_costs_no_other_and_is_counted() -> None:
    guard = Guard(Drops())
    spans = [ended("a"), ended("no UTF-8: \ud800"), ended("c"), ended("d")]
    requests = list(span_requests(b"", spans, guard))
    assert read(requests) == ["a", "c", "d"]
    assert guard.drops.counts() == {DropReason.INTERNAL: 1}
