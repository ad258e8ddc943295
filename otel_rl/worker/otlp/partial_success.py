"""Reads the answer to an export request, without the classes of protobuf: they take 3 MB.

The answers of all signals are the same bytes; only their fields are called differently:

    Export...ServiceResponse { partial_success = 1 }
    Export...PartialSuccess { rejected_... = 1, error_message = 2 }
"""

from collections.abc import Iterator
from typing import Final

__all__ = ["NotAnAnswer", "read_partial_success"]

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""By wire type."""

_LONGEST_VARINT: Final = 10
_INT64_SIGN: Final = 1 << 63


class NotAnAnswer(ValueError):
    """The bytes are no such message."""


def read_partial_success(body: bytes) -> tuple[int, str]:
    """Return the number of rejected items and the message of an answer.

    Raises:
        NotAnAnswer: The bytes are no answer.
    """
    rejected, message = 0, ""
    for number, value in _fields(body):
        if number != 1 or isinstance(value, int):
            continue
        for part, content in _fields(value):
            if part == 1 and isinstance(content, int):
                rejected = content - 2 * _INT64_SIGN if content & _INT64_SIGN else content
            elif part == 2 and isinstance(content, bytes):
                message = _text(content)
    return rejected, message


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise NotAnAnswer from error


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: an integer if it is a varint."""
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        number, wire_type = tag >> 3, tag & 7
        if not number or tag >> 32:
            raise NotAnAnswer
        if wire_type == _VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            length, place = _varint(message, place)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise NotAnAnswer
        place += length
        if place > end:
            raise NotAnAnswer
        yield number, message[place - length : place]


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return an unsigned 64-bit integer, and the place behind it."""
    value = 0
    for n, byte in enumerate(message[place : place + _LONGEST_VARINT]):
        value |= (byte & 127) << 7 * n
        if byte < 128:
            return value & (2 * _INT64_SIGN - 1), place + n + 1
    raise NotAnAnswer
