"""Protobuf encodings that OTLP needs, as functions from values to bytes.

Field numbers stand at the call, beside the message they belong to; opentelemetry-proto names them.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["attributes", "field", "head", "key_value", "number", "utf8", "varint"]

_LENGTH_DELIMITED: Final = 2
_ONE_BYTE: Final = [bytes((n,)) for n in range(128)]
_TWO_BYTES = struct.Struct("<H").pack
_TAG_AND_TWO_BYTES = struct.Struct("<BH").pack
_DOUBLE = struct.Struct("<Bd").pack
_UINT64_MASK: Final = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Encode in base 128; negative numbers like protobuf's int64, in ten bytes."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if 0 < value < 1 << 14:  # most steps and lengths: a third of the loop's cost
        return _TWO_BYTES(value & 0x7F | 0x80 | (value & 0x3F80) << 1)
    value &= _UINT64_MASK
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited field: a message, string or bytes."""
    return head(number, len(payload)) + payload


def head(number: int, length: int) -> bytes:
    """Encode tag and length of such a field, for a payload that is written in pieces."""
    tag = number << 3 | _LENGTH_DELIMITED
    if length < 128 and tag < 128:
        return bytes((tag, length))
    if length < 1 << 14 and tag < 128:  # the size of a point: one call instead of three
        return _TAG_AND_TWO_BYTES(tag, length & 0x7F | 0x80 | (length & 0x3F80) << 1)
    return varint(tag) + varint(length)


def number(field_number: int, value: int) -> bytes:
    """Encode an integer or enum field."""
    return varint(field_number << 3) + varint(value)


def attributes(number: int, pairs: Mapping[str, object]) -> bytes:
    """Encode repeated ``KeyValue`` in field ``number``, sorted so that equal sets encode equal."""
    return b"".join(
        field(number, key_value(str(key), pairs[key])) for key in sorted(pairs, key=str)
    )


def key_value(key: str, value: object) -> bytes:
    """Encode ``KeyValue {key = 1, value = 2}`` without its own tag."""
    return field(1, utf8(key)) + field(2, _any_value(value))


def _any_value(value: object) -> bytes:
    """Encode an ``AnyValue``; unsupported types become text, as in the SDK."""
    match value:
        case None:
            return b""
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case str():
            return field(1, utf8(value))
        case int() if -(1 << 63) <= value < 1 << 63:
            return b"\x18" + varint(value)
        case float():
            return _DOUBLE(0x21, value)
        case bytes():
            return field(7, value)
        case Mapping():
            return field(6, attributes(1, value))
        case Sequence():
            return field(5, b"".join(field(1, _any_value(item)) for item in value))
        case _:
            return field(1, utf8(str(value)))


def utf8(text: str) -> bytes:
    """Encode text for protobuf, replacing lone surrogates."""
    return text.encode("utf-8", "replace")
