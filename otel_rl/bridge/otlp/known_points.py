"""Points of known shapes as columns, made into points when they are read (docs/adr/0020)."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar, overload

from otel_rl.bridge.otlp.shapes import Columns, ShareColumns, SumColumns
from otel_rl.records import Covered, Measurements, Point, Series, SumPoint, Temporality

__all__ = ["JoinedPoints", "KnownPoints", "KnownShares", "KnownSums", "SumSeries"]


PointT_co = TypeVar("PointT_co", bound=Point, covariant=True)
SeriesT = TypeVar("SeriesT")
ColumnsT = TypeVar("ColumnsT")


class _PointsMadeWhenRead(Sequence[PointT_co]):
    __slots__ = ()

    @overload
    def __getitem__(self, place: int) -> PointT_co: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[PointT_co]: ...
    def __getitem__(self, place: int | slice) -> PointT_co | Sequence[PointT_co]:
        return [*self][place]


class _Columnar(_PointsMadeWhenRead[PointT_co], Generic[PointT_co, SeriesT, ColumnsT]):
    """Points of a sender of otel_rl.

    Args:
        series: Of the points; the same object for all bodies of a sender and a shape, while it is
            known.
        columns: Of the points.
        now_ns: Time of points without one.
    """

    __slots__ = ("columns", "now_ns", "series")

    def __init__(self, series: Sequence[SeriesT], columns: ColumnsT, now_ns: int) -> None:
        self.series = series
        self.columns = columns
        self.now_ns = now_ns

    def __len__(self) -> int:
        return len(self.series)


class KnownPoints(_Columnar[Measurements, Series, Columns]):
    """Points with one value each."""

    __slots__ = ()

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


class SumSeries(NamedTuple):
    """Series of a point of a sum.

    Attributes:
        series: Its identity.
        temporality: As sent.
    """

    series: Series
    temporality: Temporality


class KnownShares(_Columnar[SumPoint, Series, ShareColumns]):
    """Steps' shares of counters."""

    __slots__ = ()

    def __iter__(self) -> Iterator[SumPoint]:
        now_ns = self.now_ns
        for series, before_ns, start_ns, end_ns, value, step in zip(
            self.series, *self.columns, strict=True
        ):
            yield SumPoint(
                series=series,
                start_ns=start_ns,
                time_ns=end_ns or now_ns,
                value=value,
                temporality=Temporality.DELTA,
                covers=Covered(before_ns if before_ns < end_ns else 0, end_ns) if end_ns else None,
                step=step,
                is_share=True,
            )


class KnownSums(_Columnar[SumPoint, SumSeries, SumColumns]):
    """Points of sums that are no shares.

    Args:
        series: See ``_Columnar``, as are the next two.
        columns: Of the points.
        now_ns: Time of points without one.
        knows_starts: See ``Sender``.
    """

    __slots__ = ("knows_starts",)

    def __init__(
        self, series: Sequence[SumSeries], columns: SumColumns, now_ns: int, *, knows_starts: bool
    ) -> None:
        super().__init__(series, columns, now_ns)
        self.knows_starts = knows_starts

    def __iter__(self) -> Iterator[SumPoint]:
        now_ns, moved_ns = self.now_ns, 1 if self.knows_starts else 0
        for (series, temporality), start_ns, end_ns, value in zip(
            self.series, *self.columns, strict=True
        ):
            tiles = temporality is Temporality.DELTA and start_ns < end_ns
            yield SumPoint(
                series=series,
                start_ns=start_ns - moved_ns if start_ns else 0,
                time_ns=end_ns or now_ns,
                value=value,
                temporality=temporality,
                covers=Covered(start_ns if tiles else 0, end_ns) if end_ns else None,
            )


class JoinedPoints(_PointsMadeWhenRead[Point]):
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
