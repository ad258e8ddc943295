"""Decodes an accepted batch of spans into records."""

from collections.abc import Iterable, Iterator
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_rl.bridge.otlp.attributes import step_of
from otel_rl.bridge.otlp.resource import sender_of
from otel_rl.records import PART, Batch, Decoded, Export, SpanRecord, Worker
from otel_rl.semconv import names

__all__ = ["decode_spans", "span_parts"]

# Phase of each span name that differs from the name of its phase.
_PHASE_OF_SPAN: Final = {spec.span: str(name) for name, spec in names.PHASES.items() if spec.span}

_CLASS_OF: Final = {str(name): str(spec.phase_class) for name, spec in names.PHASES.items()}

_OTHER: Final = names.RlPhaseClassValues.OTHER.value

_HOST: Final = "host.name"

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8


def decode_spans(batch: Batch) -> Decoded:
    """Decode the spans of ``batch``, in the order of the request, and their senders' leases."""
    *_, (spans, workers) = _decoded(batch, PART)
    return Decoded((), [Export(worker, 0) for worker in workers], spans=spans)


def span_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    """Decode in parts, see ``decode_parts``."""
    decoded = _decoded(batch, most)
    spans, workers = next(decoded)
    for _ in decoded:
        yield Decoded((), (), has_more=True)
    # A nested span precedes its parent, also if both end together.
    spans.sort(key=lambda span: (span.end_ns, -span.start_ns))
    places = range(0, max(1, len(spans)), most)
    for place in places[:-1]:
        yield Decoded((), (), spans=spans[place : place + most], has_more=True)
    exports = [Export(worker, 0) for worker in workers]
    yield Decoded((), exports, spans=spans[places[-1] :])


def _decoded(batch: Batch, most: int) -> Iterator[tuple[list[SpanRecord], dict[Worker, None]]]:
    """Yield spans and their senders, the same objects each time, complete in the last one."""
    spans: list[SpanRecord] = []
    workers: dict[Worker, None] = {}
    yield spans, workers
    for resource_spans in ExportTraceServiceRequest.FromString(batch.payload).resource_spans:
        resource = resource_spans.resource
        worker = sender_of(resource.SerializeToString()).worker
        workers[worker] = None
        host = _host(resource) or worker.instance
        for scope_spans in resource_spans.scope_spans:
            for span in _records(scope_spans.spans, worker, host):
                spans.append(span)
                if not len(spans) % most:
                    yield spans, workers
    yield spans, workers


def _records(spans: Iterable[Span], worker: Worker, host: str) -> Iterator[SpanRecord]:
    for span in spans:
        phase = phase_class = ""
        is_open = False
        for attribute in span.attributes:
            if attribute.key == names.RL_PHASE:
                phase = attribute.value.string_value
            elif attribute.key == names.RL_PHASE_CLASS:
                phase_class = attribute.value.string_value
            elif attribute.key == names.RL_OPEN:
                is_open = attribute.value.bool_value
        if is_open:  # it comes again when it has ended
            continue
        # A plain span named like a phase of the open proposal is that phase.
        phase = phase or _PHASE_OF_SPAN.get(span.name, "")
        if phase:
            phase_class = phase_class or _CLASS_OF.get(phase, _OTHER)
        yield SpanRecord(
            span.trace_id + span.span_id,
            span.trace_id + span.parent_span_id if span.parent_span_id else None,
            tuple(link.trace_id + link.span_id for link in span.links if _names_a_span(link)),
            worker.role,
            worker.instance,
            host,
            span.start_time_unix_nano,
            max(span.start_time_unix_nano, span.end_time_unix_nano),
            span.name,
            phase,
            phase_class,
            step_of(span.attributes),
            span.status.code == Status.STATUS_CODE_ERROR,
        )


def _names_a_span(link: Span.Link) -> bool:
    return len(link.trace_id) == _TRACE_ID_BYTES and len(link.span_id) == _SPAN_ID_BYTES


def _host(resource: Resource) -> str:
    return next((a.value.string_value for a in resource.attributes if a.key == _HOST), "")
