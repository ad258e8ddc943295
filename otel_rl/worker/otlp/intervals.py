"""Time interval of each gauge point, which identifies the point (ADR 0000).

    begin          time of point 1         time of point 2
      |-------------------]-----------------------]------------ ...
          point 1                  point 2

The points of one series tile time: each begins at the end of the previous one. A receiver that has
all points up to a time recognises a repetition by its end alone, for any number of points.
"""

from typing import Final

__all__ = ["MAX_SERIES", "Intervals"]

MAX_SERIES: Final = 1 << 14
"""More than a bridge accepts for a whole experiment; about 4 MB when all are in use."""

SeriesKey = tuple[bytes, bytes]
"""(scope and metric name, attributes), both encoded."""


class Intervals:
    """End of the last point of each series. One thread.

    The intervals of a series never overlap and strictly increase, whatever the wall clock does. A
    gap occurs only after a series was evicted, because ``max_series`` others have had points since.

    Args:
        begin_ns: Start of the first point of every series.
        max_series: Bounds the memory against attributes that never repeat.
    """

    def __init__(self, begin_ns: int, max_series: int = MAX_SERIES) -> None:
        # Least recently used first. No evicted series ended after _begin_ns.
        self._ends: dict[SeriesKey, int] = {}
        self._begin_ns = begin_ns
        self._max_series = max_series

    def following(self, key: SeriesKey, measured_ns: int) -> tuple[int, int]:
        """Return (start, time) of the next point of a series: after start, up to time.

        Args:
            key: The series.
            measured_ns: Time of the point's last measurement.
        """
        start_ns = self._ends.pop(key, None)
        if start_ns is None:
            if len(self._ends) >= self._max_series:
                self._forget_one()
            start_ns = self._begin_ns
        # After the wall clock is set back, the end grows by 1 ns until the clock has caught up.
        end_ns = measured_ns if measured_ns > start_ns else start_ns + 1  # faster than max
        self._ends[key] = end_ns
        return start_ns, end_ns

    def _forget_one(self) -> None:
        """Evict a series; returning and new series begin after all evicted ones."""
        ended_ns = self._ends.pop(next(iter(self._ends)))
        self._begin_ns = max(self._begin_ns, ended_ns)
