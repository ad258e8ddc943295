"""A request on the wire: counts its messages before it is parsed, and recovers its readable parts.

A message can take two bytes on the wire and about 80 in memory, so 16 MiB of empty data points take
670 MiB. A bound on bytes alone is therefore not enough; a walk over the wire format is. The walk
costs less than a microsecond for each message or string, so the bound on their number bounds its
time, too: a regular expression skips numbers, thousands at a time.

A collector joins requests of many processes. One text that is not UTF-8, or one value nested too
deep, would cost all of them their data: a collector drops a batch that is answered with 400. So
each resource of such a request is parsed by itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp.attributes import experiment_of, team_of
from otel_rl.bridge.receive.signal_specs import SignalSpec
from otel_rl.errors import MalformedRequest, RequestTooLarge
from otel_rl.records import ExperimentKey

SMALLER_BATCHES = (
    "Send smaller batches: max_export_batch_size of an SDK's exporter, send_batch_max_size of a "
    "Collector's batch processor."
)
"""Advice for the sender of a request over the bounds."""

# The wire types of https://protobuf.dev/programming-guides/encoding/#structure
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5

_MIN_MESSAGE_BYTES = 2  # a tag and a length of 0

# A text takes a fifth of the memory of a message. Every message of an attribute has one.
_STRINGS_PER_MESSAGE = 2

_FIRST = 1  # field number of resources in a request, and of the resource in such a part

# The expression holds the interpreter lock while it runs: a few milliseconds for this much.
_STRIDE_BYTES = 1 << 18


def check_message_count(payload: bytes, root: Descriptor, max_messages: int) -> None:
    """Refuse a payload that would become more than ``max_messages`` messages when parsed.

    Nearly every payload is too short for that, and is not walked.

    Args:
        payload: A serialized message of type ``root``.
        root: Descriptor of the type, which tells which fields are messages.
        max_messages: Bound on messages at every depth, empty ones included. Strings are held to a
            multiple of this bound.

    Raises:
        RequestTooLarge: A bound is exceeded.
        MalformedRequest: The bytes are not protobuf.
    """
    if len(payload) < max_messages * _MIN_MESSAGE_BYTES:
        return
    messages, strings, max_strings = 0, 0, max_messages * _STRINGS_PER_MESSAGE
    for kind in messages_in(payload, root):
        if kind is None:
            strings += 1
            if strings > max_strings:
                raise _too_many(max_strings, "strings")
        else:
            messages += 1
            if messages > max_messages:
                raise _too_many(max_messages, "messages")


def messages_in(payload: bytes, root: Descriptor) -> Iterator[Descriptor | None]:
    """Yield the type of each message in a payload, at every depth; None for a string.

    Raises:
        MalformedRequest: The next bytes are not protobuf.
    """
    open_messages = [(root, 0, len(payload))]
    while open_messages:
        holder, position, end = open_messages.pop()
        children = _submessages(holder)
        for number, _, content, after in fields(payload, position, end):
            child = children.get(number)
            if child is not None and content < after:
                open_messages.append((child, content, after))
            yield child


def fields(
    payload: bytes, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the length-delimited fields of a message: number, start, content start, end.

    Args:
        payload: Bytes that hold the message.
        position: Where the message begins.
        end: Where the message ends; None for the end of the bytes.

    Raises:
        MalformedRequest: The next bytes are not a field.
    """
    end = len(payload) if end is None else end
    while position < end:
        stride = min(end, position + _STRIDE_BYTES)
        found = _SHORT_HEAD.match(payload, position, stride)
        if found is not None:
            content = found.end()
            start, number, length = content - 2, payload[content - 2] >> 3, payload[content - 1]
        else:
            start, number, length, content = _long_head(payload, position, end, stride)
            if not number:  # only numbers, or a part of them
                position = content
                continue
        position = content + length
        if position > end:
            raise MalformedRequest("A field is longer than the message that holds it.")
        yield number, start, content, position


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """Unreadable part of a request, for one resource.

    Attributes:
        items: Number of points, spans or log records, as far as they can be counted; at least one.
        experiment: Experiment of the resource, if it can be read.
        team: Team that the resource names, if it can be read; else empty.
        is_wanted: Whether the part may hold anything that the bridge would keep.
    """

    items: int
    experiment: ExperimentKey | None
    team: str
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class PartialRequest:
    """A request without its unreadable parts.

    Attributes:
        payload: The readable rest.
        unreadable: The unreadable parts, at least one.
    """

    payload: bytes
    unreadable: Sequence[UnreadablePart]


def parse_partially(
    spec: SignalSpec, payload: bytes, max_messages: int, max_parts: int
) -> PartialRequest | None:
    """Split a malformed request into its readable and unreadable parts.

    Returns:
        None if nothing is readable, or the parts cannot be separated, as in a truncated request.

    Raises:
        RequestTooLarge: The request has too many parts.
    """
    readable: list[bytes] = []
    unreadable: list[UnreadablePart] = []
    is_wanted = False
    try:
        for number, start, content, end in fields(payload):
            part = payload[start:end]
            if len(readable) + len(unreadable) == max_parts:
                raise RequestTooLarge(
                    f"The request has more than {max_parts} parts.", hint=SMALLER_BATCHES
                )
            if number != _FIRST or _can_be_read(spec, part, max_messages):
                readable.append(part)
                is_wanted |= number == _FIRST
            else:
                unreadable.append(_unreadable(spec, part, payload[content:end]))
    except MalformedRequest:
        return None
    is_worth_it = is_wanted or not all(part.is_wanted for part in unreadable)
    return PartialRequest(b"".join(readable), unreadable) if unreadable and is_worth_it else None


def _can_be_read(spec: SignalSpec, part: bytes, max_messages: int) -> bool:
    try:
        check_message_count(part, spec.request.DESCRIPTOR, max_messages)
        spec.request.FromString(part)
    except (DecodeError, MalformedRequest, RequestTooLarge):
        return False
    return True


def _unreadable(spec: SignalSpec, part: bytes, content: bytes) -> UnreadablePart:
    items = 0
    with suppress(MalformedRequest):
        for kind in messages_in(part, spec.request.DESCRIPTOR):
            items += kind is not None and kind.full_name in spec.item_types
    is_wanted = not spec.markers or any(marker in part for marker in spec.markers)
    resource = _resource(content)
    return UnreadablePart(
        max(1, items), experiment_of(resource.attributes), team_of(resource.attributes), is_wanted
    )


def _resource(content: bytes) -> Resource:
    """Return the resource of a part; an empty one if it cannot be read."""
    try:
        for number, _, start, end in fields(content):
            if number == _FIRST:
                return Resource.FromString(content[start:end])
    except (DecodeError, MalformedRequest):
        pass
    return Resource()


def _too_many(n: int, what: str) -> RequestTooLarge:
    return RequestTooLarge(f"The request holds more than {n} {what}.", hint=SMALLER_BATCHES)


def _long_head(payload: bytes, position: int, end: int, stride: int) -> tuple[int, int, int, int]:
    """Find the next length-delimited field: its start, number, length and content start.

    The number is 0 if only numbers were left; the content start is then their end.
    """
    found = _NUMBERS.match(payload, position, stride)
    start = position if found is None else found.end()
    if start == end:
        return start, 0, 0, start
    number, wire_type, content = _tag(payload, start, end)
    if wire_type != _LEN:
        # A number at the end of a stride, or a truncated one.
        return start, 0, 0, _after_number(payload, content, end, wire_type)
    length, content = _varint(payload, content, end)
    return start, number, length, content


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


def _tag(payload: bytes, position: int, end: int) -> tuple[int, int, int]:
    tag, position = _varint(payload, position, end)
    if tag >> 3 == 0:
        raise MalformedRequest("A field has no number.")
    return tag >> 3, tag & 7, position


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
def _submessages(descriptor: Descriptor) -> Mapping[int, Descriptor]:
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }


def _tag_of(wire_type: int) -> bytes:
    """Build a regular expression for the tag of a field of ``wire_type``, with any number."""
    starts = [byte for byte in range(8, 256) if byte & 7 == wire_type]
    short = b"".join(b"\\x%02x" % byte for byte in starts if byte < 0x80)
    long = b"".join(b"\\x%02x" % byte for byte in starts if byte >= 0x80)
    return rb"(?:[%b]|[%b][\x80-\xff]{0,8}+[\x00-\x7f])" % (short, long)


_A_NUMBER = rb"%b[\x80-\xff]{0,9}+[\x00-\x7f]|%b.{8}|%b.{4}" % (
    _tag_of(_VARINT),
    _tag_of(_I64),
    _tag_of(_I32),
)

_NUMBERS = re.compile(rb"(?:%b)*+" % _A_NUMBER, re.DOTALL)

# Numbers, then a length-delimited field with one byte each of tag and length.
_SHORT_HEAD = re.compile(
    rb"(?:%b)*+[%b][\x00-\x7f]"
    % (_A_NUMBER, b"".join(b"\\x%02x" % byte for byte in range(8, 0x80) if byte & 7 == _LEN)),
    re.DOTALL,
)
