"""Spans of otel_rl's own: they say what the SDK's would, whatever is done to them."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from threading import Barrier
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from otel_rl.worker.light_span import LightSpan
from otel_rl.worker.span_buffer import SpanBuffer
from otel_rl.worker.tracing import WorkerTracerProvider

OTHER = SpanContext(7, 8, is_remote=True)
BEGUN_NS, SAID_NS, ENDED_NS = 1_000, 1_500, 2_000


class Kind(StrEnum):
    ENUM = "enum"


def link_often(span: Span) -> None:
    for number in range(130):
        span.add_link(OTHER, {"n": number})


def set_often(span: Span) -> None:
    for number in range(130):
        span.set_attribute(f"k{number}", number)


DEEDS: dict[str, Callable[[Span], None]] = {
    "attribute": lambda span: span.set_attribute("k", 1),
    "a list": lambda span: span.set_attribute("k", (1, 2)),
    "no text": lambda span: span.set_attribute("", 1),
    "nothing": lambda span: span.set_attribute("k", None),
    "attributes": lambda span: span.set_attributes({"k": 0.5, "rl.phase": "other"}),
    "many attributes": set_often,
    "event": lambda span: span.add_event("e", {"x": True}, SAID_NS),
    "link": lambda span: span.add_link(OTHER, {"n": 1}),
    "a link to nothing": lambda span: span.add_link(trace.INVALID_SPAN_CONTEXT),
    "no link": lambda span: span.add_link(None),  # type: ignore[arg-type]
    "a link that lists": lambda span: span.add_link(OTHER, {"n": [1, 2]}),
    "many links": link_often,
    "name": lambda span: span.update_name("renamed"),
    "ok": lambda span: span.set_status(StatusCode.OK),
    "error": lambda span: span.set_status(Status(StatusCode.ERROR, "why")),
    "exception": lambda span: span.record_exception(ValueError("v"), timestamp=SAID_NS),
}
deeds = st.lists(st.sampled_from(sorted(DEEDS)), max_size=4)
attributes = st.dictionaries(
    st.sampled_from(["rl.phase", "rl.loop.iteration", "x", ""]),
    st.text(max_size=3) | st.integers(0, 99) | st.just(("a", "list")) | st.just(Kind.ENUM),
)


class Counting(RandomIdGenerator):
    """Ids in the order of the asking, so that two runs of the same are the same."""

    def __init__(self) -> None:
        self._last = 0

    def generate_span_id(self) -> int:
        self._last += 1
        return self._last

    def generate_trace_id(self) -> int:
        return self.generate_span_id()


class Nobody:
    """Reads no spans, so that the test can."""

    def flush(self, timeout_s: float) -> bool:
        del timeout_s
        return True


def provider() -> tuple[WorkerTracerProvider, SpanBuffer]:
    buffer = SpanBuffer(1000)
    buffer.reader = Nobody()
    made = WorkerTracerProvider(Resource({"service.name": "r"}), buffer)
    made.id_generator = Counting()
    return made, buffer


def light(made: WorkerTracerProvider) -> trace.Tracer:
    return made.get_tracer("s", "1")


def sent(buffer: SpanBuffer) -> list[SpanMessage]:
    return [
        span
        for request in buffer.collect()
        for part in ExportTraceServiceRequest.FromString(request.payload).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


LINKS: dict[str, Callable[[], Iterable[Link | None] | None]] = {
    "none": lambda: None,
    "one": lambda: [Link(OTHER, {"a": "b"})],
    "a tuple": lambda: (Link(OTHER), Link(OTHER)),
    "some missing": lambda: [None, Link(OTHER)],
    "no sequence": lambda: iter([Link(OTHER)]),
}


def what_it_says(span: Span) -> list[object]:
    """What a library may read of the SDK's span."""
    seen = cast(ReadableSpan, span)
    events = [event.name for event in seen.events]
    links = [(link.context, dict(link.attributes or {})) for link in seen.links]
    dropped = [seen.dropped_attributes, seen.dropped_events, seen.dropped_links]
    status = seen.status.status_code, seen.status.description
    return [seen.name, dict(seen.attributes or {}), events, links, dropped, status]


@given(attributes, st.sampled_from(sorted(LINKS)), deeds)
def test_it_is_what_the_sdk_makes_of_the_same_calls(
    begun_with: dict[str, AttributeValue], linked: str, done: list[str]
) -> None:
    said: list[list[object]] = []

    def play(tracer: trace.Tracer) -> None:
        around = tracer.start_span("step", Context(), attributes={"rl.loop.iteration": 1})
        context = trace.set_span_in_context(around, Context())
        links = cast(list[Link] | None, LINKS[linked]())
        span = tracer.start_span(
            "phase", context, attributes=begun_with, links=links, start_time=BEGUN_NS
        )
        assert span.is_recording()
        for deed in done:
            DEEDS[deed](span)
        said.append(what_it_says(span))
        span.end(ENDED_NS)
        said.append(what_it_says(span))
        assert not span.is_recording()

    one, its_buffer = provider()
    play(light(one))
    other, others_buffer = provider()
    other.light_buffer = None
    play(light(other))
    (mine,), (theirs,) = sent(its_buffer), sent(others_buffer)
    assert {e.name for e in mine.events} == {e.name for e in theirs.events}
    for event in (*mine.events, *theirs.events):  # a stack trace tells where it was made
        del event.attributes[:]
    assert mine == theirs
    assert said[:2] == said[2:]


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_error", [True, False])
@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt()])
def test_an_exception_that_leaves_it_is_said_as_the_sdk_says_it(
    error: BaseException, is_recorded: bool, is_error: bool
) -> None:
    one, its_buffer = provider()
    other, others_buffer = provider()
    other.light_buffer = None
    for made in (one, other):
        span = light(made).start_span(
            "s", record_exception=is_recorded, set_status_on_exception=is_error
        )
        with pytest.raises(type(error)), span:
            raise error
        assert not span.is_recording()
    (mine,), (theirs,) = sent(its_buffer), sent(others_buffer)
    assert mine.status == theirs.status
    assert [{pair.key for pair in event.attributes} for event in mine.events] == [
        {pair.key for pair in event.attributes} for event in theirs.events
    ]


def test_spans_of_steps_that_are_not_kept_are_not_sent_and_nothing_within_them() -> None:
    made, buffer = provider()
    made.keep_steps(0.0)
    around = light(made).start_span("step", Context(), attributes={"rl.loop.iteration": 1})
    within = light(made).start_span("phase", trace.set_span_in_context(around, Context()))
    for span in (within, around):
        assert not span.is_recording()
        span.end()
    assert within.get_span_context().trace_id == around.get_span_context().trace_id
    assert not sent(buffer)


def test_whoever_looks_at_every_span_sees_the_sdks() -> None:
    seen: list[str] = []

    class Looking(SpanProcessor):
        def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
            del parent_context
            seen.append(span.name)

    made, buffer = provider()
    tracer = light(made)
    assert isinstance(tracer.start_span("before"), LightSpan)
    made.add_span_processor(Looking())
    tracer.start_span("after").end()
    assert seen == ["after"]
    assert [span.name for span in sent(buffer)] == ["after"]


def test_it_ends_once_and_takes_nothing_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    made, buffer = provider()
    span = light(made).start_span("phase", start_time=BEGUN_NS)
    span.end(ENDED_NS)
    span.end(ENDED_NS + 1)
    with caplog.at_level(logging.WARNING):
        span.set_attribute("late", 1)
    assert "ended span" in caplog.text
    span.end(ENDED_NS + 2)
    (found,) = sent(buffer)
    assert (found.end_time_unix_nano, len(found.attributes)) == (ENDED_NS, 0)


def test_threads_that_say_something_at_once_say_it_of_one_span() -> None:
    made, buffer = provider()
    tracer, together = light(made), Barrier(8)
    for _ in range(50):
        span = tracer.start_span("phase")

        def say(number: int, span: Span = span) -> None:
            together.wait()
            span.set_attribute(f"k{number}", number)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(say, range(8)))
        span.end()
    assert [len(span.attributes) for span in sent(buffer)] == [8] * 50


def test_a_span_of_the_plain_api_may_stand_between_two() -> None:
    made, buffer = provider()
    tracer, plain = light(made), made.get_tracer("users")
    outer = tracer.start_span("step", Context())
    with trace.use_span(outer), plain.start_as_current_span("theirs"):
        tracer.start_span("phase").end()
    outer.end()
    by_name = {span.name: span for span in sent(buffer)}
    assert by_name.keys() == {"step", "theirs", "phase"}
    assert by_name["phase"].parent_span_id == by_name["theirs"].span_id
    assert by_name["theirs"].parent_span_id == by_name["step"].span_id
    assert not by_name["step"].parent_span_id


@pytest.mark.parametrize(
    ("variable", "limit"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "1"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "1"),
    ],
)
def test_the_limits_of_the_environment_hold(
    variable: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, limit)
    made, buffer = provider()
    other, others = provider()
    other.light_buffer = None
    for tracer in (light(made), light(other)):
        span = tracer.start_span(
            "s",
            Context(),
            attributes={"a": "long", "b": "text"},
            links=[Link(OTHER, {"a": "long", "b": "text"})],
            start_time=BEGUN_NS,
        )
        span.set_attribute("c", "longer")
        span.add_link(OTHER, {"c": "longer", "d": "text"})
        span.end(ENDED_NS)
    assert sent(buffer) == sent(others)


def test_an_async_function_may_be_a_span() -> None:
    made, buffer = provider()

    @light(made).start_as_current_span("theirs")
    async def work() -> str:
        await asyncio.sleep(0)
        light(made).start_span("within").end()
        return "done"

    assert asyncio.run(work()) == "done"
    within, theirs = sent(buffer)
    assert within.parent_span_id == theirs.span_id


def test_a_tracer_is_the_same_each_time() -> None:
    made, _buffer = provider()
    assert made.get_tracer("a") is made.get_tracer("a")
    assert made.get_tracer("a") is not made.get_tracer("b")


def test_a_library_may_ask_a_tracer_what_it_asks_the_sdks() -> None:
    made, _buffer = provider()
    tracer = cast(SdkTracer, made.get_tracer("a"))
    assert tracer.id_generator is made.id_generator
    assert tracer.resource is made.resource
