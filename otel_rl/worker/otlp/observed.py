"""Encodes what observable instruments of otel_rl itself observed, without the SDK.

Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto:

    Metric { name = 1, description = 2, unit = 3, gauge = 5 { points = 1 },
             sum = 7 { points = 1, aggregation_temporality = 2, is_monotonic = 3 } }
    NumberDataPoint { start = 2, time = 3, as_double = 4, as_int = 6, attributes = 7 }
"""

import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker

__all__ = ["ObservedKind", "encode_observed"]

_OF_DOUBLE = struct.Struct("<BQBQBd").pack
_OF_INT = struct.Struct("<BQBQBq").pack
_INT64: Final = 1 << 63

_CUMULATIVE: Final = b"\x10\x02"  # Sum.aggregation_temporality = 2
_MONOTONIC: Final = b"\x18\x01"  # Sum.is_monotonic = 3


class ObservedKind(StrEnum):
    """Kind of an observable instrument."""

    COUNTER = "counter"
    UP_DOWN_COUNTER = "up_down_counter"
    GAUGE = "gauge"


def encode_observed(
    stream: Stream,
    kind: ObservedKind,
    observed: Mapping[bytes, float],
    times_ns: tuple[int, int],
    intervals: Intervals,
    packer: RequestPacker,
) -> int:
    """Add one metric to the requests.

    Args:
        stream: The instrument.
        kind: Of the instrument.
        observed: Values by encoded attributes.
        times_ns: Begin of all sums, and now.
        intervals: Of all gauge points of the process.
        packer: Of metrics.

    Returns:
        The number of points that no request can hold: all of them or none, for they are few.
    """
    begin_ns, now_ns = times_ns
    points = []
    for attributes, value in observed.items():
        times = (begin_ns, now_ns)
        if kind is ObservedKind.GAUGE:
            times = intervals.following((stream.identity, attributes), now_ns)
        points.append(protobuf.field(1, _number(*times, value) + attributes))
    if kind is ObservedKind.GAUGE:
        data = protobuf.field(5, b"".join(points))
    else:
        monotonic = _MONOTONIC if kind is ObservedKind.COUNTER else b""
        data = protobuf.field(7, b"".join((*points, _CUMULATIVE, monotonic)))
    item = protobuf.field(2, stream.head + data)
    # Sums are repeated by the next request.
    lost = len(points) if kind is ObservedKind.GAUGE else 0
    return 0 if packer.add(stream.scope_head, (item,), len(item), lost) else len(points)


def _number(start_ns: int, time_ns: int, value: float) -> bytes:
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return _OF_INT(0x11, start_ns, 0x19, time_ns, 0x31, value)
    return _OF_DOUBLE(0x11, start_ns, 0x19, time_ns, 0x21, float(value))
