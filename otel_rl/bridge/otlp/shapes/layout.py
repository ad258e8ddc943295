"""Finds the places of times, values and steps in the gauges of a serialized ``ResourceMetrics``.

Fields may have any order: the Collector writes them from the last to the first.

A strict reader: a field that is unknown, repeated or of another kind than those named here means
that there is no layout, and that the request is parsed as any other. So two bodies of one layout
that are equal outside of the found places differ in these numbers only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from otel_rl.semconv import names

__all__ = ["MAX_BODY_BYTES", "Layout", "PointPlaces", "Slot", "layout_of"]

MAX_BODY_BYTES = 1 << 16
"""Longer bodies have no layout: parsing them costs little for each of their measurements."""

# Field numbers of opentelemetry/proto/metrics/v1/metrics.proto.
_SCOPE_METRICS, _METRICS, _GAUGE, _POINTS = 2, 2, 5, 1
_SCOPE, _SCHEMA_URL = 1, 3
_METRIC_TEXTS = (1, 2, 3)  # name, description, unit
_ATTRIBUTES, _START, _TIME, _AS_DOUBLE, _EXEMPLARS, _AS_INT, _FLAGS = 7, 2, 3, 4, 5, 6, 8
_EXEMPLAR_TIME, _EXEMPLAR_DOUBLE, _SPAN_ID, _TRACE_ID = 2, 3, 4, 5
_EXEMPLAR_INT, _FILTERED = 6, 7

_VARINT, _I64, _LEN = 0, 1, 2
_NO_VALUE = 1  # flag of a point

# The fields of an attribute with an integer step: key, and an AnyValue of a few bytes.
_STEP_NAME = names.RL_LOOP_ITERATION.encode()
_STEP_KEY = b"\x0a%c%b" % (len(_STEP_NAME), _STEP_NAME)
_ANY_VALUE, _INT_VALUE = 0x12, 0x18
_MAX_STEP_BYTES = 9  # of one with ten, a negative one, not every last byte is valid


class _NoLayout(Exception):
    """The body is not of the kind that is read here."""


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


@dataclass(frozen=True, slots=True)
class PointPlaces:
    """Places of the numbers of one gauge point; None where it has none.

    Attributes:
        has_value: False for a point that is marked as having no value.
        start: Start of its interval.
        time: Its own time.
        measured: Time of its measurement: that of the exemplar, or else its own.
        value: Of its measurement.
        step: Of its measurement.
    """

    has_value: bool
    start: Slot | None
    time: Slot | None
    measured: Slot | None
    value: Slot | None
    step: Slot | None


@dataclass(slots=True)
class Layout:
    """Places of all numbers of a body.

    Attributes:
        slots: Ascending, not overlapping.
        points: In the order of the body.
    """

    slots: list[Slot] = field(default_factory=list)
    points: list[PointPlaces] = field(default_factory=list)


def layout_of(body: bytes) -> Layout | None:
    """Return the layout of a body: ``ResourceMetrics`` without its resource.

    None unless it is nothing but gauges whose points have at most one exemplar, and that one at
    most one attribute: the step.
    """
    if len(body) > MAX_BODY_BYTES:
        return None
    layout = Layout()
    try:
        _read_body(body, layout)
    except _NoLayout:
        return None
    layout.slots.sort(key=lambda slot: slot.start)
    return layout


def _read_body(body: bytes, layout: Layout) -> None:
    for number, kind, start, end in _fields(body, 0, len(body)):
        if (number, kind) == (_SCOPE_METRICS, _LEN):
            _read_scope(body, start, end, layout)
        elif (number, kind) != (_SCHEMA_URL, _LEN):
            raise _NoLayout


def _read_scope(body: bytes, start: int, end: int, layout: Layout) -> None:
    for number, kind, start_of, end_of in _fields(body, start, end):
        if (number, kind) == (_METRICS, _LEN):
            _read_metric(body, start_of, end_of, layout)
        elif kind != _LEN or number not in (_SCOPE, _SCHEMA_URL):
            raise _NoLayout


def _read_metric(body: bytes, start: int, end: int, layout: Layout) -> None:
    gauges = 0
    for number, kind, start_of, end_of in _fields(body, start, end):
        if (number, kind) == (_GAUGE, _LEN):
            gauges += 1
            for inner, kind_of, start_in, end_in in _fields(body, start_of, end_of):
                if (inner, kind_of) != (_POINTS, _LEN):
                    raise _NoLayout
                _read_point(body, start_in, end_in, layout)
        elif kind != _LEN or number not in _METRIC_TEXTS:
            raise _NoLayout
    if gauges != 1:
        raise _NoLayout


def _read_point(body: bytes, start: int, end: int, layout: Layout) -> None:
    found: dict[int, Slot] = {}
    exemplar: dict[int, Slot] | None = None
    flags: int | None = None
    for number, kind, start_of, end_of in _fields(body, start, end):
        if (number, kind) == (_ATTRIBUTES, _LEN):
            if _STEP_NAME in body[start_of:end_of]:  # the step of another SDK
                raise _NoLayout
        elif (number, kind) == (_EXEMPLARS, _LEN) and exemplar is None:
            exemplar = _read_exemplar(body, start_of, end_of)
        elif (number, kind) == (_FLAGS, _VARINT) and flags is None and end_of == start_of + 1:
            flags = body[start_of]
        elif kind == _I64 and number in _POINT_NUMBERS and number not in found:
            found[number] = Slot(start_of, 8, _POINT_NUMBERS[number])
        else:
            raise _NoLayout
    value = _only(found.get(_AS_DOUBLE), found.get(_AS_INT))
    has_value = not (flags or 0) & _NO_VALUE
    if has_value != (value is not None) or (not has_value and exemplar is not None):
        raise _NoLayout
    measured, step = found.get(_TIME), None
    if exemplar is not None:
        measured, step = exemplar.get(_EXEMPLAR_TIME), exemplar.get(_FILTERED)
        value = _only(exemplar.get(_EXEMPLAR_DOUBLE), exemplar.get(_EXEMPLAR_INT))
        if value is None or measured is None:
            raise _NoLayout
        layout.slots += exemplar.values()
    layout.slots += found.values()
    layout.points.append(
        PointPlaces(has_value, found.get(_START), found.get(_TIME), measured, value, step)
    )


def _read_exemplar(body: bytes, start: int, end: int) -> dict[int, Slot]:
    found: dict[int, Slot] = {}
    for number, kind, start_of, end_of in _fields(body, start, end):
        if number in found:
            raise _NoLayout
        if kind == _I64 and number in _EXEMPLAR_NUMBERS:
            found[number] = Slot(start_of, 8, _EXEMPLAR_NUMBERS[number])
        elif kind == _LEN and number in (_SPAN_ID, _TRACE_ID):
            found[number] = Slot(start_of, end_of - start_of, "x")
        elif (number, kind) == (_FILTERED, _LEN):
            found[number] = _step_slot(body, start_of, end_of)
        else:
            raise _NoLayout
    return found


def _step_slot(body: bytes, start: int, end: int) -> Slot:
    """Return the place of the integer in an attribute that is a step and nothing else.

    Its key is the first field, or the last one, as the Collector writes it.
    """
    if body.startswith(_STEP_KEY, start):
        start += len(_STEP_KEY)
    elif body.endswith(_STEP_KEY, start, end):
        end -= len(_STEP_KEY)
    else:
        raise _NoLayout
    value = start + 1
    if end < value + 3 or (body[start], body[value + 1]) != (_ANY_VALUE, _INT_VALUE):
        raise _NoLayout
    step = value + 2
    is_one = body[value] == end - value - 1 and _after_varint(body, step, end) == end
    if not is_one or end - step > _MAX_STEP_BYTES:
        raise _NoLayout
    return Slot(step, end - step, "s")


def _only(one: Slot | None, other: Slot | None) -> Slot | None:
    if one is not None and other is not None:
        raise _NoLayout
    return one or other


def _fields(body: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message with tags of one byte: number, wire type, content's range."""
    while position < end:
        tag = body[position]
        kind, start = tag & 7, position + 1
        if tag >= 0x80 or tag < 8:
            raise _NoLayout
        if kind == _LEN:
            after = _after_varint(body, start, min(end, start + 4))
            position = after + _varint(body[start:after])
            start = after
        elif kind == _I64:
            position = start + 8
        elif kind == _VARINT:
            position = _after_varint(body, start, end)
        else:
            raise _NoLayout
        if position > end:
            raise _NoLayout
        yield tag >> 3, kind, start, position


def _after_varint(body: bytes, position: int, end: int) -> int:
    for place in range(position, min(end, position + 10)):
        if body[place] < 0x80:
            return place + 1
    raise _NoLayout


def _varint(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))


_POINT_NUMBERS = {_START: "Q", _TIME: "Q", _AS_DOUBLE: "d", _AS_INT: "q"}
_EXEMPLAR_NUMBERS = {_EXEMPLAR_TIME: "Q", _EXEMPLAR_DOUBLE: "d", _EXEMPLAR_INT: "q"}
