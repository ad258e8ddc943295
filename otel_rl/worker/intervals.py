"""The time that each gauge point stands for, which makes it recognisable (ADR 0000).

    begin          time of point 1         time of point 2
      |-------------------]-----------------------]------------ ...
          point 1                  point 2

The points of one series tile time: each begins where the one before ended. So whoever has seen
everything up to a time knows a repeated point by its end alone, however many points there were.
"""

from typing import Final

__all__ = ["MAX_SERIES", "Intervals"]

MAX_SERIES: Final = 1 << 14
"""More than a bridge takes for a whole experiment; about 4 MB when all are in use."""

SeriesKey = tuple[bytes, bytes]
"""(scope and metric name, attributes), both as on the wire."""


class Intervals:
    """Where each series' last point ended. One thread.

    The intervals of a series never overlap and strictly increase, whatever the wall clock does.
    They leave a gap only after a series was forgotten, because ``max_series`` others have had
    points since.

    Args:
        begin_ns: Start of the first point of every series.
        max_series: Bounds the memory against attributes that never repeat.
    """

    def __init__(self, begin_ns: int, max_series: int = MAX_SERIES) -> None:
        # From the longest unused to the last used. No forgotten series ended after _begin_ns.
        self._ends: dict[SeriesKey, int] = {}
        self._begin_ns = begin_ns
        self._max_series = max_series

    def following(self, key: SeriesKey, measured_ns: int) -> tuple[int, int]:
        """(start, time) of the next point of a series: what lies after start, up to time.

        Args:
            key: The series.
            measured_ns: When the point's last measurement was made.
        """
        start_ns = self._ends.pop(key, None)
        if start_ns is None:
            if len(self._ends) >= self._max_series:
                self._forget_one()
            start_ns = self._begin_ns
        # A wall clock that was set back stands still here until it has caught up.
        end_ns = self._ends[key] = max(measured_ns, start_ns + 1)
        return start_ns, end_ns

    def _forget_one(self) -> None:
        """Whoever comes back, or is new, begins after everything that is forgotten."""
        ended_ns = self._ends.pop(next(iter(self._ends)))
        self._begin_ns = max(self._begin_ns, ended_ns)
