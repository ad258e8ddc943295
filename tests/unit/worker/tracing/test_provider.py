"""Spans of a worker's TracerProvider, which is the SDK's."""

import asyncio

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from otel_rl.worker.otlp.requests import Request
from otel_rl.worker.tracing import CountedSpans, StepSampler, made_tracer_provider

RESOURCE = Resource({"service.name": "r"})


class Taken:
    """Requests with spans that have ended."""

    def __init__(self) -> None:
        self.spans = CountedSpans(RESOURCE, 1000)
        self.spans.open(self.flush_spans)
        self._requests: list[Request] = []

    def flush_spans(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def collect(self) -> list[Request]:
        self._requests += self.spans.collect()
        return self._requests


def provider(sampler: StepSampler | None = None) -> tuple[TracerProvider, Taken]:
    taken = Taken()
    return made_tracer_provider(RESOURCE, taken.spans, sampler or StepSampler()), taken


def sent(buffer: Taken) -> list[SpanMessage]:
    return [
        span
        for request in buffer.collect()
        for part in ExportTraceServiceRequest.FromString(request.payload).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def test_a_span_is_one_of_the_sdk_and_can_be_read_while_it_is_open() -> None:
    made, buffer = provider()
    span = made.get_tracer("s").start_span("phase", attributes={"a": 1})
    assert isinstance(span, SdkSpan)
    assert span.status.status_code is StatusCode.UNSET
    span.set_attribute("b", 2)
    span.end()
    (found,) = sent(buffer)
    assert {each.key: each.value.int_value for each in found.attributes} == {"a": 1, "b": 2}


def test_spans_of_a_worker_that_gets_its_name_later_have_that_name() -> None:
    made, buffer = provider()
    tracer = made.get_tracer("s")
    tracer.start_span("before", Context()).end()
    buffer.collect()
    tracer.start_span("after", Context()).end()
    buffer.spans.bind(Resource({"service.name": "other"}, "https://schema/2"))
    found = {
        span.name: (part.resource.attributes[0].value.string_value, part.schema_url)
        for request in buffer.collect()
        for part in ExportTraceServiceRequest.FromString(request.payload).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    }
    assert found == {"before": ("r", ""), "after": ("other", "https://schema/2")}


def test_spans_of_steps_that_are_not_kept_are_not_sent_and_nothing_within_them() -> None:
    sampler = StepSampler()
    sampler.keep(0.0)
    made, buffer = provider(sampler)
    around = made.get_tracer("s").start_span("step", Context(), attributes={"rl.loop.iteration": 1})
    within = made.get_tracer("s").start_span("phase", trace.set_span_in_context(around, Context()))
    for span in (within, around):
        assert not span.is_recording()
        span.end()
    assert within.get_span_context().trace_id == around.get_span_context().trace_id
    assert not sent(buffer)


def test_a_processor_of_the_program_sees_every_span_that_starts_after_it_was_added() -> None:
    seen: list[str] = []

    class Looking(SpanProcessor):
        def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
            del parent_context
            seen.append(span.name)

    made, buffer = provider()
    tracer = made.get_tracer("s")
    made.add_span_processor(Looking())
    tracer.start_span("after").end()
    assert seen == ["after"]
    assert [span.name for span in sent(buffer)] == ["after"]


def test_a_span_of_the_plain_api_may_stand_between_two() -> None:
    made, buffer = provider()
    tracer, plain = made.get_tracer("s"), made.get_tracer("users")
    outer = tracer.start_span("step", Context())
    with trace.use_span(outer), plain.start_as_current_span("theirs"):
        tracer.start_span("phase").end()
    outer.end()
    by_name = {span.name: span for span in sent(buffer)}
    assert by_name.keys() == {"step", "theirs", "phase"}
    assert by_name["phase"].parent_span_id == by_name["theirs"].span_id
    assert by_name["theirs"].parent_span_id == by_name["step"].span_id
    assert not by_name["step"].parent_span_id


def test_an_async_function_may_be_a_span() -> None:
    made, buffer = provider()

    @made.get_tracer("s").start_as_current_span("theirs")
    async def work() -> str:
        await asyncio.sleep(0)
        made.get_tracer("s").start_span("within").end()
        return "done"

    assert asyncio.run(work()) == "done"
    within, theirs = sent(buffer)
    assert within.parent_span_id == theirs.span_id
