"""How many protobuf messages a request holds, found out before memory is spent on them.

A message can be two bytes on the wire and about 80 in memory once parsed, so 16 MiB of empty data
points take 670 MiB. Bytes alone are therefore no bound; this walk over the wire format is.
"""

from collections.abc import Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor

from otel_rl.errors import MalformedRequest, RequestTooLarge

__all__ = ["check_message_count"]

# The wire types of https://protobuf.dev/programming-guides/encoding/#structure
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5

_MIN_MESSAGE_BYTES = 2  # a tag and a length of 0


def check_message_count(payload: bytes, root: Descriptor, max_messages: int) -> None:
    """Refuse a payload that would become more than ``max_messages`` messages when parsed.

    A payload too short to hold so many is not looked at, which is nearly every one.

    Args:
        payload: A serialized message of type ``root``.
        root: Says which fields are messages.
        max_messages: Counts messages at every depth.

    Raises:
        RequestTooLarge: There are more.
        MalformedRequest: The bytes are no protobuf.
    """
    if len(payload) < max_messages * _MIN_MESSAGE_BYTES:
        return
    left = max_messages
    open_messages = [(root, 0, len(payload))]
    while open_messages:
        descriptor, position, end = open_messages.pop()
        children = _submessages(descriptor.full_name, descriptor)
        while position < end:
            tag, position = _varint(payload, position, end)
            wire_type = tag & 7
            if wire_type == _LEN:
                length, position = _varint(payload, position, end)
                child = children.get(tag >> 3)
                if child is not None:
                    left -= 1
                    if left < 0:
                        msg = f"The request holds more than {max_messages} messages."
                        raise RequestTooLarge(msg, hint="Send smaller batches.")
                    open_messages.append((child, position, position + length))
                position += length
            elif wire_type == _VARINT:
                _, position = _varint(payload, position, end)
            elif wire_type == _I64:
                position += 8
            elif wire_type == _I32:
                position += 4
            else:
                raise MalformedRequest(f"Wire type {wire_type} is not part of OTLP.")
            if position > end:
                raise MalformedRequest("A field is longer than the message that holds it.")


def _varint(payload: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedRequest("A number is cut off or too long.")


@cache
def _submessages(_full_name: str, descriptor: Descriptor) -> Mapping[int, Descriptor]:
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }
