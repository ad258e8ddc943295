"""What is open for long is seen before it ends."""

from time import monotonic_ns

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource

import otel_rl
from otel_rl.worker.phases.flows import FIRST_AGE_NS, show_open_spans
from otel_rl.worker.tracing.provider import WorkerTracerProvider
from otel_rl.worker.tracing.spans import CountedSpans
from tests.otlp_sink import Sink, pairs

OWN = WorkerTracerProvider(Resource({}), CountedSpans(1, 1.0))


def spans(sink: Sink) -> list[Span]:
    assert otel_rl.flush(timeout_s=60)
    return [
        span
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def look(after_ns: int) -> None:
    """As the exporter does, so long after now."""
    show_open_spans(OWN, monotonic_ns() + after_ns)


def test_a_step_and_a_phase_that_are_open_for_long_are_seen_before_their_end(
    started: Sink,
) -> None:
    with otel_rl.step(7), otel_rl.phase("collector_wait"):
        look(FIRST_AGE_NS)
        shown = {span.name: span for span in spans(started)}
    assert shown.keys() == {"rl.loop (open)", "collector_wait (open)"}
    ended = {span.name: span for span in spans(started)}
    for name in ("rl.loop", "collector_wait"):
        open_span, whole = shown[f"{name} (open)"], ended[name]
        assert (open_span.trace_id, open_span.parent_span_id) == (whole.trace_id, whole.span_id)
        assert open_span.start_time_unix_nano == whole.start_time_unix_nano
        assert open_span.end_time_unix_nano - open_span.start_time_unix_nano >= FIRST_AGE_NS
        assert pairs(open_span.attributes) == {"rl.open": True, "rl.loop.iteration": 7}


def test_what_is_open_is_shown_again_when_it_is_twice_as_old(started: Sink) -> None:
    with otel_rl.phase("collector_wait"):
        for ages in range(8):
            look(ages * FIRST_AGE_NS)
    # After one, two or a little more, and then twice that.
    names = [span.name for span in spans(started)]
    assert names.count("collector_wait (open)") == 3


def test_what_is_young_or_has_no_span_is_not_shown(started: Sink) -> None:
    with otel_rl.phase("collector_wait", span=False):
        look(FIRST_AGE_NS)
    with otel_rl.phase("generate"):
        look(0)
    assert [span.name for span in spans(started)] == ["rl.sample"]
