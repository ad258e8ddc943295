"""What was taken of one series, so that nothing is taken twice.

Senders repeat a request whose answer was lost, and a collector cuts and joins requests, holds them
back and sends those again that were in flight when it stopped. So a repetition is known by its
point, not by its request; and it may come hours late, so nothing may be forgotten early.

Three ways to be known, see ``Covered`` and ``Measurements.repeats``:

* Points that tile time. What was taken is a union of intervals, which is one interval as long as
  nothing is missing: constant memory, however long the run.
* The values of steps that a stock SDK tells again with every export, at another time each: by the
  values, at the times at which they changed. Thirty-two bytes for each step.
* Everything else, by (time, step): sixteen bytes each.
"""

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress

__all__ = ["NO_STEP", "Changes", "Seen"]

NO_STEP = -(1 << 63)
"""Stands for "no step" among the steps."""

# A sender that drops every other export makes an interval of each. Beyond this many, the oldest gap
# is closed: what would still come for it is then taken for a repetition.
_MAX_INTERVALS = 1024


# A value that alternates so often in one step is not measured again each time.
_MAX_CHANGES = 4


class Changes:
    """The values that a series had at each of its steps, from which time on.

    A value that is told again says nothing new, whenever the export was made and however late it
    arrives: it equals the one that was there before, or the one that came after. Of two processes
    with one name, which report in turns, each has values of its own, by the start that it gives. If
    neither gives one, what alternates is taken for two measurements, not for one in every export.

    Attributes:
        steps: Ascending.
        starts_ns: As the sender gave them, 0 for none; ascending where steps are equal.
        times_ns: When each value was first told; ascending where steps and starts are equal.
        values: Of one length with the others.
        lost_step: Values of steps up to this one may have been forgotten; ``NO_STEP`` if none was.
    """

    __slots__ = ("lost_step", "starts_ns", "steps", "times_ns", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.starts_ns = array("q")
        self.times_ns = array("q")
        self.values = array("d")
        self.lost_step = NO_STEP

    def take(self, step: int, start_ns: int, time_ns: int, value: float) -> bool:
        """Take note of a value that is told at ``time_ns``. Returns whether it is new."""
        times_ns, values = self.times_ns, self.values
        first, end, low, high = self._range(step, start_ns)
        place = bisect_right(times_ns, time_ns, low, high)
        if place > low and (_same(values[place - 1], value) or times_ns[place - 1] == time_ns):
            return False
        if place < high and _same(values[place], value):
            return False
        if first == end and step <= self.lost_step:
            return False
        returns = high - low >= _MAX_CHANGES if low < high else first < end
        if returns and any(_same(known, value) for known in values[first:end]):
            return False
        self._insert(place, step, start_ns, time_ns, value)
        return True

    def restore(self, step: int, start_ns: int, time_ns: int, value: float) -> bool:
        """Put back a value that was new, in any order. Returns whether it was missing."""
        _, _, low, high = self._range(step, start_ns)
        place = bisect_left(self.times_ns, time_ns, low, high)
        if place < high and self.times_ns[place] == time_ns:
            return False
        self._insert(place, step, start_ns, time_ns, value)
        return True

    def _range(self, step: int, start_ns: int) -> tuple[int, int, int, int]:
        """Return where a step begins and ends, and within it a start."""
        first = bisect_left(self.steps, step)
        end = bisect_right(self.steps, step, first)
        low = bisect_left(self.starts_ns, start_ns, first, end)
        return first, end, low, bisect_right(self.starts_ns, start_ns, low, end)

    def _insert(self, place: int, step: int, start_ns: int, time_ns: int, value: float) -> None:
        self.steps.insert(place, step)
        self.starts_ns.insert(place, start_ns)
        self.times_ns.insert(place, time_ns)
        self.values.insert(place, value)

    def forget(self, through_ns: int) -> None:
        """Forget the values that were first told through ``through_ns``."""
        kept = [time_ns > through_ns for time_ns in self.times_ns]
        if all(kept):
            return
        lost = max(step for step, is_kept in zip(self.steps, kept, strict=True) if not is_kept)
        self.lost_step = max(self.lost_step, lost)
        self.steps = array("q", compress(self.steps, kept))
        self.starts_ns = array("q", compress(self.starts_ns, kept))
        self.values = array("d", compress(self.values, kept))
        self.times_ns = array("q", compress(self.times_ns, kept))


def _same(one: float, other: float) -> bool:
    """Return whether two values are one, NaN included."""
    return one == other or (one != one and other != other)


class Seen:
    """What was taken of one series.

    Attributes:
        bounds: start, end, start, end, ... of the intervals: (start, end], ascending, not touching.
        times_ns: Times of single points, ascending.
        steps: Of each of them; ascending where times are equal.
        changes: Values of steps that are told again and again; None if the series has none.
    """

    __slots__ = ("bounds", "changes", "steps", "times_ns")

    def __init__(self) -> None:
        self.bounds = array("q")
        self.times_ns = array("q")
        self.steps = array("q")
        self.changes: Changes | None = None

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
        return max(
            self.bounds[-1] if self.bounds else 0,
            self.times_ns[-1] if self.times_ns else 0,
            max(self.changes.times_ns, default=0) if self.changes is not None else 0,
        )

    def known_changes(self) -> Changes:
        """Return the values of steps, which there are none of at first."""
        if self.changes is None:
            self.changes = Changes()
        return self.changes

    def single_points(self) -> int:
        """Return the number of points that are remembered one by one."""
        return len(self.times_ns) + (0 if self.changes is None else len(self.changes.steps))

    def forget_times(self, through_ns: int) -> None:
        """Forget the single points through ``through_ns``."""
        end = bisect_right(self.times_ns, through_ns)
        del self.times_ns[:end], self.steps[:end]
        if self.changes is not None:
            self.changes.forget(through_ns)
