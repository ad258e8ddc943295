"""Encodes the shares of steps: what counters and histograms counted during one step, per ADR 0015.

A share is a delta point of the instrument's name, with the step, and the time of the series'
previous share, among its attributes. These tile time, as the points of gauges do:

    step 7, with the share before at 40:     |begun 41 ------ ended 52|     (40, 52]
    step 8:                                                    |54 ------- 66|     (52, 66]

A point without a step and a value, sent during the first step of a series, announces shares.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import OTEL_RL_STEP_SHARE, RL_LOOP_ITERATION
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker

__all__ = ["Buckets", "Share", "ShareStream", "encode_shares", "encoded_attributes"]

_INT64: Final = 1 << 63

_DELTA: Final = b"\x10\x01"  # Sum and ExponentialHistogram: aggregation_temporality = 2
_MONOTONIC: Final = b"\x18\x01"  # Sum.is_monotonic = 3

_NO_RECORDED_VALUE: Final = 1  # DataPointFlags
_TIMES = struct.Struct("<BQBQ").pack

# NumberDataPoint: start = 2, time = 3, as_double = 4 or as_int = 6
_OF_DOUBLE = struct.Struct("<BQBQBd").pack
_OF_INT = struct.Struct("<BQBQBq").pack

# ExponentialHistogramDataPoint: start = 2, time = 3, count = 4, sum = 5, zero_count = 7, min = 12,
# max = 13; scale = 6 and positive = 8 have variable lengths.
_OF_BUCKETS = struct.Struct("<BQBQBQBdBQBdBd").pack


@dataclass(frozen=True, slots=True, eq=False)
class ShareStream:
    """Counter or histogram on the wire. Equal by identity: an instrument makes its own.

    Attributes:
        scope: The meter's scope, with its attributes.
        name: Metric name.
        unit: UCUM unit.
        description: For people.
        is_histogram: Else it is a counter.
        encoded: Its identity and heads, encoded.
    """

    scope: InstrumentationScope
    name: str
    unit: str
    description: str
    is_histogram: bool
    encoded: Stream = field(init=False, repr=False)

    def __post_init__(self) -> None:
        encoded = Stream(self.scope, self.name, self.unit, self.description)
        object.__setattr__(self, "encoded", encoded)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Exponential histogram of numbers that are not negative.

    Attributes:
        count: Number of measurements.
        total: Their sum.
        minimum: The smallest.
        maximum: The largest.
        zeros: Number of zeros.
        scale: Of the buckets: bucket i holds 2**(i / 2**scale) < value <= 2**((i + 1) / 2**scale).
        counts: By bucket.
    """

    count: int
    total: float
    minimum: float
    maximum: float
    zeros: int
    scale: int
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Share:
    """Counts of one series during one step.

    Attributes:
        stream: Its instrument.
        attributes: Without the step, encoded as ``encoded_attributes``.
        step: The step; None only announces that there will be shares.
        begun_ns: Begin of the step; 0 if unknown.
        ended_ns: End of it.
        amount: Growth of a counter, or the distribution of a histogram.
    """

    stream: ShareStream
    attributes: bytes
    step: int | None
    begun_ns: int
    ended_ns: int
    amount: float | Buckets


def encode_shares(shares: Iterable[Share], intervals: Intervals, packer: RequestPacker) -> int:
    """Add shares to requests, split between points where those of a series are too large for one.

    Args:
        shares: In the order of their ends.
        intervals: Of all exports of the process.
        packer: Of metrics.

    Returns:
        The number of shares that no request can hold.
    """
    points: dict[ShareStream, list[bytes]] = {}
    for share in shares:
        points.setdefault(share.stream, []).append(_point(share, intervals))
    return sum(_added(packer, stream, of_stream) for stream, of_stream in points.items())


def _added(packer: RequestPacker, stream: ShareStream, points: Sequence[bytes]) -> int:
    """Add the points, or parts of them. Returns the number of those left out."""
    metric = _metric(stream, points)
    if packer.add(stream.encoded.scope_head, (metric,), len(metric), len(points)):
        return 0
    if len(points) < 2:
        return len(points)
    middle = len(points) // 2
    return sum(_added(packer, stream, half) for half in (points[:middle], points[middle:]))


def encoded_attributes(stream: ShareStream, attributes: Mapping[str, object]) -> bytes:
    """Encode the attributes of a series, equal ones alike."""
    return protobuf.attributes(_field_of_attributes(stream), attributes)


def _field_of_attributes(stream: ShareStream) -> int:
    return 1 if stream.is_histogram else 7  # ExponentialHistogramDataPoint, NumberDataPoint


def _metric(stream: ShareStream, points: Sequence[bytes]) -> bytes:
    data = b"".join(protobuf.field(1, point) for point in points) + _DELTA
    # Metric.exponential_histogram = 10, sum = 7
    whole = (
        protobuf.field(10, data) if stream.is_histogram else protobuf.field(7, data + _MONOTONIC)
    )
    return protobuf.field(2, stream.encoded.head + whole)


def _point(share: Share, intervals: Intervals) -> bytes:
    stream, amount = share.stream, share.amount
    number = _field_of_attributes(stream)
    if share.step is None:
        mark = protobuf.field(number, protobuf.key_value(OTEL_RL_STEP_SHARE, 0))
        flags = protobuf.number(10 if stream.is_histogram else 8, _NO_RECORDED_VALUE)
        return _TIMES(0x11, share.begun_ns, 0x19, share.ended_ns) + share.attributes + mark + flags
    # A key that no series of the SDK has, whatever its attributes are.
    key = stream.encoded.identity, b"share" + share.attributes
    before_ns, time_ns = intervals.following(key, share.ended_ns)
    attributes = (
        share.attributes
        + protobuf.field(number, protobuf.key_value(RL_LOOP_ITERATION, share.step))
        + protobuf.field(number, protobuf.key_value(OTEL_RL_STEP_SHARE, before_ns))
    )
    start_ns = share.begun_ns
    if not isinstance(amount, Buckets):
        if isinstance(amount, int) and -_INT64 <= amount < _INT64:
            return _OF_INT(0x11, start_ns, 0x19, time_ns, 0x31, amount) + attributes
        return _OF_DOUBLE(0x11, start_ns, 0x19, time_ns, 0x21, amount) + attributes
    numbers = _OF_BUCKETS(
        *(0x11, start_ns, 0x19, time_ns, 0x21, amount.count, 0x29, amount.total),
        *(0x39, amount.zeros, 0x61, amount.minimum, 0x69, amount.maximum),
    )
    scale = b"\x30" + _zigzag(amount.scale)
    return attributes + numbers + scale + protobuf.field(8, _buckets(amount.counts))


def _buckets(counts: Mapping[int, int]) -> bytes:
    if not counts:
        return b""
    first, last = min(counts), max(counts)
    packed = b"".join([protobuf.varint(counts.get(i, 0)) for i in range(first, last + 1)])
    return b"\x08" + _zigzag(first) + protobuf.field(2, packed)


def _zigzag(value: int) -> bytes:
    """Encode a sint32."""
    return protobuf.varint(value << 1 if value >= 0 else (-value << 1) - 1)
