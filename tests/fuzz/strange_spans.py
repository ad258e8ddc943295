"""Spans that OTLP allows and nobody expects, for what explains steps."""

from collections.abc import Callable, Sequence
from random import Random

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tests.fuzz.corpus import S
from tests.support.otlp_requests import key_values


def strange_spans(random: Random, request: ExportTraceServiceRequest) -> None:
    """Make one to six values of the request's spans legal and unexpected."""
    places = [
        (part, [span for scope_spans in part.scope_spans for span in scope_spans.spans])
        for part in request.resource_spans
    ]
    for _ in range(random.randint(1, 6) if any(spans for _, spans in places) else 0):
        part, spans = random.choice([place for place in places if place[1]])
        random.choice(_CHANGES)(random, part, spans)


Change = Callable[[Random, ResourceSpans, Sequence[Span]], None]


def _times(random: Random, _part: ResourceSpans, spans: Sequence[Span]) -> None:
    """Before its parent, after it, of no length, backwards, or unknown."""
    span = random.choice(spans)
    span.start_time_unix_nano += random.choice((0, 1, -1, S, -S, 400 * S))
    span.end_time_unix_nano = random.choice(
        (span.start_time_unix_nano, span.start_time_unix_nano - 1, span.end_time_unix_nano, 0)
    )


def _family(random: Random, _part: ResourceSpans, spans: Sequence[Span]) -> None:
    """Its own parent, its child's child, of a parent that nobody sends, or an orphan."""
    span, other = random.choice(spans), random.choice(spans)
    span.parent_span_id = random.choice((span.span_id, other.span_id, b"\xee" * 8, b"", b"short"))


def _links(random: Random, _part: ResourceSpans, spans: Sequence[Span]) -> None:
    """To itself, to all, to nobody; with ids that are none."""
    span = random.choice(spans)
    for _ in range(random.choice((1, 2, 100))):
        other = random.choice(spans)
        trace_id = random.choice((other.trace_id, b"", b"\xff" * 16))
        span.links.add(trace_id=trace_id, span_id=random.choice((other.span_id, b"\0" * 8)))


def _identity(random: Random, _part: ResourceSpans, spans: Sequence[Span]) -> None:
    """The same span twice, or one of another trace."""
    span, other = random.choice(spans), random.choice(spans)
    span.span_id = other.span_id
    if random.random() < 0.3:
        span.trace_id = random.randbytes(16)


def _meaning(random: Random, _part: ResourceSpans, spans: Sequence[Span]) -> None:
    """Another name, step, phase or class."""
    span = random.choice(spans)
    span.name = random.choice(("rl.loop", "rl.train", "", "\x00", "n" * 5000))
    changed = {
        "rl.loop.iteration": random.choice((0, -1, 2**63 - 1, "7", 7.5, None, "x")),
        "rl.phase": random.choice(("train", "", "../x", "\x1b[31m", 7, "p" * 3000)),
        "rl.phase.class": random.choice(("wait", "compute", "", 7)),
    }
    key = random.choice(list(changed))
    kept = [attribute for attribute in span.attributes if attribute.key != key]
    del span.attributes[:]
    span.attributes.extend([*kept, *key_values({key: changed[key]})])


def _host(random: Random, part: ResourceSpans, _spans: Sequence[Span]) -> None:
    key, value = random.choice(
        (("host.name", "node-2"), ("host.name", 7), ("rl.worker.role", "..")),
    )
    kept = [attribute for attribute in part.resource.attributes if attribute.key != key]
    del part.resource.attributes[:]
    part.resource.attributes.extend([*kept, *key_values({key: value})])


def _many(random: Random, part: ResourceSpans, spans: Sequence[Span]) -> None:
    """A long chain, or many children of one."""
    parent, is_chain = random.choice(spans), random.random() < 0.5
    for _ in range(random.choice((1, 30, 300))):
        child = part.scope_spans[0].spans.add()
        child.CopyFrom(parent)
        child.span_id, child.parent_span_id = random.randbytes(8), parent.span_id
        if is_chain:
            parent = child


_CHANGES: Sequence[Change] = (_times, _family, _links, _identity, _meaning, _host, _many)
