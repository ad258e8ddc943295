"""Spans to OTLP bytes, as the SDK's own encoder writes them, in a fraction of its time.

Field numbers are those of opentelemetry/proto/trace/v1/trace.proto:

    Span { trace_id = 1, span_id = 2, trace_state = 3, parent_span_id = 4, name = 5, kind = 6,
           start = 7, end = 8, attributes = 9, dropped_attributes = 10, events = 11,
           dropped_events = 12, links = 13, dropped_links = 14, status = 15, flags = 16 }
    Event { time = 1, name = 2, attributes = 3, dropped_attributes = 4 }
    Link { trace_id = 1, span_id = 2, trace_state = 3, attributes = 4, dropped_attributes = 5,
           flags = 6 }
    Status { message = 2, code = 3 }
"""

import struct
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanKind, Status, TraceState

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.request_packer import (
    MAX_REQUEST_BYTES,
    Request,
    RequestPacker,
    encode_resource,
    encode_scope,
)

__all__ = ["encode_span", "span_requests"]

_IDS = struct.Struct("BB16sBB8s").pack  # trace_id = 1, span_id = 2
_KIND_AND_TIMES = struct.Struct("<BBBQBQ").pack  # kind = 6, start = 7, end = 8
_TIME = struct.Struct("<BQ").pack

# SpanFlags: whether the parent is of another process is known, and whether it is.
_LOCAL: Final = 0x100
_REMOTE: Final = 0x300
_FLAGS = struct.Struct("<I").pack
_LOCAL_SPAN, _REMOTE_SPAN = (b"\x85\x01" + _FLAGS(flags) for flags in (_LOCAL, _REMOTE))
_LOCAL_LINK, _REMOTE_LINK = (b"\x35" + _FLAGS(flags) for flags in (_LOCAL, _REMOTE))


_CACHED_CHARS: Final = 64
"""Longer texts are seldom repeated."""


def span_requests(
    spans: Iterable[ReadableSpan],
    guard: Guard,
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    times: Mapping[int, tuple[int, int]] | None = None,
) -> list[Request]:
    """Spans in as many requests as their resources and the size limit need, in order.

    Args:
        spans: That have ended.
        guard: Counts those that no request can hold, or that cannot be encoded.
        max_request_bytes: No request is larger.
        times: Begin and end in ns since the Unix epoch, by span id, of spans that have others than
            their own.
    """
    # By identity: to hash a resource or scope costs more than to encode a span.
    packers: dict[int, RequestPacker] = {}
    scopes: dict[int, bytes] = {}
    for span in spans:
        resource, scope = span.resource, span.instrumentation_scope
        try:
            packer = packers.get(id(resource))
            if packer is None:
                packer = packers[id(resource)] = RequestPacker(
                    encode_resource(resource), Signal.TRACES, max_request_bytes
                )
            head = scopes.get(id(scope))
            if head is None:
                head = scopes[id(scope)] = b"" if scope is None else encode_scope(scope)
            encoded = encode_span(span, times.get(span.context.span_id) if times else None)
        except Exception as error:  # noqa: BLE001  # one span costs no other
            guard.caught(error)
            continue
        if not packer.add(head, (encoded,), len(encoded)):
            guard.drop(DropReason.TOO_LARGE, "A span alone is larger than a request may be.")
    return [request for packer in packers.values() for request in packer.requests()]


def encode_span(span: ReadableSpan, times_ns: tuple[int, int] | None = None) -> bytes:
    """A ``Span`` in the field that ``ScopeSpans`` has for it, at its times or at others."""
    # Taken apart as the tuples that they are: their properties cost as much as all the rest.
    trace_id, span_id, _, _, state, _ = span.context
    parent, kind, attributes = span.parent, span.kind, span.attributes
    parts = [_IDS(0x0A, 16, trace_id.to_bytes(16), 0x12, 8, span_id.to_bytes(8))]
    known_state, encoded_state = _last_state
    parts.append(encoded_state if state is known_state else _trace_state(state))
    flags = _LOCAL_SPAN
    if parent is not None:
        parent_id, is_remote = parent[1], parent[2]
        parts.append(b"\x22\x08" + parent_id.to_bytes(8))
        if is_remote:
            flags = _REMOTE_SPAN
    # The protocol's kinds begin with "unspecified".
    number = 1 if kind is SpanKind.INTERNAL else kind.value + 1
    begun_ns, ended_ns = times_ns or (span.start_time or 0, span.end_time or 0)
    times = _KIND_AND_TIMES(0x30, number, 0x39, begun_ns, 0x41, ended_ns)
    parts += (_name(span.name), times)
    if attributes:
        parts += _attributes(9, attributes)
    if span.links:
        parts += [protobuf.field(13, _link(link)) for link in span.links]
    _count(parts, 10, span.dropped_attributes)
    parts += [protobuf.field(11, _event(event)) for event in span.events]
    _count(parts, 12, span.dropped_events)
    _count(parts, 14, span.dropped_links)
    parts += (protobuf.field(15, _status(span.status)), flags)
    encoded = b"".join(parts)
    return protobuf.head(2, len(encoded)) + encoded


_last_state: tuple[TraceState, bytes] = (TraceState(), b"")


def _trace_state(state: TraceState) -> bytes:
    """Encoded, and remembered: the spans of a trace have the same object."""
    global _last_state  # a cache
    encoded = protobuf.field(3, protobuf.utf8(state.to_header())) if state else b""
    _last_state = state, encoded
    return encoded


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return protobuf.field(5, protobuf.utf8(name))


def _attributes(number: int, attributes: Mapping[str, object]) -> list[bytes]:
    if isinstance(attributes, MappingProxyType):  # the SDK's way around a lock for each key
        attributes = attributes.copy()
    return [
        _known(number, key, value)
        if type(value) is int
        or (type(value) is str and len(value) <= _CACHED_CHARS)
        or isinstance(value, StrEnum)
        else protobuf.field(number, protobuf.key_value(key, value))
        for key, value in attributes.items()
    ]


@lru_cache(maxsize=4096, typed=True)
def _known(number: int, key: str, value: str | int) -> bytes:
    """An attribute that many spans have."""
    return protobuf.field(number, protobuf.key_value(key, value))


def _event(event: Event) -> bytes:
    parts = [_TIME(0x09, event.timestamp), protobuf.field(2, protobuf.utf8(event.name))]
    if event.attributes:
        parts += _attributes(3, event.attributes)
    _count(parts, 4, event.dropped_attributes)
    return b"".join(parts)


def _link(link: Link) -> bytes:
    trace_id, span_id, is_remote, _, _, _ = link.context
    parts = [_IDS(0x0A, 16, trace_id.to_bytes(16), 0x12, 8, span_id.to_bytes(8))]
    if link.attributes:
        parts += _attributes(4, link.attributes)
    _count(parts, 5, link.dropped_attributes)
    parts.append(_REMOTE_LINK if is_remote else _LOCAL_LINK)
    return b"".join(parts)


def _status(status: Status) -> bytes:
    said = protobuf.field(2, protobuf.utf8(status.description)) if status.description else b""
    return said if status.is_unset else said + protobuf.number(3, status.status_code.value)


def _count(parts: list[bytes], number: int, count: int) -> None:
    if count:
        parts.append(protobuf.number(number, count))
