"""Finds the places of times, values and steps in a serialized ``ResourceMetrics``.

Fields may have any order: the Collector writes them from the last to the first.

A strict reader: a field that is unknown, repeated or of another kind than those named here means
that there is no layout, and that the request is parsed as any other. So two bodies of one layout
that are equal outside of the found places differ in these numbers only.
"""

from dataclasses import dataclass, field

from otel_rl.bridge.otlp.shapes.fields import (
    I64,
    LEN,
    VARINT,
    NoLayout,
    Slot,
    integer_slot,
    key_bytes,
    only,
    strict_fields,
)
from otel_rl.semconv import names

__all__ = ["MAX_BODY_BYTES", "Layout", "PointPlaces", "SharePlaces", "SumPlaces", "layout_of"]

MAX_BODY_BYTES = 1 << 16
"""Longer bodies have no layout: parsing them costs little for each of their measurements."""

# Field numbers of opentelemetry/proto/metrics/v1/metrics.proto.
_SCOPE_METRICS, _METRICS, _GAUGE, _SUM, _POINTS = 2, 2, 5, 7, 1
_TEMPORALITY, _IS_MONOTONIC = 2, 3  # of a sum
_SCOPE, _SCHEMA_URL = 1, 3
_METRIC_TEXTS = (1, 2, 3)  # name, description, unit
_ATTRIBUTES, _START, _TIME, _AS_DOUBLE, _EXEMPLARS, _AS_INT, _FLAGS = 7, 2, 3, 4, 5, 6, 8
_EXEMPLAR_TIME, _EXEMPLAR_DOUBLE, _SPAN_ID, _TRACE_ID = 2, 3, 4, 5
_EXEMPLAR_INT, _FILTERED = 6, 7

_NO_VALUE = 1  # flag of a point

_STEP_NAME = names.RL_LOOP_ITERATION.encode()
_STEP, _SHARE, _DURATION = -1, -2, -3  # no field numbers
_MARKS = {
    key_bytes(name): mark
    for name, mark in (
        (names.RL_LOOP_ITERATION, _STEP),
        (names.OTEL_RL_STEP_SHARE, _SHARE),
        (names.OTEL_RL_STEP_DURATION, _DURATION),
    )
}


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


@dataclass(frozen=True, slots=True)
class SumPlaces:
    """Places of the numbers of one point of a sum; None where it has none.

    Attributes:
        start: Start of its interval.
        time: Its own time.
        value: Of the point.
        exemplar_times: Of its exemplars.
    """

    start: Slot | None
    time: Slot | None
    value: Slot
    exemplar_times: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class SharePlaces:
    """Places of the numbers of an exemplar that tells what a counter counted in a step.

    Attributes:
        time: End of the step.
        value: What was counted.
        step: The step.
        share: Time since the series' share before.
        duration: Of the step; None if unknown.
    """

    time: Slot
    value: Slot
    step: Slot
    share: Slot
    duration: Slot | None


@dataclass(slots=True)
class Layout:
    """Places of all numbers of a body.

    Attributes:
        slots: Ascending, not overlapping.
        points: Of gauges, in the order of the body.
        sums: Points of sums, in the order of the body.
        shares: Of their exemplars, in the order of the body.
        edges: Starts of the scopes, and of each field in them, and ends of these.
        scopes: Start and end of the ``InstrumentationScope`` of each scope that has one, by the
            start of the scope.
    """

    slots: list[Slot] = field(default_factory=list)
    points: list[PointPlaces] = field(default_factory=list)
    sums: list[SumPlaces] = field(default_factory=list)
    shares: list[SharePlaces] = field(default_factory=list)
    edges: set[int] = field(default_factory=set)
    scopes: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def has_points(self) -> bool:
        """Return whether there is anything to read."""
        return bool(self.points or self.sums)


def layout_of(body: bytes) -> Layout | None:
    """Return the layout of a body: ``ResourceMetrics`` without its resource.

    None unless it is nothing but sums, and gauges whose points have at most one exemplar. The only
    attributes of an exemplar are the step, and the marks of what was counted in it.
    """
    if len(body) > MAX_BODY_BYTES:
        return None
    layout = Layout()
    try:
        _read_body(body, layout)
    except NoLayout:
        return None
    layout.slots.sort(key=lambda slot: slot.start)
    return layout


def _read_body(body: bytes, layout: Layout) -> None:
    tag = 0
    for number, kind, start, end in strict_fields(body, 0, len(body)):
        if (number, kind) == (_SCOPE_METRICS, LEN):
            layout.edges |= {tag, start}
            _read_scope(body, tag, start, end, layout)
        elif (number, kind) != (_SCHEMA_URL, LEN):
            raise NoLayout
        tag = end


def _read_scope(body: bytes, tag: int, start: int, end: int, layout: Layout) -> None:
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        layout.edges.add(end_of)
        if (number, kind) == (_METRICS, LEN):
            _read_metric(body, start_of, end_of, layout)
        elif (number, kind) == (_SCOPE, LEN) and tag not in layout.scopes:
            layout.scopes[tag] = start_of, end_of
        elif (number, kind) != (_SCHEMA_URL, LEN):
            raise NoLayout


def _read_metric(body: bytes, start: int, end: int, layout: Layout) -> None:
    has_data = False
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        if kind == LEN and number in (_GAUGE, _SUM) and not has_data:
            has_data = True
            (_read_gauge if number == _GAUGE else _read_sum)(body, start_of, end_of, layout)
        elif kind != LEN or number not in _METRIC_TEXTS:
            raise NoLayout


def _read_gauge(body: bytes, start: int, end: int, layout: Layout) -> None:
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        if (number, kind) != (_POINTS, LEN):
            raise NoLayout
        _read_point(body, start_of, end_of, layout)


def _read_point(body: bytes, start: int, end: int, layout: Layout) -> None:
    found: dict[int, Slot] = {}
    exemplar: dict[int, Slot] | None = None
    flags: int | None = None
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        if (number, kind) == (_ATTRIBUTES, LEN):
            if _STEP_NAME in body[start_of:end_of]:  # the step of another SDK
                raise NoLayout
        elif (number, kind) == (_EXEMPLARS, LEN) and exemplar is None:
            exemplar = _read_exemplar(body, start_of, end_of)
        elif (number, kind) == (_FLAGS, VARINT) and flags is None and end_of == start_of + 1:
            flags = body[start_of]
        else:
            _add_number(found, number, kind, start_of, _POINT_NUMBERS)
    value = only(found.get(_AS_DOUBLE), found.get(_AS_INT))
    has_value = not (flags or 0) & _NO_VALUE
    if has_value != (value is not None) or (not has_value and exemplar is not None):
        raise NoLayout
    measured, step = found.get(_TIME), None
    if exemplar is not None:
        measured, step = exemplar.get(_EXEMPLAR_TIME), exemplar.get(_STEP)
        value = only(exemplar.get(_EXEMPLAR_DOUBLE), exemplar.get(_EXEMPLAR_INT))
        if value is None or measured is None or _SHARE in exemplar or _DURATION in exemplar:
            raise NoLayout
        layout.slots += exemplar.values()
    layout.slots += found.values()
    layout.points.append(
        PointPlaces(has_value, found.get(_START), found.get(_TIME), measured, value, step)
    )


def _read_sum(body: bytes, start: int, end: int, layout: Layout) -> None:
    flags: set[int] = set()
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        if (number, kind) == (_POINTS, LEN):
            _read_sum_point(body, start_of, end_of, layout)
        elif kind == VARINT and number in (_TEMPORALITY, _IS_MONOTONIC) and number not in flags:
            flags.add(number)
        else:
            raise NoLayout


def _read_sum_point(body: bytes, start: int, end: int, layout: Layout) -> None:
    found: dict[int, Slot] = {}
    exemplars: list[dict[int, Slot]] = []
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        if (number, kind) == (_ATTRIBUTES, LEN):
            if _STEP_NAME in body[start_of:end_of]:  # the step of another SDK
                raise NoLayout
        elif (number, kind) == (_EXEMPLARS, LEN):
            exemplars.append(_read_exemplar(body, start_of, end_of))
        else:
            _add_number(found, number, kind, start_of, _POINT_NUMBERS)
    value = only(found.get(_AS_DOUBLE), found.get(_AS_INT))
    times = tuple([slot for one in exemplars if (slot := one.get(_EXEMPLAR_TIME)) is not None])
    if value is None or len(times) < len(exemplars):
        raise NoLayout
    layout.shares += [_share(one) for one in exemplars if _SHARE in one or _DURATION in one]
    for slots in (*exemplars, found):
        layout.slots += slots.values()
    layout.sums.append(SumPlaces(found.get(_START), found.get(_TIME), value, times))


def _share(exemplar: dict[int, Slot]) -> SharePlaces:
    value = only(exemplar.get(_EXEMPLAR_DOUBLE), exemplar.get(_EXEMPLAR_INT))
    step, share = exemplar.get(_STEP), exemplar.get(_SHARE)
    if value is None or step is None or share is None:
        raise NoLayout
    return SharePlaces(exemplar[_EXEMPLAR_TIME], value, step, share, exemplar.get(_DURATION))


def _read_exemplar(body: bytes, start: int, end: int) -> dict[int, Slot]:
    found: dict[int, Slot] = {}
    for number, kind, start_of, end_of in strict_fields(body, start, end):
        if kind == LEN and number in (_SPAN_ID, _TRACE_ID) and number not in found:
            found[number] = Slot(start_of, end_of - start_of, "x")
        elif (number, kind) == (_FILTERED, LEN):
            _add_mark(found, body, start_of, end_of)
        else:
            _add_number(found, number, kind, start_of, _EXEMPLAR_NUMBERS)
    return found


def _add_mark(found: dict[int, Slot], body: bytes, start: int, end: int) -> None:
    """Add the place of the integer in an attribute of an exemplar."""
    encoded = body[start:end]
    for key, mark in _MARKS.items():
        if mark not in found and (encoded.startswith(key) or encoded.endswith(key)):
            found[mark] = integer_slot(body, start, end, key)
            return
    raise NoLayout


def _add_number(
    found: dict[int, Slot], number: int, kind: int, start: int, numbers: dict[int, str]
) -> None:
    """Add the place of a number of eight bytes."""
    if kind != I64 or number not in numbers or number in found:
        raise NoLayout
    found[number] = Slot(start, 8, numbers[number])


_POINT_NUMBERS = {_START: "Q", _TIME: "Q", _AS_DOUBLE: "d", _AS_INT: "q"}
_EXEMPLAR_NUMBERS = {_EXEMPLAR_TIME: "Q", _EXEMPLAR_DOUBLE: "d", _EXEMPLAR_INT: "q"}
