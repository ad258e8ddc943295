"""Counts the messages of a request before it is parsed.

A message can take two bytes on the wire and about 80 in memory, so 16 MiB of empty data points take
670 MiB. A bound on bytes alone is therefore not enough; this walk over the wire format is. It costs
a few hundred nanoseconds for each message or string, so the bound on their number bounds the time
of the walk, too: regular expressions skip numbers, and rows of fields of one length, thousands at a
time.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from google.protobuf.descriptor import Descriptor

from otel_rl.errors import MalformedRequest, RequestTooLarge

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

# Kinds that are counted. Even empty parts take time.
_STRING, _OTHER = "strings", "messages"
_ITEM, _HOLDER = "data points, spans or log records", "resources, scopes and metrics"
_PARTS = {
    **dict.fromkeys(("NumberDataPoint", "HistogramDataPoint", "SummaryDataPoint"), _ITEM),
    **dict.fromkeys(("ExponentialHistogramDataPoint", "Span", "LogRecord"), _ITEM),
    **dict.fromkeys(("ResourceMetrics", "ScopeMetrics", "Metric"), _HOLDER),
    **dict.fromkeys(("ResourceSpans", "ScopeSpans", "ResourceLogs", "ScopeLogs"), _HOLDER),
}

# Rows of short fields are skipped by an expression of their own.
_MAX_HEAD_BYTES, _MAX_ROW_FIELD_BYTES = 3, 256

# The expression holds the interpreter lock while it runs: a few milliseconds for this much.
_STRIDE_BYTES = 1 << 18


def check_message_count(
    payload: bytes, root: Descriptor, max_messages: int, max_parts: int | None = None
) -> None:
    """Refuse a payload that would become more than ``max_messages`` messages when parsed.

    Nearly every payload is too short for that, and is not walked.

    Args:
        payload: A serialized message of type ``root``.
        root: Descriptor of the type, which tells which fields are messages.
        max_messages: Bound on messages at every depth, empty ones included. Strings are held to a
            multiple of this bound.
        max_parts: Bound on data points, spans and log records, and separately on resources, scopes
            and metrics. Defaults to ``max_messages``.

    Raises:
        RequestTooLarge: A bound is exceeded.
        MalformedRequest: The bytes are not protobuf.
    """
    if max_parts is None:
        max_parts = max_messages
    if len(payload) >= min(max_messages, max_parts) * _MIN_MESSAGE_BYTES:
        _walk(payload, root, _Counts(max_messages, max_parts))


def _walk(payload: bytes, root: Descriptor, counts: "_Counts") -> None:
    open_messages = [(_kind(root), 0, len(payload))]
    while open_messages:
        kind, position, end = open_messages.pop()
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
            child = kind.children.get(number)
            if child is not None and length:
                open_messages.append((child, content, position))
                counts.add(child.part, 1)
                continue
            # Exemplars, attributes and empty messages come in rows of one length.
            head = payload[start:content]
            if payload.startswith(head, position):
                position = _skip_row(payload, head, length, position, stride)
            n = (position - start) // (content - start + length)
            counts.add(_STRING if child is None else child.part, n)


class _Counts:
    """Counts messages, parts and strings up to their bounds. See ``check_message_count``."""

    def __init__(self, max_messages: int, max_parts: int) -> None:
        self._counts = {_STRING: 0, _OTHER: 0, _ITEM: 0, _HOLDER: 0}
        self._most = {
            _STRING: max_messages * _STRINGS_PER_MESSAGE,
            _OTHER: max_messages,
            _ITEM: max_parts,
            _HOLDER: max_parts,
        }
        self._max_messages = max_messages
        self._messages = 0

    def add(self, what: str, n: int) -> None:
        """Count the content of a field.

        Raises:
            RequestTooLarge: A bound is exceeded.
        """
        counts = self._counts
        counts[what] += n
        if what is not _STRING:
            self._messages += n
            if self._messages > self._max_messages:
                raise _too_many(self._max_messages, "messages")
        if counts[what] > self._most[what]:
            raise _too_many(self._most[what], what)


@dataclass(slots=True)
class _Kind:
    """A message type, as far as its messages are counted.

    Attributes:
        part: Kind of part that a message of this type counts as.
        children: Message types of the fields, by number; other fields are strings or numbers.
    """

    part: str
    children: Mapping[int, "_Kind"]


@cache
def _kind(descriptor: Descriptor) -> _Kind:
    known: dict[str, _Kind] = {}

    def of(message: Descriptor) -> _Kind:
        found = known.get(message.full_name)
        if found is None:
            children: dict[int, _Kind] = {}
            # Stored before its children, since types may be recursive.
            found = known[message.full_name] = _Kind(_PARTS.get(message.name, _OTHER), children)
            for number, child in _submessages(message.full_name, message).items():
                children[number] = of(child)
        return found

    return of(descriptor)


def count_messages(payload: bytes, root: Descriptor, types: Collection[str]) -> int:
    """Count the messages of ``types`` in a payload, as far as it can be walked."""
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
    """Yield the length-delimited fields of a message: number, start, content start, end.

    Raises:
        MalformedRequest: The next bytes are not a field.
    """
    position, end = 0, len(message)
    while position < end:
        start = position
        number, wire_type, position = _tag(message, position, end)
        if wire_type != _LEN:
            position = _after_number(message, position, end, wire_type)
            continue
        length, content = _varint(message, position, end)
        position = content + length
        if position > end:
            raise MalformedRequest("A field is longer than the message that holds it.")
        yield number, start, content, position


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


def _skip_row(payload: bytes, head: bytes, length: int, position: int, end: int) -> int:
    """Return the position after a row of fields with the same tag and length."""
    if len(head) > _MAX_HEAD_BYTES or length > _MAX_ROW_FIELD_BYTES:
        return position
    found = _row_of(head, length).match(payload, position, end)
    return position if found is None else found.end()


@lru_cache(maxsize=1 << 10)
def _row_of(head: bytes, length: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:%b.{%d})*+" % (re.escape(head), length), re.DOTALL)


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
def _submessages(_full_name: str, descriptor: Descriptor) -> Mapping[int, Descriptor]:
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
