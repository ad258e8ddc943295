"""Points of known shapes as columns, made into points when they are read (docs/adr/0020)."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, overload

from otel_rl.bridge.otlp.shapes import Columns, ShareColumns, SumColumns
from otel_rl.records import Covered, Measurements, Point, Series, SumPoint, Temporality

__all__ = ["JoinedPoints", "KnownPoints", "KnownShares", "KnownSums", "SumSeries"]


class KnownPoints(Sequence[Measurements]):
    """Points with one value each, of a sender of otel_rl.

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


class SumSeries(NamedTuple):
    """Series of a point of a sum.

    Attributes:
        series: Its identity.
        temporality: As sent.
    """

    series: Series
    temporality: Temporality


class KnownShares(Sequence[SumPoint]):
    """Steps' shares of counters, of a sender of otel_rl.

    Args:
        series: As in ``KnownPoints``.
        columns: Of the shares.
        now_ns: Time of shares without one.
    """

    __slots__ = ("columns", "now_ns", "series")

    def __init__(self, series: Sequence[Series], columns: ShareColumns, now_ns: int) -> None:
        self.series = series
        self.columns = columns
        self.now_ns = now_ns

    def __len__(self) -> int:
        return len(self.series)

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

    @overload
    def __getitem__(self, place: int) -> SumPoint: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[SumPoint]: ...
    def __getitem__(self, place: int | slice) -> SumPoint | Sequence[SumPoint]:
        return [*self][place]


class KnownSums(Sequence[SumPoint]):
    """Points of sums that are no shares, of a sender of otel_rl.

    Args:
        series: As in ``KnownPoints``.
        columns: Of the points.
        now_ns: Time of points without one.
        knows_starts: See ``Sender``.
    """

    __slots__ = ("columns", "knows_starts", "now_ns", "series")

    def __init__(
        self,
        series: Sequence[SumSeries],
        columns: SumColumns,
        now_ns: int,
        *,
        knows_starts: bool,
    ) -> None:
        self.series = series
        self.columns = columns
        self.now_ns = now_ns
        self.knows_starts = knows_starts

    def __len__(self) -> int:
        return len(self.series)

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

    @overload
    def __getitem__(self, place: int) -> SumPoint: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[SumPoint]: ...
    def __getitem__(self, place: int | slice) -> SumPoint | Sequence[SumPoint]:
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
