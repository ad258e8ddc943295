"""What was taken of one series, so that nothing is taken twice.

Senders repeat a request whose answer was lost, and a collector cuts and joins requests, holds them
back and sends those again that were in flight when it stopped. So a repetition is known by its
point, not by its request; and it may come hours late, so nothing may be forgotten early.

Two ways to be known, see ``Covered``:

* Points that tile time. What was taken is a union of intervals, which is one interval as long as
  nothing is missing: constant memory, however long the run.
* Everything else, by (time, step): sixteen bytes each.
"""

from array import array
from bisect import bisect_left, bisect_right

__all__ = ["NO_STEP", "Seen"]

NO_STEP = -(1 << 63)
"""Stands for "no step" among the steps."""

# A sender that drops every other export makes an interval of each. Beyond this many, the oldest gap
# is closed: what would still come for it is then taken for a repetition.
_MAX_INTERVALS = 1024


class Seen:
    """What was taken of one series.

    Attributes:
        bounds: start, end, start, end, ... of the intervals: (start, end], ascending, not touching.
        times_ns: Times of single points, ascending.
        steps: Of each of them; ascending where times are equal.
    """

    __slots__ = ("bounds", "steps", "times_ns")

    def __init__(self) -> None:
        self.bounds = array("q")
        self.times_ns = array("q")
        self.steps = array("q")

    def take_interval(self, start_ns: int, end_ns: int) -> bool:
        """Take note of (start_ns, end_ns]. Returns whether any of it is new."""
        bounds = self.bounds
        if bounds and start_ns == bounds[-1]:
            bounds[-1] = end_ns  # nearly always
            return True
        if bounds and start_ns < bounds[-1]:
            return self._insert_interval(start_ns, end_ns)
        bounds.append(start_ns)
        bounds.append(end_ns)
        if len(bounds) > 2 * _MAX_INTERVALS:
            del bounds[1:3]
        return True

    def _insert_interval(self, start_ns: int, end_ns: int) -> bool:
        bounds = self.bounds
        # An odd place lies inside of an interval, an even one between two.
        if bisect_right(bounds, start_ns) == bisect_left(bounds, end_ns) and (
            bisect_right(bounds, start_ns) % 2
        ):
            return False
        low, high = bisect_left(bounds, start_ns), bisect_right(bounds, end_ns)
        bounds[low:high] = array(
            "q", ([] if low % 2 else [start_ns]) + ([] if high % 2 else [end_ns])
        )
        if len(bounds) > 2 * _MAX_INTERVALS:
            del bounds[1:3]
        return True

    def take_time(self, time_ns: int, step: int = NO_STEP) -> bool:
        """Take note of a single point. Returns whether it is new."""
        times_ns, steps = self.times_ns, self.steps
        if not times_ns or time_ns > times_ns[-1]:
            times_ns.append(time_ns)
            steps.append(step)
            return True
        low = bisect_left(times_ns, time_ns)
        high = bisect_right(times_ns, time_ns, low)
        place = bisect_left(steps, step, low, high)
        if place < high and steps[place] == step:
            return False
        times_ns.insert(place, time_ns)
        steps.insert(place, step)
        return True

    def newest_ns(self) -> int:
        """The latest time of all that was taken; 0 if nothing was."""
        return max(self.bounds[-1] if self.bounds else 0, self.times_ns[-1] if self.times_ns else 0)

    def forget_times(self, through_ns: int) -> None:
        """Forget the single points through ``through_ns``."""
        end = bisect_right(self.times_ns, through_ns)
        del self.times_ns[:end], self.steps[:end]
