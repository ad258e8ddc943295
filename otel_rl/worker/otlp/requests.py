"""OTLP requests within the size limit: points, spans and events with their resource and scopes.

The three export requests of OTLP have one shape, and these field numbers:

    Export...ServiceRequest { resource_... = 1 }
    Resource... { resource = 1, scope_... = 2, schema_url = 3 }
    Scope... { scope = 1, items = 2, schema_url = 3 }

Each request repeats the resource and the scopes of its items.

Points of gauges and deltas tile time, which identifies them (ADR 0000):

    begin          time of point 1         time of point 2
      |-------------------]-----------------------]------------ ...
          point 1                  point 2

Each point begins at the end of the previous one, so that a receiver that has all points up to a
time recognises a repetition by its end alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.metrics.export import NumberDataPoint as SdkNumberDataPoint
from opentelemetry.sdk.metrics.export import ResourceMetrics as SdkResourceMetrics
from opentelemetry.sdk.metrics.export import ScopeMetrics as SdkScopeMetrics
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope as SdkScope

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.signals import Signal
from otel_rl.worker.otlp.anyvalue import attributes, clean

MAX_REQUEST_BYTES: Final = 3 << 20
"""gRPC servers refuse messages over 4 MiB by default; the rest is room for a collector's edits."""

MAX_SERIES: Final = 1 << 14
"""More than a bridge accepts for a whole experiment; about 4 MB when all are in use."""

_HEAD_BYTES: Final = 6
"""Upper bound of the tag and length of a message that holds others."""

_INT64: Final = range(-(1 << 63), 1 << 63)

_NOBODY: Final = SdkResource({})
"""Stands for the resource where points are encoded without it."""

_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA


@dataclass(frozen=True, slots=True)
class Request:
    """Serialized ``Export{Metrics,Logs,Trace}ServiceRequest``.

    Attributes:
        payload: Uncompressed protobuf.
        measurements: Number of measurements, events or spans that would be lost with the request.
    """

    payload: bytes
    measurements: int
    signal: Signal = Signal.METRICS


class RequestPacker:
    """Packs items of one resource, in order, once: ``add``, then ``requests``.

    One thread uses it.
    """

    def __init__(
        self, resource: bytes, signal: Signal, max_request_bytes: int = MAX_REQUEST_BYTES
    ) -> None:
        self._resource = resource
        self._signal = signal
        self._room_bytes = max_request_bytes - len(resource) - _HEAD_BYTES
        self._closed: list[Request] = []
        self._open()

    def _open(self) -> None:
        # Items by scope, each after its tag and length.
        self._scopes: dict[bytes, list[bytes]] = {}
        self._free_bytes = self._room_bytes
        self._measurements = 0

    @property
    def has_items(self) -> bool:
        return bool(self._scopes or self._closed)

    def add(self, scope: bytes, item: bytes, measurements: int = 1) -> bool:
        """Add a serialized metric, log record or span. Returns False if no request can hold it."""
        head = _head(2, len(item))
        item_bytes = len(head) + len(item)
        in_new_scope = item_bytes + len(scope) + _HEAD_BYTES
        taken_bytes = item_bytes if scope in self._scopes else in_new_scope
        if taken_bytes > self._free_bytes:
            if in_new_scope > self._room_bytes:
                return False
            self._close()
            taken_bytes = in_new_scope
        self._scopes.setdefault(scope, []).extend((head, item))
        self._free_bytes -= taken_bytes
        self._measurements += measurements
        return True

    def requests(self) -> list[Request]:
        """Return the requests, in the order of their items."""
        if self._scopes:
            self._close()
        return self._closed

    def _close(self) -> None:
        parts = [self._resource]
        for scope, items in self._scopes.items():
            parts += (_head(2, len(scope) + sum(map(len, items))), scope, *items)
        # One join of everything, so that no level is copied by itself.
        payload = b"".join((_head(1, sum(map(len, parts))), *parts))
        self._closed.append(Request(payload, self._measurements, self._signal))
        self._open()


def _head(number: int, length: int) -> bytes:
    out = bytearray((number << 3 | 2,))
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out)


def encode_resource(resource: SdkResource) -> bytes:
    """Encode the resource and schema URL that all items share."""
    found = Resource(attributes=attributes(resource.attributes))
    return ResourceMetrics(resource=found, schema_url=resource.schema_url).SerializeToString()


class Scope(NamedTuple):
    """An encoded scope of instruments.

    Attributes:
        head: Scope with the schema URL, as each request has it.
        identity: Scope without the schema URL, which is part of a series' identity.
    """

    head: bytes
    identity: bytes


def encode_scope(scope: SdkScope) -> Scope:
    found = InstrumentationScope(
        name=clean(scope.name),
        version=clean(scope.version or ""),
        attributes=attributes(scope.attributes or {}),
    )
    head = ScopeMetrics(scope=found, schema_url=clean(scope.schema_url or ""))
    return Scope(head.SerializeToString(), found.SerializeToString())


SeriesKey = tuple[bytes, str, bytes]
"""(``Scope.identity``, metric name, ``serialized`` attributes)."""


class Intervals:
    """End of the last point of each series. One thread uses it.

    The intervals of a series never overlap and strictly increase, whatever the wall clock does. A
    gap occurs only after a series was evicted, because ``max_series`` others have had points since:
    the bound is for attributes that never repeat.
    """

    def __init__(self, begin_ns: int, max_series: int = MAX_SERIES) -> None:
        # Least recently used first. No evicted series ended after _begin_ns.
        self._ends: dict[SeriesKey, int] = {}
        self._begin_ns = begin_ns
        self._max_series = max_series

    def following(self, key: SeriesKey, measured_ns: int) -> tuple[int, int]:
        """Return (start, time) of the next point of a series, after its last measurement."""
        start_ns = self._ends.pop(key, None)
        if start_ns is None:
            if len(self._ends) >= self._max_series:
                self._forget_one()
            start_ns = self._begin_ns
        # After the wall clock is set back, the end grows by 1 ns until the clock has caught up.
        end_ns = max(measured_ns, start_ns + 1)
        self._ends[key] = end_ns
        return start_ns, end_ns

    def _forget_one(self) -> None:
        """Evict a series; returning and new series begin after all evicted ones."""
        ended_ns = self._ends.pop(next(iter(self._ends)))
        self._begin_ns = max(self._begin_ns, ended_ns)


def pack_metric(packer: RequestPacker, scope: bytes, metric: Metric, measurements: int) -> int:
    """Add a metric, split between points where it is too large for one request.

    Returns:
        The number of measurements that no request can hold.
    """
    if packer.add(scope, metric.SerializeToString(), measurements):
        return 0
    halves = Metric(), Metric()
    for half in halves:
        half.CopyFrom(metric)
    first, second = (_data(half)[1].data_points for half in halves)
    if len(first) < 2:
        return max(measurements, len(first))
    middle = len(first) // 2
    del first[middle:]
    del second[:middle]
    return sum(pack_metric(packer, scope, half, _measurements(half)) for half in halves)


def _measurements(metric: Metric) -> int:
    """Count what only this request holds: totals are repeated, counts of steps are not."""
    kind, data = _data(metric)
    points = data.data_points
    if kind == "sum":
        return sum(
            attribute.key == RL_LOOP_ITERATION
            for point in points
            for exemplar in point.exemplars
            for attribute in exemplar.filtered_attributes
        )
    if kind == "gauge":
        return sum(len(point.exemplars) or 1 for point in points)
    return sum(point.count for point in points)


def _data(metric: Metric) -> tuple[str, Any]:
    kind = metric.WhichOneof("data") or "gauge"
    return kind, getattr(metric, kind)


def pack_collected(data: MetricsData, intervals: Intervals, packer: RequestPacker) -> int:
    """Add the points that the SDK has collected from its own instruments.

    Returns:
        The number of measurements that cannot be sent, because they are too large for any request,
        or have a value that OTLP cannot express.
    """
    lost = 0
    for resource in data.resource_metrics:
        for part in resource.scope_metrics:
            metrics, unsent = _metrics(part)
            lost += unsent
            scope = encode_scope(part.scope)
            for metric in metrics:
                _tile(scope.identity, metric, intervals)
                lost += pack_metric(packer, scope.head, metric, _measurements(metric))
    return lost


def _tile(scope: bytes, metric: Metric, intervals: Intervals) -> None:
    """Set the times of a gauge or delta; those of the SDK go back with the clock."""
    kind, data = _data(metric)
    if kind == "gauge" or (kind != "sum" and data.aggregation_temporality == _DELTA):
        for point in data.data_points:
            key = scope, metric.name, serialized(sorted(point.attributes, key=_key))
            times_ns = intervals.following(key, point.time_unix_nano)
            point.start_time_unix_nano, point.time_unix_nano = times_ns


def _key(pair: KeyValue) -> str:
    key: str = pair.key
    return key


def serialized(attributes: Iterable[KeyValue]) -> bytes:
    """Serialize the attributes of a series, as a point that has no other fields."""
    encoded: bytes = NumberDataPoint(attributes=attributes).SerializeToString()
    return encoded


def _metrics(part: SdkScopeMetrics) -> tuple[list[Metric], int]:
    """Encode the metrics of a scope. Returns them, and how many points cannot be encoded."""
    try:
        return _encoded_metrics(part, part.metrics), 0
    except Exception:  # noqa: BLE001  # of one value; what cannot be encoded is counted below
        found, lost = [], 0
    for metric in part.metrics:
        try:
            found += _encoded_metrics(part, [_within_64_bits(metric)])
        except Exception:  # noqa: BLE001  # counted
            lost += len(metric.data.data_points)
    return found, lost


def _encoded_metrics(part: SdkScopeMetrics, metrics: Sequence[SdkMetric]) -> list[Metric]:
    resource = SdkResourceMetrics(_NOBODY, [replace(part, metrics=metrics)], schema_url="")
    (encoded,) = encode_metrics(MetricsData([resource])).resource_metrics
    return [metric for scope in encoded.scope_metrics for metric in scope.metrics]


def _within_64_bits(metric: SdkMetric) -> SdkMetric:
    """Return the metric with larger integers, such as sums of FLOPs, as floats."""
    data: Any = metric.data
    points = []
    for point in data.data_points:
        exemplars = [replace(one, value=_fitting(one.value)) for one in point.exemplars]
        changed = replace(point, exemplars=exemplars)
        if isinstance(changed, SdkNumberDataPoint):
            changed = replace(changed, value=_fitting(changed.value))
        points.append(changed)
    return replace(metric, data=replace(data, data_points=points))


def _fitting(value: float) -> float:
    return float(value) if isinstance(value, int) and value not in _INT64 else value
