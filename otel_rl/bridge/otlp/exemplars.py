"""Reads exemplars by column: a few calls read times, values and steps of a whole point."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, cast

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar

from otel_rl.bridge.otlp.attributes import step_of
from otel_rl.bridge.otlp.layouts import Layouts

# Tags of opentelemetry/proto/metrics/v1/metrics.proto: field number << 3 | wire type.
_TIME, _DOUBLE, _INT = 0x11, 0x19, 0x31
_SPAN_ID, _TRACE_ID, _ATTRIBUTE = 0x22, 0x2A, 0x3A

_LAYOUTS: Final = Layouts(
    {_TIME: "Q", _DOUBLE: "d", _INT: "q"},
    {_TIME: "time", _DOUBLE: "value", _INT: "value"},
    required=("time", "value"),
    texts=(_ATTRIBUTE,),
    skipped=(_SPAN_ID, _TRACE_ID),
)

# An attribute with a step has 35 bytes. Longer ones are not cached, so that senders cannot fill the
# memory.
_MAX_STEP_BYTES = 64


class ExemplarColumns(NamedTuple):
    """Measurements in the order of the point. All columns have the same length.

    Attributes:
        times_ns: Time of each measurement; 0 where the sender gave none.
        values: Integers stay integers, so that sums of them are exact.
        steps: Step of each measurement; None where there is none.
    """

    times_ns: Sequence[int]
    values: Sequence[float]
    steps: Sequence[int | None]


def read_exemplars(exemplars: Sequence[bytes]) -> ExemplarColumns:
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
    """Read exemplars of one length; there is at least one."""
    found = _LAYOUTS.read(run)
    if found is None:
        return _by_message(run)
    (places, columns), steps = (found.layout.places, found.columns), None
    for place in places.get(_ATTRIBUTE, ()):
        of_column = _steps(cast("tuple[bytes, ...]", columns[place]))
        steps = of_column if steps is None else list(map(_first, steps, of_column))
    (time,), (value,) = places[_TIME], places.get(_DOUBLE) or places[_INT]
    return ExemplarColumns(
        cast("tuple[int, ...]", columns[time]),
        cast("tuple[float, ...]", columns[value]),
        [None] * len(run) if steps is None else steps,
    )


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
    """Cached steps of attributes that were read together."""

    attributes: Sequence[bytes]
    steps: Sequence[int | None]


# Those that were read last. Any thread may replace them.
_last: list[_Steps] = [_Steps((), ())]


def _steps(attributes: Sequence[bytes]) -> Sequence[int | None]:
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
