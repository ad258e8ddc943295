"""Encodes gauge points with their exemplars as OTLP metrics, per ADR 0000.

Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto:

    Metric { name = 1, description = 2, unit = 3, gauge = 5 { data_points = 1 } }
    NumberDataPoint { start = 2, time = 3, as_double = 4, exemplars = 5, as_int = 6, attrs = 7,
                      flags = 8 }
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.exemplars import measured
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker, encode_bare_scope, encode_scope

__all__ = ["MAX_EXEMPLARS_PER_POINT", "Encoder", "Stream", "encode_heartbeat"]

MAX_EXEMPLARS_PER_POINT: Final = 1024
"""Keeps a point under 100 KB, so that metrics can be split between points."""

_POINT = struct.Struct("<BQBQB8s").pack  # start_time_unix_nano = 2, time_unix_nano = 3, value
_AS_DOUBLE: Final = 0x21  # as_double = 4
_AS_INT: Final = 0x31  # as_int = 6
_POINT_WITHOUT_VALUE = struct.Struct("<BQBB").pack  # time_unix_nano, flags = 8
_NO_RECORDED_VALUE: Final = 1  # DataPointFlags

_SCALARS: Final = frozenset({str, bool, int, float})
"""Types of attributes whose encoding is equal if the values and their types are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Gauge on the wire. Equal by identity: the provider makes each once.

    Attributes:
        scope: The meter's scope, with its attributes.
        name: Metric name.
        unit: UCUM unit.
        description: For people.
        identity: Encoded scope and name: identifies the stream for a receiver.
        scope_head: From ``encode_scope``.
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
        scope, name = encode_bare_scope(self.scope), _text(1, self.name)
        set_once = object.__setattr__
        set_once(self, "identity", scope + name)
        set_once(self, "scope_head", encode_scope(self.scope))
        set_once(self, "head", name + _text(2, self.description) + _text(3, self.unit))


class Encoder:
    """Collects the exemplars of one export and encodes them as gauges.

    Use it once: ``exemplars``, then ``pack``. One thread.

    Args:
        intervals: Of all exports of the process, because points tile time across exports.
        max_exemplars: Limit per point; further ones go to another point of the series.

    Attributes:
        plain: Exemplars of the series without attributes, in the order of the measurements. The
            caller may add to them, and a list for a stream that has none.
    """

    def __init__(self, intervals: Intervals, max_exemplars: int = MAX_EXEMPLARS_PER_POINT) -> None:
        self._intervals = intervals
        self._max_exemplars = max_exemplars
        self.plain: dict[Stream, list[bytes]] = {}
        # Those with attributes, by these encoded.
        self._series: dict[Stream, dict[bytes, list[bytes]]] = {}
        # The same lists by the attributes as given, because encoding these is expensive.
        self._labelled: dict[Stream, dict[tuple[object, ...], _Labelled]] = {}
        # The last one of each stream, because most streams have one.
        self._latest: dict[Stream, _Labelled] = {}
        # What stands before a point, by the lengths of the stream's head and of the point: most
        # points of an export are equally long.
        self._heads: dict[tuple[int, int], tuple[bytes, bytes, int]] = {}

    def exemplars(self, stream: Stream, attributes: Mapping[str, object]) -> list[bytes]:
        """Return the exemplars of a series so far; append to it in the order of the measurements.

        Raises:
            Exception: An attribute cannot be encoded: a user's ``__str__`` may raise anything.
        """
        latest = self._latest.get(stream)
        if latest is not None and latest.types is None and latest.attributes == attributes:
            return latest.exemplars
        known = self._labelled.get(stream)
        if known is None:
            known = self._labelled[stream] = {}
        key = tuple(attributes.values())
        try:
            found = known.get(key)
        except TypeError:  # a list as a value
            return self._exemplars_of(stream, protobuf.attributes(7, attributes))
        if (
            found is not None
            and found.attributes == attributes
            and (found.types is None or found.types == _types(attributes))
        ):
            self._latest[stream] = found
            return found.exemplars
        exemplars = self._exemplars_of(stream, protobuf.attributes(7, attributes))
        if _SCALARS.issuperset(map(type, attributes.values())):
            self._latest[stream] = known[key] = _Labelled(attributes, exemplars)
        return exemplars

    def pack(self, packer: RequestPacker) -> int:
        """Encode everything. Returns the number of measurements that no request can hold."""
        too_large = 0
        plain, labelled = self.plain, self._series
        # Exemplars are freed as soon as they are encoded: they take twice the room of their points.
        self._latest.clear()
        self._labelled.clear()
        for stream in (*plain,):
            exemplars = plain.pop(stream)
            series = labelled.pop(stream, None) if labelled else None
            if series is None:
                too_large += self._added_one(packer, stream, b"", exemplars)
            else:
                too_large += self._added(packer, stream, {b"": exemplars, **series})
        for stream in (*labelled,):
            series = labelled.pop(stream)
            if len(series) == 1:
                ((attributes, exemplars),) = series.items()
                too_large += self._added_one(packer, stream, attributes, exemplars)
            else:
                too_large += self._added(packer, stream, series)
        return too_large

    def _added_one(
        self, packer: RequestPacker, stream: Stream, attributes: bytes, exemplars: list[bytes]
    ) -> int:
        """Add a metric of one series: like any other, without a list for each level."""
        count = len(exemplars)
        if not 0 < count <= self._max_exemplars:
            return self._added(packer, stream, {attributes: exemplars})
        head, point = stream.head, self._point(stream.identity, attributes, exemplars)
        lengths = len(head), len(point)
        found = self._heads.get(lengths)
        if found is None:
            found = self._heads[lengths] = _heads_of_one(*lengths)
        metric, gauge, length = found
        return (
            0
            if packer.add(stream.scope_head, (metric, head, gauge, point), length, count)
            else count
        )

    def _exemplars_of(self, stream: Stream, attributes: bytes) -> list[bytes]:
        if not attributes:
            return self.plain.setdefault(stream, [])
        return self._series.setdefault(stream, {}).setdefault(attributes, [])

    def _added(
        self, packer: RequestPacker, stream: Stream, series: Mapping[bytes, list[bytes]]
    ) -> int:
        return _added(packer, stream, *self._points(stream.identity, series))

    def _points(
        self, identity: bytes, series: Mapping[bytes, list[bytes]]
    ) -> tuple[list[bytes], list[int]]:
        """Return the gauge's points, and the number of measurements in each."""
        most = self._max_exemplars
        points, counts = [], []
        for attributes, exemplars in series.items():
            for first in range(0, len(exemplars), most):
                some = exemplars[first : first + most]
                points.append(protobuf.field(1, self._point(identity, attributes, some)))
                counts.append(len(some))
        return points, counts

    def _point(self, identity: bytes, attributes: bytes, exemplars: Sequence[bytes]) -> bytes:
        # A point repeats its last measurement.
        measured_ns, is_integer, value = measured(exemplars[-1])
        start_ns, time_ns = self._intervals.following((identity, attributes), measured_ns)
        tag = _AS_INT if is_integer else _AS_DOUBLE
        return b"".join((_POINT(0x11, start_ns, 0x19, time_ns, tag, value), *exemplars, attributes))


def _added(
    packer: RequestPacker, stream: Stream, points: Sequence[bytes], counts: Sequence[int]
) -> int:
    """Add the points as one metric, or several. Returns the measurements of those left out."""
    if not points or packer.add(stream.scope_head, *_metric(stream, points), sum(counts)):
        return 0
    if len(points) == 1:
        return counts[0]
    half = len(points) // 2
    return sum(
        _added(packer, stream, points[part], counts[part])
        for part in (slice(half), slice(half, None))
    )


class _Labelled:
    """Exemplars of a series with attributes, found without encoding those again.

    Attributes:
        attributes: Match the series if they have these types.
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


def encode_heartbeat(stream: Stream, time_ns: int) -> tuple[Sequence[bytes], int]:
    """Encode a metric without measurements that only renews the lease of its sender.

    Its point is marked as having no value: a collector would drop a request without any point.
    """
    point = protobuf.field(1, _POINT_WITHOUT_VALUE(0x19, time_ns, 0x40, _NO_RECORDED_VALUE))
    return _metric(stream, [point])


def _metric(stream: Stream, points: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Encode a ``Metric`` as the field of ``ScopeMetrics``: its pieces, and their length."""
    length = sum(map(len, points))
    gauge = protobuf.head(5, length)
    length += len(gauge) + len(stream.head)
    metric = protobuf.head(2, length)
    return (metric, stream.head, gauge, *points), len(metric) + length


def _heads_of_one(head: int, point: int) -> tuple[bytes, bytes, int]:
    """Encode what stands before the head and the point of a metric of one point.

    Args:
        head: Length of the stream's head.
        point: Length of the point.

    Returns:
        Both, and the length of the whole.
    """
    point_head = protobuf.head(1, point)
    gauge = protobuf.head(5, len(point_head) + point) + point_head
    length = head + len(gauge) + point
    metric = protobuf.head(2, length)
    return metric, gauge, len(metric) + length


def _text(number: int, text: str | None) -> bytes:
    return protobuf.field(number, protobuf.utf8(text)) if text else b""
