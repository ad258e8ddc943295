"""What a request will become when it is parsed, found out before memory is spent on it.

A message can be two bytes on the wire and about 80 in memory once parsed, so 16 MiB of empty data
points take 670 MiB. Bytes alone are therefore no bound; this walk over the wire format is. It costs
a few hundred nanoseconds for each message or string, so their number is what bounds its time, too:
numbers, which are cheap to parse, are skipped by a regular expression, thousands at a time.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor

from otel_rl.errors import MalformedRequest, RequestTooLarge

__all__ = ["check_message_count", "count_messages", "fields"]

# The wire types of https://protobuf.dev/programming-guides/encoding/#structure
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5

_MIN_MESSAGE_BYTES = 2  # a tag and a length of 0

# Text takes a fifth of the memory of a message. Attributes have one for every message.
_STRINGS_PER_MESSAGE = 2

# The expression keeps the interpreter to itself while it runs: a few milliseconds for so much.
_STRIDE_BYTES = 1 << 18


def check_message_count(payload: bytes, root: Descriptor, max_messages: int) -> None:
    """Refuse a payload that would become more than ``max_messages`` messages when parsed.

    A payload too short to hold so many is not looked at, which is nearly every one.

    Args:
        payload: A serialized message of type ``root``.
        root: Says which fields are messages.
        max_messages: Counts messages at every depth. Strings are held to a multiple of it.

    Raises:
        RequestTooLarge: There are more.
        MalformedRequest: The bytes are no protobuf.
    """
    if len(payload) < max_messages * _MIN_MESSAGE_BYTES:
        return
    left, strings_left = max_messages, max_messages * _STRINGS_PER_MESSAGE
    open_messages = [(root, 0, len(payload))]
    while open_messages:
        descriptor, position, end = open_messages.pop()
        children = _submessages(descriptor.full_name, descriptor)
        while position < end:
            stride = min(end, position + _STRIDE_BYTES)
            position = _skip_numbers(payload, position, stride)
            if position == end:
                break
            tag, position = _varint(payload, position, end)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise MalformedRequest("A field has no number.")
            if wire_type != _LEN:
                # One at the end of a stride, or one that is cut off.
                position = _after_number(payload, position, end, wire_type)
                continue
            length, position = _varint(payload, position, end)
            if position + length > end:
                raise MalformedRequest("A field is longer than the message that holds it.")
            child = children.get(number)
            if child is not None:
                left -= 1
                open_messages.append((child, position, position + length))
            else:
                strings_left -= 1
            position += length
            if left < 0:
                raise _too_many(max_messages, "messages")
            if strings_left < 0:
                raise _too_many(max_messages * _STRINGS_PER_MESSAGE, "strings")


def count_messages(payload: bytes, root: Descriptor, types: Collection[str]) -> int:
    """How many messages of ``types`` a payload holds, as far as it can be walked.

    Args:
        payload: A serialized message of type ``root``, not necessarily a sound one.
        root: Says which fields are messages.
        types: Full names. What is within a message of these types is not looked at.
    """
    found = 0
    open_messages = [(root, payload)]
    while open_messages:
        descriptor, message = open_messages.pop()
        children = _submessages(descriptor.full_name, descriptor)
        try:
            for number, _, start, end in fields(message):
                child = children.get(number)
                if child is None:
                    continue
                if child.full_name in types:
                    found += 1
                else:
                    open_messages.append((child, message[start:end]))
        except MalformedRequest:
            continue
    return found


def fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message that have a length: number, start, start of the content, end.

    Raises:
        MalformedRequest: What comes next is no field.
    """
    position, end = 0, len(message)
    while position < end:
        start = position
        tag, position = _varint(message, position, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise MalformedRequest("A field has no number.")
        if wire_type != _LEN:
            position = _after_number(message, position, end, wire_type)
            continue
        length, content = _varint(message, position, end)
        position = content + length
        if position > end:
            raise MalformedRequest("A field is longer than the message that holds it.")
        yield number, start, content, position


def _too_many(n: int, what: str) -> RequestTooLarge:
    return RequestTooLarge(
        f"The request holds more than {n} {what}.",
        hint="Send smaller batches, or raise receive.max_messages_per_request.",
    )


def _skip_numbers(payload: bytes, position: int, end: int) -> int:
    """The position after all numbers that stand there one after another."""
    found = _NUMBERS.match(payload, position, end)
    return position if found is None else found.end()


def _after_number(payload: bytes, position: int, end: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        _, position = _varint(payload, position, end)
    elif wire_type == _I64:
        position += 8
    elif wire_type == _I32:
        position += 4
    else:
        raise MalformedRequest(f"Wire type {wire_type} is not part of OTLP.")
    if position > end:
        raise MalformedRequest("A number is cut off.")
    return position


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


def _tag_of(wire_type: int) -> bytes:
    """An expression for the tag of a field of ``wire_type``, of any number."""
    starts = [byte for byte in range(8, 256) if byte & 7 == wire_type]
    short = b"".join(b"\\x%02x" % byte for byte in starts if byte < 0x80)
    long = b"".join(b"\\x%02x" % byte for byte in starts if byte >= 0x80)
    return rb"(?:[%b]|[%b][\x80-\xff]{0,8}+[\x00-\x7f])" % (short, long)


_NUMBERS = re.compile(
    rb"(?:%b[\x80-\xff]{0,9}+[\x00-\x7f]|%b.{8}|%b.{4})*+"
    % (_tag_of(_VARINT), _tag_of(_I64), _tag_of(_I32)),
    re.DOTALL,
)
