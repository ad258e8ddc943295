"""Reads the points of bodies of known shapes, from workers of otel_rl (docs/adr/0020).

A shape is learned from a body that was decoded in the usual way, and only if reading it by its
shape gives the same points.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, overload

from otel_rl.bridge.otlp.resource import Sender
from otel_rl.bridge.otlp.shapes import BodyShape, Columns, ShapeCache
from otel_rl.records import Covered, Measurements, Point, Series

__all__ = ["JoinedPoints", "KnownPoints", "learned", "read_known"]

_MAX_BYTES: Final = 64 << 20
"""Memory of the known series: those of 4,000 workers with 40 each."""

_SERIES_BYTES: Final = 300
"""Of a series without its texts, which are in the body."""


class KnownPoints(Sequence[Measurements]):
    """Points with one value each, of a sender of otel_rl: columns, made into points when read.

    Args:
        series: Of the points; the same object for all bodies of a sender and a shape, while it is
            known.
        columns: Of the points.
        now_ns: Time of measurements without one.
    """

    __slots__ = ("columns", "now_ns", "series")

    def __init__(self, series: Sequence[Series], columns: Columns, now_ns: int) -> None:
        self.series = series
        self.columns = columns
        self.now_ns = now_ns

    def __len__(self) -> int:
        return len(self.series)

    def __iter__(self) -> Iterator[Measurements]:
        now_ns = self.now_ns
        for one, start_ns, end_ns, time_ns, value, step in zip(
            self.series, *self.columns, strict=True
        ):
            yield Measurements(
                one,
                (time_ns or now_ns,),
                (value,),
                (step,),
                Covered(start_ns if start_ns < end_ns else 0, end_ns) if end_ns else None,
            )

    @overload
    def __getitem__(self, place: int) -> Measurements: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Measurements]: ...
    def __getitem__(self, place: int | slice) -> Measurements | Sequence[Measurements]:
        return [*self][place]


class JoinedPoints(Sequence[Point]):
    """Points of several senders, one after the other.

    Args:
        parts: Of a sender each, in their order.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Sequence[Point]]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Point]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Point]: ...
    def __getitem__(self, place: int | slice) -> Point | Sequence[Point]:
        return [*self][place]


class _KnownSeries:
    """Series of each sender and shape, within a bound on memory. Any thread may use it."""

    def __init__(self) -> None:
        # _lock guards everything below. The number of a shape, as it must not stay for its series.
        self._lock = threading.Lock()
        self._series: OrderedDict[tuple[Sender, int], tuple[int, Sequence[Series]]] = OrderedDict()
        self._bytes = 0

    def of(self, sender: Sender, shape: BodyShape) -> Sequence[Series] | None:
        """Return the series of the points with a value, in their order; None if unknown."""
        with self._lock:
            found = self._series.get((sender, shape.number))
            if found is None:
                return None
            self._series.move_to_end((sender, shape.number))
            return found[1]

    def keep(self, sender: Sender, shape: BodyShape, series: Sequence[Series], size: int) -> None:
        """Keep the series of a body of ``size`` bytes."""
        size += _SERIES_BYTES * len(series)
        with self._lock:
            before, _ = self._series.pop((sender, shape.number), (0, ()))
            self._series[sender, shape.number] = size, series
            self._bytes += size - before
            while self._bytes > _MAX_BYTES:
                self._bytes -= self._series.popitem(last=False)[1][0]


_shapes = ShapeCache()
_series = _KnownSeries()


def read_known(sender: Sender, body: bytes, now_ns: int) -> tuple[KnownPoints, int] | None:
    """Return the points of a body, and the latest time of its points without a value.

    None unless its shape is known, and its sender has sent it before.

    Args:
        sender: An exact one.
        body: ``ResourceMetrics`` without its resource.
        now_ns: Time of measurements without one.
    """
    shape = _shapes.find(body)
    series = None if shape is None else _series.of(sender, shape)
    if shape is None or series is None:
        return None
    columns, beats_ns = shape.read(body)
    return KnownPoints(series, columns, now_ns), max(beats_ns, default=0)


def learned(sender: Sender, body: bytes, now_ns: int, points: Sequence[Point]) -> Sequence[Point]:
    """Learn the shape and the series of a body. Returns its points.

    Args:
        sender: An exact one.
        body: ``ResourceMetrics`` without its resource.
        now_ns: Time of measurements without one.
        points: All of the body, decoded in the usual way.
    """
    series = tuple([point.series for point in points])

    def gives_the_same(shape: BodyShape) -> bool:
        if shape.measurements != len(points):
            return False
        read = KnownPoints(series, shape.read(body)[0], now_ns)
        return list(map(_spelled, read)) == list(map(_spelled, points))

    shape = _shapes.find(body)
    if shape is None:
        shape = _shapes.learn(body, gives_the_same)
    elif not gives_the_same(shape):
        shape = None
    if shape is not None:
        _series.keep(sender, shape, series, len(body))
    return points


def _spelled(point: Point) -> object:
    """Return a form of a point that compares equal to an equal one: NaN does not equal itself."""
    if not isinstance(point, Measurements):
        return None
    columns = ([*point.times_ns], [*point.values], [*point.steps])
    return repr(columns), point.covers, point.told_since_ns
