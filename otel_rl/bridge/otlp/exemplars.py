"""Reads exemplars by column: times, values and steps of a whole point in a few calls.

The exemplars of a point nearly always have the same layout: the same fields in the same order with
the same lengths. One of them is walked to find the layout; then ``struct`` reads the run, and every
tag and length is compared with that one's, a column at a time. Exemplars that do not fit are parsed
as messages. Both ways give the same result for any sender: SDKs, collectors and otel_rl order the
fields differently.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar

from otel_rl.bridge.otlp.attributes import step_of

__all__ = ["ExemplarColumns", "read_exemplars"]

# Tags of opentelemetry/proto/metrics/v1/metrics.proto: field number << 3 | wire type.
_TIME, _DOUBLE, _INT = 0x11, 0x19, 0x31
_SPAN_ID, _TRACE_ID, _ATTRIBUTE = 0x22, 0x2A, 0x3A

_EIGHT_BYTES = {_TIME: "Q", _DOUBLE: "d", _INT: "q"}

_MAX_KNOWN_BYTES = 512  # bounds the cache; longer exemplars are walked each time

# An attribute with a step has 35 bytes. Longer ones are not cached, so that senders cannot fill the
# memory.
_MAX_STEP_BYTES = 64


class ExemplarColumns(NamedTuple):
    """Measurements in the order of the point. All columns have the same length.

    Attributes:
        times_ns: 0 where the sender gave none.
        values: Integers stay integers, so that sums of them are exact.
        steps: None where there is none.
    """

    times_ns: Sequence[int]
    values: Sequence[float]
    steps: Sequence[int | None]


def read_exemplars(exemplars: Sequence[bytes]) -> ExemplarColumns:
    """Read serialized exemplars.

    Raises:
        DecodeError: One of them cannot be parsed.
    """
    if len(set(map(len, exemplars))) == 1:
        return _read_run(exemplars)
    times_ns: list[int] = []
    values: list[float] = []
    steps: list[int | None] = []
    for _, run in groupby(exemplars, len):
        columns = _read_run(list(run))
        times_ns += columns.times_ns
        values += columns.values
        steps += columns.steps
    return ExemplarColumns(times_ns, values, steps)


def _read_run(run: Sequence[bytes]) -> ExemplarColumns:
    """Read exemplars of one length, at least one."""
    length = len(run[0])
    known = _known.get(length)
    columns = known.columns(run) if known is not None else None
    if columns is None:
        layout = _layout(run[0])
        if layout is not None:
            columns = layout.columns(run)
            if length <= _MAX_KNOWN_BYTES:
                _known[length] = layout
    return _by_message(run) if columns is None else columns


@dataclass(frozen=True, slots=True)
class _Layout:
    """Memory layout of exemplars of one length.

    Attributes:
        structure: Reads one exemplar without tags and lengths.
        fixed: (place, byte) of each byte of these.
        time: Its column.
        value: Its column.
        attributes: Columns that are serialized ``KeyValue``.
    """

    structure: struct.Struct
    fixed: Sequence[tuple[int, bytes]]
    time: int
    value: int
    attributes: Sequence[int]

    def columns(self, run: Sequence[bytes]) -> ExemplarColumns | None:
        """Read the run by column; None if one of them has another layout."""
        joined, length = b"".join(run), self.structure.size
        for place, expected in self.fixed:
            if joined[place::length].count(expected) != len(run):
                return None
        columns = list(zip(*self.structure.iter_unpack(joined)))  # noqa: B905  # equal
        steps: Sequence[int | None] = [None] * len(run)
        for column in self.attributes:
            found = _steps(columns[column])
            steps = found if len(self.attributes) == 1 else list(map(_first, steps, found))
        return ExemplarColumns(columns[self.time], columns[self.value], steps)


# The last layout seen of each length. Any thread may replace an entry.
_known: dict[int, _Layout] = {}


def _layout(exemplar: bytes) -> _Layout | None:
    """Find the layout of a message with one time and one value; None for anything unusual."""
    form, fixed, places, attributes = ["<"], list[tuple[int, bytes]](), {}, []
    column = place = 0
    for tag, head, length in _fields(exemplar):
        fixed.extend((place + n, head[n : n + 1]) for n in range(len(head)))
        form.append(f"{len(head)}x")
        place += len(head) + length
        if tag in _EIGHT_BYTES:
            name = "time" if tag == _TIME else "value"
            if name in places:
                return None
            places[name] = column
            form.append(_EIGHT_BYTES[tag])
        elif tag == _ATTRIBUTE:
            attributes.append(column)
            form.append(f"{length}s")
        elif tag in {_SPAN_ID, _TRACE_ID}:
            form.append(f"{length}x")
            continue
        else:
            return None
        column += 1
    structure = struct.Struct("".join(form))
    if len(places) < 2 or structure.size != len(exemplar):
        return None
    return _Layout(structure, fixed, places["time"], places["value"], attributes)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield each field's tag, the bytes before its payload, and the payload's length."""
    position = 0
    while position < len(message):
        tag = message[position]
        length, end_of_head = 8, position + 1
        if tag not in _EIGHT_BYTES:
            # A length has one or two bytes; a longer one exceeds the message and is refused.
            lengths = message[position + 1 : position + 3]
            if len(lengths) == 2 and lengths[0] >= 0x80:
                length, end_of_head = lengths[0] & 0x7F | lengths[1] << 7, position + 3
            else:
                length, end_of_head = (lengths[0] if lengths else 0), position + 2
        yield tag, message[position:end_of_head], length
        position = end_of_head + length


def _by_message(run: Iterable[bytes]) -> ExemplarColumns:
    times_ns: list[int] = []
    values: list[float] = []
    steps: list[int | None] = []
    for serialized in run:
        exemplar = Exemplar.FromString(serialized)
        times_ns.append(exemplar.time_unix_nano)
        is_int = exemplar.WhichOneof("value") == "as_int"
        values.append(exemplar.as_int if is_int else exemplar.as_double)
        steps.append(step_of(exemplar.filtered_attributes))
    return ExemplarColumns(times_ns, values, steps)


def _read_step(attribute: bytes) -> int | None:
    return step_of([KeyValue.FromString(attribute)])


# Every series of an export has the same steps, so most of them are cached.
_step = lru_cache(maxsize=1 << 16)(_read_step)


class _Steps(NamedTuple):
    """Steps of attributes that were read together."""

    attributes: Sequence[bytes]
    steps: Sequence[int | None]


# Those that were read last. Any thread may replace them.
_last: list[_Steps] = [_Steps((), ())]


def _steps(attributes: Sequence[bytes]) -> Sequence[int | None]:
    """Return the step in each of these attributes of one length."""
    last = _last[0]
    if last.attributes == attributes:
        return last.steps
    if len(attributes[0]) > _MAX_STEP_BYTES:
        return tuple(map(_read_step, attributes))
    steps = tuple(map(_step, attributes))
    _last[0] = _Steps(attributes, steps)
    return steps


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
