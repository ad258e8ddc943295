"""Reads bodies of known shapes, from workers of otel_rl, without parsing them (docs/adr/0020).

A shape is learned from a body that was decoded in the usual way, and only if reading it by its
shape gives the same points. Histograms are cut out, and parsed.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_rl.bridge.otlp.known_points import KnownPoints, KnownShares, KnownSums, SumSeries
from otel_rl.bridge.otlp.resource import Sender
from otel_rl.bridge.otlp.shapes import BodyShape, Cuts, Histogram, ShapeCache
from otel_rl.records import Measurements, Point, Series, SumPoint

__all__ = ["KnownBody", "learn_body", "read_known"]

_MAX_BYTES: Final = 64 << 20
"""Memory of the known series: those of 4,000 workers with 40 each."""

_SERIES_BYTES: Final = 300
"""Of a series without its texts, which are in the body."""


class KnownBody(NamedTuple):
    """Content of a body.

    Attributes:
        gauges: Their points.
        shares: Of counters, as ``KnownShares`` if there are any.
        sums: Their other points, as ``KnownSums`` if there are any.
        beat_ns: The latest time of the points without a value; 0 if there is none.
        histograms: Serialized scope and metric of each, the metrics still to be parsed. Each may
            turn out to be another metric.
    """

    gauges: KnownPoints
    shares: Sequence[SumPoint]
    sums: Sequence[SumPoint]
    beat_ns: int
    histograms: Sequence[tuple[bytes, bytes]]


class _SeriesOf(NamedTuple):
    """Series of the points of a body, in their order."""

    gauges: Sequence[Series]
    shares: Sequence[Series]
    sums: Sequence[SumSeries]


class _KnownSeries:
    """Series of each sender and shape, within a bound on memory. Any thread may use it."""

    def __init__(self) -> None:
        # _lock guards everything below. The number of a shape, as it must not stay for its series.
        self._lock = threading.Lock()
        self._series: OrderedDict[tuple[Sender, int], tuple[int, _SeriesOf]] = OrderedDict()
        self._bytes = 0

    def of(self, sender: Sender, shape: BodyShape) -> _SeriesOf | None:
        """Return the series of the points with a value, in their order; None if unknown."""
        with self._lock:
            found = self._series.get((sender, shape.number))
            if found is None:
                return None
            self._series.move_to_end((sender, shape.number))
            return found[1]

    def keep(self, sender: Sender, shape: BodyShape, series: _SeriesOf, size: int) -> None:
        """Keep the series of a body of ``size`` bytes."""
        size += _SERIES_BYTES * sum(map(len, series))
        with self._lock:
            before, _ = self._series.pop((sender, shape.number), (0, None))
            self._series[sender, shape.number] = size, series
            self._bytes += size - before
            while self._bytes > _MAX_BYTES:
                self._bytes -= self._series.popitem(last=False)[1][0]


_shapes = ShapeCache()
_series = _KnownSeries()
_cuts = Cuts()


def read_known(sender: Sender, body: bytes, now_ns: int) -> KnownBody | None:
    """Return the content of a body.

    None unless its shape is known, and its sender has sent it before.

    Args:
        sender: An exact one.
        body: ``ResourceMetrics`` without its resource.
        now_ns: Time of points without one.
    """
    histograms: Sequence[Histogram] = ()
    shape = _shapes.find(body)
    if shape is None:
        cut = _cuts.again(sender, body)
        if cut is None:
            return None
        body, histograms, cuts = cut
        shape = _shapes.find(body, cuts)
    series = None if shape is None else _series.of(sender, shape)
    if shape is None or series is None:
        return None
    return _read(sender, shape, body, series, now_ns, histograms)


def learn_body(sender: Sender, body: bytes, now_ns: int, points: Sequence[Point]) -> None:
    """Learn the shape and the series of a body.

    Args:
        sender: An exact one.
        body: ``ResourceMetrics`` without its resource.
        now_ns: Time of points without one.
        points: All of the body, decoded in the usual way.
    """
    rest, histograms, _ = _cuts.anew(sender, body)
    gauges = [point for point in points if isinstance(point, Measurements)]
    of_sums = [point for point in points if isinstance(point, SumPoint)]
    shares = [point for point in of_sums if point.is_share]
    sums = [point for point in of_sums if not point.is_share]
    if not histograms and len(gauges) + len(of_sums) < len(points):
        return
    series = _SeriesOf(
        tuple([point.series for point in gauges]),
        tuple([point.series for point in shares]),
        tuple([SumSeries(point.series, point.temporality) for point in sums]),
    )

    def gives_the_same(shape: BodyShape) -> bool:
        if (shape.measurements, shape.shares, shape.sums) != tuple(map(len, series)):
            return False
        read = _read(sender, shape, rest, series, now_ns)
        is_same = list(map(_spelled, read.gauges)) == list(map(_spelled, gauges))
        read_sums = [repr(point) for point in (*read.shares, *read.sums)]
        return is_same and read_sums == [repr(point) for point in (*shares, *sums)]

    shape = _shapes.find(rest)
    if shape is None:
        shape = _shapes.learn(rest, gives_the_same)
    elif not gives_the_same(shape):
        shape = None
    if shape is not None:
        _series.keep(sender, shape, series, len(rest))


def _read(
    sender: Sender,
    shape: BodyShape,
    body: bytes,
    series: _SeriesOf,
    now_ns: int,
    histograms: Sequence[Histogram] = (),
) -> KnownBody:
    numbers = shape.read(body)
    shares: Sequence[SumPoint] = ()
    sums: Sequence[SumPoint] = ()
    if shape.shares:
        shares = KnownShares(series.shares, numbers.shares, now_ns)
    if shape.sums:
        sums = KnownSums(series.sums, numbers.sums, now_ns, knows_starts=sender.knows_starts)
    gauges = KnownPoints(series.gauges, numbers.gauges, now_ns)
    parsed_later = [(shape.scope(one.scope), one.metric) for one in histograms]
    return KnownBody(gauges, shares, sums, max(numbers.beats_ns, default=0), parsed_later)


def _spelled(point: Measurements) -> object:
    """Return a form of a point that compares equal to an equal one: NaN does not equal itself."""
    columns = ([*point.times_ns], [*point.values], [*point.steps])
    return repr(columns), point.covers, point.told_since_ns
