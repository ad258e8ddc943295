"""Decodes an accepted batch of spans into records."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_rl.bridge.otlp.attributes import integer, step_of, text
from otel_rl.bridge.otlp.identities import Sender, identified
from otel_rl.records import (
    PART,
    Batch,
    Decoded,
    Export,
    Measurements,
    Series,
    SpanRecord,
    Worker,
)
from otel_rl.semconv import names
from otel_rl.semconv.foreign import kind_of, meaning_of, step_keys
from otel_rl.semconv.spec import STEP_SPAN

# Phase of each span name that differs from the name of its phase.
_PHASE_OF_SPAN: Final = {spec.span: str(name) for name, spec in names.PHASES.items() if spec.span}

_CLASS_OF: Final = {str(name): str(spec.phase_class) for name, spec in names.PHASES.items()}

_OTHER: Final = names.RlPhaseClassValues.OTHER.value

# Of a scope, by the Collector's tail sampling processor.
_TAIL_SAMPLED: Final = "tailsampling."

_NS_PER_S: Final = 1_000_000_000

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8


def span_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    """Decode the spans of ``batch`` in the order of their ends, with their senders' leases."""
    decoded = _decoded(batch, most)
    found = next(decoded)
    for _ in decoded:
        yield Decoded((), (), has_more=True)
    spans = found.spans
    # A nested span precedes its parent, also if both end together.
    spans.sort(key=lambda span: (span.end_ns, -span.start_ns))
    places = range(0, max(1, len(spans)), most)
    for place in places[:-1]:
        yield Decoded((), (), spans=spans[place : place + most], has_more=True)
    last = spans[places[-1] :]
    yield Decoded(found.steps, [*found.exports.values()], spans=last, sampled=found.sampled)


@dataclass(slots=True)
class _Found:
    """What was read from a batch of spans so far.

    Attributes:
        spans: Spans in the order of the request.
        steps: Durations of steps of other programs, whose measurements carry no step.
        exports: Lease of each worker that has sent spans.
        sampled: By worker, the latest end of a span that says that other spans of its step may have
            been dropped.
    """

    spans: list[SpanRecord]
    steps: list[Measurements]
    exports: dict[Worker, Export]
    sampled: dict[Worker, int]


def _decoded(batch: Batch, most: int) -> Iterator[_Found]:
    """Yield the same object each time, complete the last time."""
    found = _Found([], [], {}, {})
    yield found
    for resource_spans in ExportTraceServiceRequest.FromString(batch.payload).resource_spans:
        sender = identified(resource_spans.resource.SerializeToString()).sender
        worker = sender.worker
        has_work = worker in found.exports and found.exports[worker].has_work
        host = sender.host or worker.instance
        for scope_spans in resource_spans.scope_spans:
            is_tail_sampled = any(
                one.key.startswith(_TAIL_SAMPLED) for one in scope_spans.scope.attributes
            )
            for sent in scope_spans.spans:
                if is_tail_sampled or _is_sampled(sent, sender):
                    end_ns = max(sent.start_time_unix_nano, sent.end_time_unix_nano)
                    found.sampled[worker] = max(found.sampled.get(worker, 0), end_ns)
                marks = _marks_of(sent, sender)
                found.spans.append(_record(sent, marks, worker, host))
                has_work = has_work or marks.step is not None or bool(marks.phase)
                if marks.is_foreign_step and marks.step is not None:
                    found.steps.append(_duration(sent, marks.step, worker))
                if not len(found.spans) % most:
                    yield found
        found.exports[worker] = Export(
            worker, 0, has_work=has_work, host=sender.host, pid=sender.pid
        )
    yield found


@dataclass(slots=True)
class _Marks:
    """Meaning of a span, by its name and attributes.

    Attributes:
        phase: Phase of the span; empty for none.
        phase_class: Class of the phase; empty for none.
        is_foreign_step: Whether the span is one training step, under another program's name.
    """

    phase: str = ""
    phase_class: str = ""
    step: int | None = None
    is_foreign_step: bool = False


def _marks_of(span: Span, sender: Sender) -> _Marks:
    marks = _Marks(step=step_of(span.attributes))
    for attribute in span.attributes:
        if attribute.key == names.RL_PHASE:
            marks.phase = attribute.value.string_value
        elif attribute.key == names.RL_PHASE_CLASS:
            marks.phase_class = attribute.value.string_value
    # A plain span named like a phase of the open proposal is that phase.
    marks.phase = marks.phase or _PHASE_OF_SPAN.get(span.name, "")
    if not (marks.phase or sender.exact):
        _translate(marks, span)
    if marks.phase:
        marks.phase_class = marks.phase_class or _CLASS_OF.get(marks.phase, _OTHER)
    return marks


def _translate(marks: _Marks, span: Span) -> None:
    """Add the meaning of another program's span, see ``foreign.py``."""
    meaning = meaning_of(span.name)
    marks.phase, marks.is_foreign_step = meaning.phase, meaning.is_step
    marks.phase_class = marks.phase_class or meaning.phase_class
    by_attributes = "", ""
    for attribute in span.attributes:
        if attribute.key in step_keys():
            marks.step = integer(text(attribute.value)) if marks.step is None else marks.step
        elif not any(by_attributes):
            by_attributes = kind_of(attribute.key, attribute.value.string_value)
    if not (marks.phase or marks.is_foreign_step):
        marks.phase, by_class = by_attributes
        marks.phase_class = marks.phase_class or by_class


def _record(span: Span, marks: _Marks, worker: Worker, host: str) -> SpanRecord:
    return SpanRecord(
        span.trace_id + span.span_id,
        span.trace_id + span.parent_span_id if span.parent_span_id else None,
        tuple(link.trace_id + link.span_id for link in span.links if _names_a_span(link)),
        worker.role,
        worker.instance,
        host,
        span.start_time_unix_nano,
        max(span.start_time_unix_nano, span.end_time_unix_nano),
        STEP_SPAN if marks.is_foreign_step else span.name,
        marks.phase,
        marks.phase_class,
        marks.step,
        span.status.code == Status.STATUS_CODE_ERROR,
    )


def _duration(span: Span, step: int, worker: Worker) -> Measurements:
    """Return the duration of a step as a measurement: that gives the run its steps."""
    took_s = max(0, span.end_time_unix_nano - span.start_time_unix_nano) / _NS_PER_S
    return Measurements(
        Series(worker, names.RL_ITERATION_DURATION, "s"),
        [span.end_time_unix_nano],
        [took_s],
        [step],
    )


def _is_sampled(span: Span, sender: Sender) -> bool:
    """Return whether a span was kept by chance, so that other spans of its step may be missing.

    A threshold in OpenTelemetry's entry of the trace state says so. Workers of otel_rl give the
    random number, too, which all traces of a step share, so they are kept or dropped together.
    Services that a worker calls inherit the entry; for other senders the root span says it.
    """
    if "th:" not in span.trace_state:
        return False
    is_of_worker = sender.exact or bool(span.parent_span_id)
    for entry in span.trace_state.split(","):
        name, _, value = entry.strip().partition("=")
        if name == "ot":
            fields = dict(field.partition(":")[::2] for field in value.split(";"))
            return bool(fields.get("th", "").strip("0")) and not (is_of_worker and "rv" in fields)
    return False


def _names_a_span(link: Span.Link) -> bool:
    return len(link.trace_id) == _TRACE_ID_BYTES and len(link.span_id) == _SPAN_ID_BYTES
