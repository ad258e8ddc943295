"""Splits a metrics request by resource without parsing it."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ResourcePart", "resource_parts"]

_RESOURCE_METRICS = _RESOURCE = 0x0A  # field 1, length-delimited: in the request, in each part


class ResourcePart(NamedTuple):
    """Place of one ``ResourceMetrics`` in a request.

    Attributes:
        start: Of its tag.
        resource: Start of the serialized ``Resource``.
        body: End of that, and start of all other fields.
        end: End of the part.
    """

    start: int
    resource: int
    body: int
    end: int


def resource_parts(payload: bytes) -> Sequence[ResourcePart] | None:
    """Return the parts of a request in order; None if it has any other field.

    Each begins with its resource. Bodies are unchecked bytes, which may hold a second resource.
    """
    parts = []
    position, size = 0, len(payload)
    while position < size:
        start = position
        if payload[position] != _RESOURCE_METRICS:
            return None
        length, position = _length(payload, position + 1)
        end = position + length
        if length < 1 or end > size or payload[position] != _RESOURCE:
            return None
        length, resource = _length(payload, position + 1)
        body = resource + length
        if length < 0 or body > end:
            return None
        parts.append(ResourcePart(start, resource, body, end))
        position = end
    return parts


def _length(payload: bytes, position: int) -> tuple[int, int]:
    """Read a length of at most four bytes: it and the position after it; -1 if there is none."""
    value = 0
    for place, byte in enumerate(payload[position : position + 4]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    return -1, position
