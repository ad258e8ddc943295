"""Rules for the ids and the size of a span."""

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.limits import ReceiveLimits, is_over
from otel_rl.bridge.receive.validation.event_rules import Problem
from otel_rl.semconv import names

__all__ = ["harmless_bytes", "id_problem", "size_problem"]

# Attributes of a span that are kept.
_PHASE_ATTRIBUTES = frozenset({names.RL_PHASE, names.RL_PHASE_CLASS})

_MIN_LINK_BYTES = 2  # a tag and a length of 0
_SHOWN_ID_BYTES = 20  # anything longer is no id, and may be as long as a request


def id_problem(span: Span) -> Problem:
    """Check the ids of a span: of the right length, and not zero."""
    if len(span.trace_id) != 16 or not any(span.trace_id):
        return Refusal.INVALID_ID, f"Trace id {_id(span.trace_id)} is invalid"
    if len(span.span_id) != 8 or not any(span.span_id):
        return Refusal.INVALID_ID, f"Span id {_id(span.span_id)} is invalid"
    if len(span.parent_span_id) > 8:
        return Refusal.INVALID_ID, f"Parent span id {_id(span.parent_span_id)} is invalid"
    return None


def harmless_bytes(limits: ReceiveLimits) -> int:
    """Return the size up to which no name, link or phase of a span can be over its bound."""
    return min(
        limits.max_span_bytes,
        limits.max_span_name_bytes,
        limits.max_span_links * _MIN_LINK_BYTES,
        limits.max_name_chars,
    )


def size_problem(span: Span, limits: ReceiveLimits, harmless: int) -> Problem:
    """Check the sizes of a span: few attributes and links, short texts.

    Args:
        span: The span.
        limits: The bounds.
        harmless: Their ``harmless_bytes``.
    """
    owner = f"Span {span.name[:64]!r}"
    count, limit = len(span.attributes), limits.max_span_attributes
    if count > limit:
        detail = f"{owner} has {count} attributes, over {limit}"
        return Refusal.TOO_MANY_ATTRIBUTES, detail
    max_bytes = limits.max_attribute_key_bytes
    for attribute in span.attributes:
        if len(attribute.key.encode()) > max_bytes:
            return (
                Refusal.ATTRIBUTE_TOO_LONG,
                (
                    f"Attribute key {attribute.key[:40]!r}... of span {span.name[:64]!r} "
                    f"is over {max_bytes} bytes"
                ),
            )
    if span.ByteSize() <= harmless:
        return None
    if is_over(span.name, limits.max_span_name_bytes):
        detail = f"{owner}... has a name over {limits.max_span_name_bytes} bytes"
        return Refusal.SPAN_TOO_LARGE, detail
    if len(span.links) > limits.max_span_links:
        detail = f"{owner} has {len(span.links)} links, over {limits.max_span_links}"
        return Refusal.SPAN_TOO_LARGE, detail
    for attribute in span.attributes:
        if attribute.key not in _PHASE_ATTRIBUTES:
            continue
        if len(attribute.value.string_value) > limits.max_name_chars:
            detail = f"{owner} has {attribute.key} over {limits.max_name_chars} characters"
            return Refusal.SPAN_TOO_LARGE, detail
    if span.ByteSize() > limits.max_span_bytes:
        detail = f"{owner} has {span.ByteSize()} bytes, over {limits.max_span_bytes}"
        return Refusal.SPAN_TOO_LARGE, detail
    return None


def _id(sent: bytes) -> str:
    return sent[:_SHOWN_ID_BYTES].hex() or "of no bytes"
