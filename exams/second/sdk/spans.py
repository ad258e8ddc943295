"""Finished spans as OTLP."""

from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto

from exams.second.sdk.encode import STEP, nanoseconds, pairs
from exams.second.systems.world import Span


def span_of(one: Span, skew_s: float) -> SpanProto:
    """Encode a span of a process whose clock is ``skew_s`` wrong."""
    trace, span, parent = one.ids
    made = SpanProto(
        name=one.name,
        kind=SpanProto.SPAN_KIND_INTERNAL,
        trace_id=trace.to_bytes(16, "big"),
        span_id=span.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        start_time_unix_nano=nanoseconds(one.begin_s + skew_s),
        end_time_unix_nano=nanoseconds(one.end_s + skew_s),
    )
    attributes = dict(one.attributes)
    if one.step is not None:
        attributes[STEP] = one.step
    made.attributes.extend(pairs(attributes))
    for link_trace, link_span in one.links:
        made.links.add(
            trace_id=link_trace.to_bytes(16, "big"), span_id=link_span.to_bytes(8, "big")
        )
    return made
