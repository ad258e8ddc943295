"""Walks serialized messages strictly: what is unusual has no layout, and is parsed instead."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = [
    "I64",
    "LEN",
    "VARINT",
    "NoLayout",
    "Slot",
    "integer_slot",
    "key_bytes",
    "length_at",
    "only",
    "strict_fields",
    "with_length",
]

VARINT: Final = 0
I64: Final = 1
LEN: Final = 2

_ANY_VALUE, _INT_VALUE = 0x12, 0x18
_MAX_INTEGER_BYTES = 9  # of one with ten, a negative one, not every last byte is valid


class NoLayout(Exception):
    """The message is not of a kind that is read by its layout."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Number at a fixed place.

    Attributes:
        start: Offset in the body.
        length: In bytes.
        kind: Format of ``struct``: Q, d, q; s for a varint; x for bytes that are not read.
    """

    start: int
    length: int
    kind: str


def strict_fields(body: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message with tags of one byte: number, wire type, content's range.

    Raises:
        NoLayout: The next bytes are no such field.
    """
    while position < end:
        tag = body[position]
        kind, start = tag & 7, position + 1
        if tag >= 0x80 or tag < 8:
            raise NoLayout
        if kind == LEN:
            length, start = length_at(body, start)
            position = start + length if length >= 0 else end + 1
        elif kind == I64:
            position = start + 8
        elif kind == VARINT:
            position = _after_varint(body, start, end)
        else:
            raise NoLayout
        if position > end:
            raise NoLayout
        yield tag >> 3, kind, start, position


def key_bytes(name: str) -> bytes:
    """Return the key of an attribute, as a field."""
    encoded = name.encode()
    return b"\x0a%c%b" % (len(encoded), encoded)


def integer_slot(body: bytes, start: int, end: int, key: bytes) -> Slot:
    """Return the place of the integer in an attribute of this key that has nothing else.

    Its key is the first field, or the last one, as the Collector writes it.

    Args:
        body: Holds the attribute.
        start: Of the attribute.
        end: Of it.
        key: From ``key_bytes``.

    Raises:
        NoLayout: It is another one.
    """
    if body.startswith(key, start):
        start += len(key)
    elif body.endswith(key, start, end):
        end -= len(key)
    else:
        raise NoLayout
    value = start + 1
    if end < value + 3 or (body[start], body[value + 1]) != (_ANY_VALUE, _INT_VALUE):
        raise NoLayout
    number = value + 2
    is_one = body[value] == end - value - 1 and _after_varint(body, number, end) == end
    if not is_one or end - number > _MAX_INTEGER_BYTES:
        raise NoLayout
    return Slot(number, end - number, "s")


def only(one: Slot | None, other: Slot | None) -> Slot | None:
    """Return the one of two that there is, or none.

    Raises:
        NoLayout: There are both.
    """
    if one is not None and other is not None:
        raise NoLayout
    return one or other


def length_at(body: bytes, position: int) -> tuple[int, int]:
    """Read a length of at most four bytes: it and the position after it; -1 if there is none."""
    value = 0
    for place, byte in enumerate(body[position : position + 4]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    return -1, position


def with_length(tag: int, length: int) -> bytes:
    """Encode the tag and the length of a field, whose content follows."""
    head = bytearray([tag])
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def _after_varint(body: bytes, position: int, end: int) -> int:
    for place in range(position, min(end, position + 10)):
        if body[place] < 0x80:
            return place + 1
    raise NoLayout
