"""Single measurements to OTLP bytes, per ADR 0000: a gauge point with one exemplar for each.

The stock SDK builds and serialises a protobuf object per measurement; writing the bytes costs a
tenth of that. Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto:

    ExportMetricsServiceRequest { resource_metrics = 1 }
    ResourceMetrics { resource = 1, scope_metrics = 2, schema_url = 3 }
    ScopeMetrics { scope = 1, metrics = 2, schema_url = 3 }
    Metric { name = 1, description = 2, unit = 3, gauge = 5 { data_points = 1 } }
    NumberDataPoint { start = 2, time = 3, as_double = 4, exemplars = 5, as_int = 6, attrs = 7,
                      flags = 8 }
    Exemplar { time = 2, as_double = 3, span_id = 4, trace_id = 5, as_int = 6, filtered = 7 }
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import get_current_span

from otel_rl.records import Signal
from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker import wire
from otel_rl.worker.intervals import Intervals

__all__ = [
    "MAX_EXEMPLARS_PER_POINT",
    "MAX_REQUEST_BYTES",
    "Encoder",
    "Measurement",
    "Request",
    "Stream",
    "encode_heartbeat",
    "encode_resource",
]

MAX_EXEMPLARS_PER_POINT: Final = 1024
"""Keeps a point under 100 KB, so that requests can be cut at point borders."""

MAX_REQUEST_BYTES: Final = 3 << 20
"""gRPC servers refuse messages over 4 MiB by default; the rest is room for a collector's edits."""

_MAX_CACHED_ATTRIBUTE_SETS: Final = 4096
"""Bounds the cache when attribute values never repeat; it then only costs its look-up."""

_EXEMPLAR_DOUBLE = struct.Struct("<BQBd").pack  # time_unix_nano = 2, as_double = 3
_EXEMPLAR_INT = struct.Struct("<BQBq").pack  # time_unix_nano = 2, as_int = 6
_MEASURED_BYTES: Final = 18
"""Of both: two tags, a time and a value."""
_POINT_DOUBLE = struct.Struct("<BQBQBd").pack  # start_time_unix_nano = 2, time_unix_nano, as_double
_POINT_INT = struct.Struct("<BQBQBq").pack  # the same with as_int
_POINT_WITHOUT_VALUE = struct.Struct("<BQBB").pack  # time_unix_nano, flags = 8
_NO_RECORDED_VALUE: Final = 1  # DataPointFlags
_SPAN = struct.Struct(">BBQ").pack  # span_id = 4, 8 bytes
_TRACE = struct.Struct(">BBQQ").pack  # trace_id = 5, 16 bytes
_EXEMPLAR_HEADS: Final = [bytes((0x2A, n)) for n in range(128)]
"""Tag and length of ``NumberDataPoint.exemplars``. Ours have at most 84 bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One gauge as it stands on the wire. Equal by identity: the provider makes each once.

    Attributes:
        scope: The meter's scope, with its attributes.
        name: Metric name.
        unit: UCUM unit.
        description: For people.
        identity: Scope and name as on the wire: all by which a receiver tells it from others.
    """

    scope: InstrumentationScope
    name: str
    unit: str = ""
    description: str = ""
    identity: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", _scope(self.scope) + _metric_name(self.name))


@dataclass(frozen=True, slots=True)
class Request:
    """A serialized ``Export{Metrics,Logs}ServiceRequest``.

    Attributes:
        payload: Uncompressed protobuf.
        measurements: How many measurements, or events, are lost if this request is.
        signal: Which of the two it is.
    """

    payload: bytes
    measurements: int
    signal: Signal = Signal.METRICS


Measurement = tuple[Stream, float, int | None, Mapping[str, object] | None, int, Context | None]
"""(stream, value, step, attributes without the step, time in ns, context). Integers fit 64 bits."""


def _raise(error: Exception) -> None:
    raise error


class _Point:
    """A point in the making: its exemplars so far, and the last measurement."""

    __slots__ = ("attributes", "exemplars", "stream", "time_ns", "value")

    def __init__(self, stream: Stream, attributes: bytes) -> None:
        self.stream = stream
        self.attributes = attributes
        self.exemplars: list[bytes] = []
        self.value: float = 0
        self.time_ns = 0


class Encoder:
    """Collects the measurements of one export and turns them into requests.

    Use it once: ``extend``, then ``requests``. One thread.

    Args:
        resource: From ``encode_resource``.
        intervals: Of all exports of the process, as points must tile time across them.
        max_request_bytes: No request is larger.
        max_exemplars: A point that would hold more is followed by another of the same series.
    """

    def __init__(
        self,
        resource: bytes,
        intervals: Intervals,
        *,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        max_exemplars: int = MAX_EXEMPLARS_PER_POINT,
    ) -> None:
        self._resource = resource
        self._intervals = intervals
        self._max_request_bytes = max_request_bytes
        self._max_exemplars = max_exemplars
        # The point of each series that grows now, and those that are full.
        self._bare: dict[Stream, _Point] = {}
        self._labelled: dict[tuple[Stream, bytes], _Point] = {}
        self._full: list[_Point] = []
        self._attributes: dict[object, bytes] = {}
        self.too_large = 0
        """Measurements of points that no request can hold, known after ``requests``."""

    def extend(
        self, measurements: Iterable[Measurement], on_error: Callable[[Exception], None] = _raise
    ) -> None:
        """Add measurements in the order in which they were made.

        One loop over local names instead of a call for each: this is what a training process pays
        for every measurement.

        Args:
            measurements: See ``Measurement``.
            on_error: Told of attributes that cannot be encoded; their measurement is left out.
        """
        bare, max_exemplars = self._bare, self._max_exemplars
        double, integer = _EXEMPLAR_DOUBLE, _EXEMPLAR_INT
        # Consecutive measurements mostly share their step and their span, so what stands before
        # and after the value in an exemplar is made once for all of them.
        last_step: int | None = None
        last_context: Context | None = None
        step_bytes = after = b""
        before = _EXEMPLAR_HEADS[_MEASURED_BYTES]
        for stream, value, step, attributes, time_ns, context in measurements:
            if step != last_step or context is not last_context:
                if step != last_step:
                    last_step, step_bytes = step, _step_bytes(step)
                if context is not last_context:
                    last_context, after = context, _span_bytes(context)
                length = len(step_bytes) + _MEASURED_BYTES + len(after)
                before = _EXEMPLAR_HEADS[length] + step_bytes
            if attributes:
                try:
                    point = self._labelled_point(stream, attributes)
                except Exception as error:  # noqa: BLE001  # a user's __str__ may raise anything
                    on_error(error)
                    continue
            else:
                found = bare.get(stream)
                point = found if found is not None else self._new_bare_point(stream)
            if len(point.exemplars) >= max_exemplars:
                point = self._next_point(point)
            point.value = value
            point.time_ns = time_ns
            measured = (
                integer(0x11, time_ns, 0x31, value)
                if isinstance(value, int)
                else double(0x11, time_ns, 0x19, value)
            )
            exemplar = before + measured
            point.exemplars.append(exemplar + after if after else exemplar)

    def requests(self) -> list[Request]:
        """Serialize everything, in as many requests as the size limit needs."""
        return list(self._packed(self._encoded_points()))

    def _labelled_point(self, stream: Stream, attributes: Mapping[str, object]) -> _Point:
        # 1, 1.0 and True are equal in Python but not in OTLP, so the types are part of the key.
        key = (*attributes.items(), *map(type, attributes.values()))
        try:
            encoded = self._attributes.get(key)
        except TypeError:  # a list as a value
            encoded = wire.attributes(7, attributes)
        else:
            if encoded is None:
                if len(self._attributes) >= _MAX_CACHED_ATTRIBUTE_SETS:
                    self._attributes.clear()
                encoded = self._attributes[key] = wire.attributes(7, attributes)
        point = self._labelled.get((stream, encoded))
        if point is None:
            point = self._labelled[stream, encoded] = _Point(stream, encoded)
        return point

    def _new_bare_point(self, stream: Stream) -> _Point:
        point = self._bare[stream] = _Point(stream, b"")
        return point

    def _next_point(self, full: _Point) -> _Point:
        self._full.append(full)
        point = _Point(full.stream, full.attributes)
        if full.attributes:
            self._labelled[full.stream, full.attributes] = point
        else:
            self._bare[full.stream] = point
        return point

    def _encoded_points(self) -> Iterator[tuple[Stream, bytes, int]]:
        following = self._intervals.following
        # The full ones first: a series' points must come in the order of their times.
        for point in (*self._full, *self._bare.values(), *self._labelled.values()):
            series = point.stream.identity, point.attributes
            start_ns, time_ns = following(series, point.time_ns)
            measured = (
                _POINT_INT(0x11, start_ns, 0x19, time_ns, 0x31, point.value)
                if isinstance(point.value, int)
                else _POINT_DOUBLE(0x11, start_ns, 0x19, time_ns, 0x21, point.value)
            )
            body = b"".join((measured, *point.exemplars, point.attributes))
            yield point.stream, wire.field(1, body), len(point.exemplars)

    def _packed(self, points: Iterable[tuple[Stream, bytes, int]]) -> Iterator[Request]:
        page = _Page(self._resource)
        for stream, point, measurements in points:
            if not page.fits(stream, point, self._max_request_bytes):
                if page.measurements:
                    yield page.request()
                    page = _Page(self._resource)
                if not page.fits(stream, point, self._max_request_bytes):
                    self.too_large += measurements
                    continue
            page.add(stream, point, measurements)
        if page.measurements:
            yield page.request()


class _Page:
    """The points of one request, grouped as OTLP nests them, with an upper bound of their size."""

    _NESTING_BYTES: Final = 24
    """Tags and lengths of a point's parents: four levels of at most six bytes."""

    def __init__(self, resource: bytes) -> None:
        self._resource = resource
        self._scopes: dict[InstrumentationScope, dict[Stream, list[bytes]]] = {}
        self._bytes = len(resource) + self._NESTING_BYTES
        self.measurements = 0

    def fits(self, stream: Stream, point: bytes, max_bytes: int) -> bool:
        return self._bytes + self._cost(stream, point) <= max_bytes

    def add(self, stream: Stream, point: bytes, measurements: int) -> None:
        self._bytes += self._cost(stream, point)
        self.measurements += measurements
        self._scopes.setdefault(stream.scope, {}).setdefault(stream, []).append(point)

    def request(self) -> Request:
        scopes = b"".join(
            wire.field(
                2,
                _scope_head(scope)
                + b"".join(_metric(stream, points) for stream, points in streams.items()),
            )
            for scope, streams in self._scopes.items()
        )
        return Request(wire.field(1, self._resource + scopes), self.measurements)

    def _cost(self, stream: Stream, point: bytes) -> int:
        cost = len(point) + self._NESTING_BYTES
        streams = self._scopes.get(stream.scope)
        if streams is None:
            cost += len(_scope_head(stream.scope))
        if streams is None or stream not in streams:
            cost += len(_metric_head(stream))
        return cost


def encode_resource(resource: Resource) -> bytes:
    """``ResourceMetrics`` as far as it is the same in every request: resource and schema URL."""
    encoded = wire.field(1, wire.attributes(1, resource.attributes))
    if resource.schema_url:
        encoded += wire.field(3, resource.schema_url.encode())
    return encoded


def encode_heartbeat(resource: bytes, stream: Stream, time_ns: int) -> Request:
    """A request that says nothing but that its sender lives.

    A point that is marked to have no value: a collector would drop a request without any point.
    """
    point = wire.field(1, _POINT_WITHOUT_VALUE(0x19, time_ns, 0x40, _NO_RECORDED_VALUE))
    scope = wire.field(2, _scope_head(stream.scope) + _metric(stream, [point]))
    return Request(wire.field(1, resource + scope), 0)


def _step_bytes(step: int | None) -> bytes:
    """The step as an exemplar's ``filtered_attributes``."""
    return b"" if step is None else wire.field(7, wire.key_value(RL_LOOP_ITERATION, step))


def _span_bytes(context: Context | None) -> bytes:
    """The ids of the span in ``context``, as an exemplar has them."""
    if not context:
        return b""
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return b""
    high, low = divmod(span.trace_id, 1 << 64)
    return _SPAN(0x22, 8, span.span_id) + _TRACE(0x2A, 16, high, low)


def _scope(scope: InstrumentationScope) -> bytes:
    """``InstrumentationScope`` in the field that ``ScopeMetrics`` has for it."""
    body = wire.field(1, scope.name.encode("utf-8", "replace"))
    if scope.version:
        body += wire.field(2, scope.version.encode("utf-8", "replace"))
    if scope.attributes:
        body += wire.attributes(3, scope.attributes)
    return wire.field(1, body)


def _scope_head(scope: InstrumentationScope) -> bytes:
    head = _scope(scope)
    if scope.schema_url:
        head += wire.field(3, scope.schema_url.encode("utf-8", "replace"))
    return head


def _metric_name(name: str) -> bytes:
    return wire.field(1, name.encode("utf-8", "replace"))


def _metric_head(stream: Stream) -> bytes:
    head = _metric_name(stream.name)
    if stream.description:
        head += wire.field(2, stream.description.encode("utf-8", "replace"))
    if stream.unit:
        head += wire.field(3, stream.unit.encode("utf-8", "replace"))
    return head


def _metric(stream: Stream, points: list[bytes]) -> bytes:
    return wire.field(2, _metric_head(stream) + wire.field(5, b"".join(points)))
