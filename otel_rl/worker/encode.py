"""Exemplars to OTLP requests, per ADR 0000: gauge points, each with the measurements it stands for.

Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto:

    ExportMetricsServiceRequest { resource_metrics = 1 }
    ResourceMetrics { resource = 1, scope_metrics = 2, schema_url = 3 }
    ScopeMetrics { scope = 1, metrics = 2, schema_url = 3 }
    Metric { name = 1, description = 2, unit = 3, gauge = 5 { data_points = 1 } }
    NumberDataPoint { start = 2, time = 3, as_double = 4, exemplars = 5, as_int = 6, attrs = 7,
                      flags = 8 }
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.records import Signal
from otel_rl.worker import wire
from otel_rl.worker.exemplar import measured
from otel_rl.worker.intervals import Intervals

__all__ = [
    "MAX_EXEMPLARS_PER_POINT",
    "MAX_REQUEST_BYTES",
    "Encoder",
    "Request",
    "Stream",
    "encode_heartbeat",
    "encode_resource",
    "encode_scope",
]

MAX_EXEMPLARS_PER_POINT: Final = 1024
"""Keeps a point under 100 KB, so that requests can be cut at point borders."""

MAX_REQUEST_BYTES: Final = 3 << 20
"""gRPC servers refuse messages over 4 MiB by default; the rest is room for a collector's edits."""

_POINT = struct.Struct("<BQBQB").pack  # start_time_unix_nano = 2, time_unix_nano = 3, value's tag
_AS_DOUBLE: Final = 0x21  # as_double = 4
_AS_INT: Final = 0x31  # as_int = 6
_POINT_WITHOUT_VALUE = struct.Struct("<BQBB").pack  # time_unix_nano, flags = 8
_NO_RECORDED_VALUE: Final = 1  # DataPointFlags

_SCALARS: Final = frozenset({str, bool, int, float})
"""Types of attributes that are the same on the wire if they and their types are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One gauge as it stands on the wire. Equal by identity: the provider makes each once.

    Attributes:
        scope: The meter's scope, with its attributes.
        name: Metric name.
        unit: UCUM unit.
        description: For people.
        identity: Scope and name as on the wire: all by which a receiver tells it from others.
        scope_head: ``ScopeMetrics`` without its metrics.
        head: ``Metric`` without its points.
    """

    scope: InstrumentationScope
    name: str
    unit: str = ""
    description: str = ""
    identity: bytes = field(init=False, repr=False)
    scope_head: bytes = field(init=False, repr=False)
    head: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        scope, name = _scope(self.scope), _text(1, self.name)
        set_once = object.__setattr__
        set_once(self, "identity", scope + name)
        set_once(self, "scope_head", encode_scope(self.scope))
        set_once(self, "head", name + _text(2, self.description) + _text(3, self.unit))


@dataclass(frozen=True, slots=True)
class Request:
    """A serialized ``Export{Metrics,Logs,Trace}ServiceRequest``.

    Attributes:
        payload: Uncompressed protobuf.
        measurements: How many measurements, events or spans are lost if this request is.
        signal: Which of the three it is.
    """

    payload: bytes
    measurements: int
    signal: Signal = Signal.METRICS


class Encoder:
    """Collects the exemplars of one export and turns them into requests.

    Use it once: ``exemplars``, then ``requests``. One thread.

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
        # By their attributes as on the wire.
        self._streams: dict[Stream, dict[bytes, list[bytes]]] = {}
        # The same lists by attributes as they came, because to encode these costs too much.
        self._labelled: dict[Stream, dict[tuple[object, ...], _Labelled]] = {}
        self.too_large = 0
        """Measurements of points that no request can hold, known after ``requests``."""

    def exemplars(
        self, stream: Stream, attributes: Mapping[str, object] | None = None
    ) -> list[bytes]:
        """The exemplars of a series so far; append to it in the order of the measurements.

        Raises:
            Exception: An attribute cannot be encoded: a user's ``__str__`` may raise anything.
        """
        if not attributes:
            return self._exemplars_of(stream, b"")
        known = self._labelled.get(stream)
        if known is None:
            known = self._labelled[stream] = {}
        key = tuple(attributes.values())
        try:
            found = known.get(key)
        except TypeError:  # a list as a value
            return self._exemplars_of(stream, wire.attributes(7, attributes))
        if (
            found is not None
            and found.attributes == attributes
            and (found.types is None or found.types == _types(attributes))
        ):
            return found.exemplars
        exemplars = self._exemplars_of(stream, wire.attributes(7, attributes))
        if _SCALARS.issuperset(map(type, attributes.values())):
            known[key] = _Labelled(attributes, exemplars)
        return exemplars

    def requests(self) -> list[Request]:
        """Serialize everything, in as many requests as the size limit needs."""
        return list(self._packed())

    def _exemplars_of(self, stream: Stream, attributes: bytes) -> list[bytes]:
        series = self._streams.get(stream)
        if series is None:
            series = self._streams[stream] = {}
        return series.setdefault(attributes, [])

    def _packed(self) -> Iterator[Request]:
        max_bytes = self._max_request_bytes
        page = _Page(self._resource)
        for stream, series in self._streams.items():
            points, counts = self._points(stream.identity, series)
            if page.take(stream, points, sum(counts), max_bytes):
                continue
            for point, count in zip(points, counts, strict=True):
                if page.take(stream, [point], count, max_bytes):
                    continue
                if page.measurements:
                    yield page.request()
                    page = _Page(self._resource)
                if not page.take(stream, [point], count, max_bytes):
                    self.too_large += count
        if page.measurements:
            yield page.request()

    def _points(
        self, identity: bytes, series: Mapping[bytes, list[bytes]]
    ) -> tuple[list[bytes], list[int]]:
        """Points as their gauge has them, and how many measurements each stands for."""
        most = self._max_exemplars
        points, counts = [], []
        for attributes, exemplars in series.items():
            for first in range(0, len(exemplars), most):
                some = exemplars[first : first + most]
                # A point repeats its last measurement.
                measured_ns, is_integer, value = measured(some[-1])
                start_ns, time_ns = self._intervals.following((identity, attributes), measured_ns)
                tag = _AS_INT if is_integer else _AS_DOUBLE
                times = _POINT(0x11, start_ns, 0x19, time_ns, tag)
                points.append(wire.field(1, b"".join((times, value, *some, attributes))))
                counts.append(len(some))
        return points, counts


class _Labelled:
    """The exemplars of a series with attributes, found without encoding those again.

    Attributes:
        attributes: The series has them, if they have these types.
        types: 1, 1.0 and True are equal in Python but not in OTLP. None if all are text.
        exemplars: Of the series.
    """

    __slots__ = ("attributes", "exemplars", "types")

    def __init__(self, attributes: Mapping[str, object], exemplars: list[bytes]) -> None:
        types = _types(attributes)
        self.attributes = attributes
        self.types = None if set(types.values()) == {str} else types
        self.exemplars = exemplars


def _types(attributes: Mapping[str, object]) -> dict[str, type]:
    return {name: type(value) for name, value in attributes.items()}


class _Page:
    """The points of one request, grouped as OTLP nests them, with an upper bound of their size."""

    _NESTING_BYTES: Final = 24
    """Tags and lengths of a point's parents: four levels of at most six bytes."""

    def __init__(self, resource: bytes) -> None:
        self._resource = resource
        # By scope_head.
        self._scopes: dict[bytes, dict[Stream, list[bytes]]] = {}
        self._bytes = len(resource) + self._NESTING_BYTES
        self.measurements = 0

    def take(self, stream: Stream, points: list[bytes], measurements: int, max_bytes: int) -> bool:
        """Add the points, all of one stream, if the page then has at most ``max_bytes``."""
        parents = len(stream.scope_head) + len(stream.head) + self._NESTING_BYTES
        end = self._bytes + parents + sum(map(len, points))
        if end > max_bytes:
            return False
        self._bytes = end
        self.measurements += measurements
        streams = self._scopes.get(stream.scope_head)
        if streams is None:
            streams = self._scopes[stream.scope_head] = {}
        if stream in streams:
            streams[stream] += points
        else:
            streams[stream] = points
        return True

    def request(self) -> Request:
        parts: list[bytes] = []
        for scope_head, streams in self._scopes.items():
            parts += _scope_metrics(scope_head, streams)
        length = len(self._resource) + sum(map(len, parts))
        # One join of everything: to copy whole levels costs more than to encode them.
        return Request(b"".join((wire.head(1, length), self._resource, *parts)), self.measurements)


def _scope_metrics(scope_head: bytes, streams: Mapping[Stream, Sequence[bytes]]) -> list[bytes]:
    """``ScopeMetrics`` of the points of one scope, in pieces."""
    parts, all_length = [scope_head], len(scope_head)
    for stream, points in streams.items():
        length = sum(map(len, points))
        gauge = wire.head(5, length)
        length += len(gauge) + len(stream.head)
        metric = wire.head(2, length)
        all_length += len(metric) + length
        parts += (metric, stream.head, gauge, *points)
    return [wire.head(2, all_length), *parts]


def encode_resource(resource: Resource) -> bytes:
    """``ResourceMetrics`` or ``ResourceSpans`` as far as it is the same in every request."""
    encoded = wire.field(1, wire.attributes(1, resource.attributes))
    if resource.schema_url:
        encoded += wire.field(3, resource.schema_url.encode())
    return encoded


def encode_scope(scope: InstrumentationScope) -> bytes:
    """``ScopeMetrics`` or ``ScopeSpans`` without what it holds: scope and schema URL."""
    return _scope(scope) + _text(3, scope.schema_url)


def encode_heartbeat(resource: bytes, stream: Stream, time_ns: int) -> Request:
    """A request that says nothing but that its sender lives.

    A point that is marked to have no value: a collector would drop a request without any point.
    """
    point = wire.field(1, _POINT_WITHOUT_VALUE(0x19, time_ns, 0x40, _NO_RECORDED_VALUE))
    scope = b"".join(_scope_metrics(stream.scope_head, {stream: [point]}))
    return Request(wire.field(1, resource + scope), 0)


def _scope(scope: InstrumentationScope) -> bytes:
    """``InstrumentationScope`` in the field that ``ScopeMetrics`` has for it."""
    body = wire.field(1, scope.name.encode("utf-8", "replace")) + _text(2, scope.version)
    return wire.field(1, body + wire.attributes(3, scope.attributes or {}))


def _text(number: int, text: str | None) -> bytes:
    return wire.field(number, text.encode("utf-8", "replace")) if text else b""
