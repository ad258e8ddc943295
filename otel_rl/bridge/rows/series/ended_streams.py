"""Series of forgotten workers, some of which return."""

from array import array
from typing import NamedTuple

from otel_rl.bridge.rows.dedup.dedup_log import DedupMemory
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.records import Series

__all__ = ["EndedStream", "EndedStreams"]


class EndedStream(NamedTuple):
    """State of a forgotten series, needed if its worker returns."""

    number: int
    counter: CounterStream | None
    histogram: HistogramStream | None
    level: float
    bounds: "array[int]"
    unknown_through_ns: int


class EndedStreams:
    """Keeps as many series as may live. Their counts are in the totals.

    Attributes:
        streams: The kept ones, the first to be dropped first.
        unknown_through_ns: Accepted points through this time may be of a dropped series.
    """

    def __init__(self, unknown_through_ns: int = 0) -> None:
        self.streams: dict[Series, EndedStream] = {}
        self.unknown_through_ns = unknown_through_ns

    def end(self, series: Series, stream: Stream) -> None:
        """Keep a series whose worker is forgotten."""
        self.streams[series] = EndedStream(
            stream.number,
            stream.counter,
            stream.histogram,
            stream.level or 0,  # as the journal keeps it
            stream.seen.bounds,
            stream.unknown_through_ns,
        )

    def take(self, series: Series) -> EndedStream | None:
        """Remove and return the state of a series that returns; None if it is unknown."""
        return self.streams.pop(series, None)

    def drop_surplus(self, max_series: int, memory: DedupMemory) -> None:
        """Drop all but ``max_series``, with their accepted points."""
        while len(self.streams) > max_series:
            ended = self.streams.pop(next(iter(self.streams)))
            seen = memory.drop(ended.number)
            counted = (c.time_ns for c in (ended.counter, ended.histogram) if c is not None)
            self.unknown_through_ns = max(self.unknown_through_ns, seen.newest_ns(), *counted)

    def counts_again(self, start_ns: int) -> bool:
        """Return whether a new cumulative series since ``start_ns`` may be counted already."""
        return 0 < start_ns <= self.unknown_through_ns
