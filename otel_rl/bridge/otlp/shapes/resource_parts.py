"""Splits a metrics request by resource without parsing it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from otel_rl.bridge.otlp.shapes.fields import length_at

__all__ = ["ResourcePart", "each_part", "resource_parts"]

_RESOURCE_METRICS = _RESOURCE = 0x0A  # field 1, length-delimited: in the request, in each part
_SCOPE_METRICS, _SCHEMA_URL = 0x12, 0x1A  # fields 2 and 3 of each part


class ResourcePart(NamedTuple):
    """Place of one ``ResourceMetrics`` in a request.

    Attributes:
        start: Of its tag.
        resource: Start of the serialized ``Resource``.
        resource_end: End of that.
        body: Start of all other fields.
        body_end: End of those.
        end: End of the part.
    """

    start: int
    resource: int
    resource_end: int
    body: int
    body_end: int
    end: int


def resource_parts(payload: bytes) -> Sequence[ResourcePart] | None:
    """Return the parts of a request in order; None if it has any other field."""
    parts: list[ResourcePart] = []
    for part in each_part(payload):
        if part is None:
            return None
        parts.append(part)
    return parts


def each_part(payload: bytes) -> Iterator[ResourcePart | None]:
    """Yield the parts of a request in order; None at any other field, as the last one.

    Each begins with its resource, or ends with it: the Collector writes fields from the last to the
    first. Bodies are unchecked bytes, which may hold a second resource.
    """
    position, size = 0, len(payload)
    while position < size:
        start = position
        if payload[position] != _RESOURCE_METRICS:
            yield None
            return
        length, position = length_at(payload, position + 1)
        end = position + length
        part = None if length < 1 or end > size else _part(payload, start, position, end)
        yield part
        if part is None:
            return
        position = end


def _part(payload: bytes, start: int, inner: int, end: int) -> ResourcePart | None:
    """Split the fields between ``inner`` and ``end``."""
    tag = inner
    while tag < end and payload[tag] in (_SCOPE_METRICS, _SCHEMA_URL):
        length, content = length_at(payload, tag + 1)
        if length < 0:
            return None
        tag = content + length
    if tag >= end or payload[tag] != _RESOURCE:
        return None
    length, resource = length_at(payload, tag + 1)
    after = resource + length
    if length < 0 or after > end:
        return None
    if tag == inner:
        return ResourcePart(start, resource, after, after, end, end)
    return ResourcePart(start, resource, after, inner, tag, end) if after == end else None
