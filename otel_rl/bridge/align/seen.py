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

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from otel_rl.bridge.align.ordered import OrderedRows, Place

__all__ = ["NO_STEP", "Changes", "Seen"]

NO_STEP = -(1 << 63)
"""Stands for "no step" among the steps."""

# A sender that drops every other export makes an interval of each. Beyond this many, the oldest gap
# is closed: what would still come for it is then taken for a repetition.
_MAX_INTERVALS = 1024


# A value that alternates so often in one step is not measured again each time.
_MAX_CHANGES = 4

# Values of a step that are looked at one by one. Of more, a set says whether one is among them.
_MANY = 16

_NO_ROW: Final[Sequence[float]] = (math.nan, math.nan, math.nan, math.nan)


class Changes:
    """The values that a series had at each of its steps, from which time on.

    A value that is told again says nothing new, whenever the export was made and however late it
    arrives: it equals the one that was there before, or the one that came after. Of two processes
    with one name, which report in turns, each has values of its own, by the start that it gives. If
    neither gives one, what alternates is taken for two measurements, not for one in every export.

    Attributes:
        lost_step: Values of steps up to this one may have been forgotten; ``NO_STEP`` if none was.
    """

    __slots__ = ("_many", "_rows", "lost_step")

    def __init__(self) -> None:
        # Step, start as the sender gave it (0 for none), when the value was first told, the value.
        self._rows = OrderedRows(3, with_value=True)
        # The values of steps that have many.
        self._many: dict[int, set[float | None]] = {}
        self.lost_step = NO_STEP

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, step: int, start_ns: int, time_ns: int, value: float) -> bool:
        """Take note of a value that is told at ``time_ns``. Returns whether it is new."""
        rows = self._rows
        place = rows.after((step, start_ns, time_ns))
        before, after = next(rows.backward(place), _NO_ROW), next(rows.forward(place), _NO_ROW)
        told_before = before[0] == step and before[1] == start_ns
        told_after = after[0] == step and after[1] == start_ns
        if told_before and (_same(before[3], value) or before[2] == time_ns):
            return False
        if told_after and _same(after[3], value):
            return False
        is_known_step = step in (before[0], after[0])
        if not is_known_step and step <= self.lost_step:
            return False
        if told_before or told_after:
            returns = self._has_many(place, step, start_ns)
        else:
            returns = is_known_step
        if returns and self._was_told(step, value):
            return False
        self._put(place, (step, start_ns, time_ns, value))
        return True

    def restore(self, step: int, start_ns: int, time_ns: int, value: float) -> bool:
        """Put back a value that was new, in any order. Returns whether it was missing."""
        place = self._rows.after((step, start_ns, time_ns))
        before = next(self._rows.backward(place), _NO_ROW)
        if before[:3] == [step, start_ns, time_ns]:
            return False
        self._put(place, (step, start_ns, time_ns, value))
        return True

    def times_ns(self, every: int) -> Iterator[int]:
        """When one value in so many was first told."""
        return self._rows.sample(2, every)

    def newest_ns(self) -> int:
        """When the last value was first told; 0 if none was."""
        return max(self._rows.sample(2, 1), default=0)

    def forget(self, through_ns: int) -> None:
        """Forget the values that were first told through ``through_ns``."""
        kept = [row for row in self._rows if row[2] > through_ns]
        if len(kept) == len(self._rows):
            return
        lost = max(int(row[0]) for row in self._rows if row[2] <= through_ns)
        self.lost_step = max(self.lost_step, lost)
        self._rows.keep(kept)
        self._many.clear()

    def _has_many(self, place: Place, step: int, start_ns: int) -> bool:
        """Whether a start of a step has so many values that one may be an old one again."""
        found = 0
        for way in self._rows.backward(place), self._rows.forward(place):
            for row in islice(way, _MAX_CHANGES):
                if row[0] != step or row[1] != start_ns:
                    break
                found += 1
        return found >= _MAX_CHANGES

    def _was_told(self, step: int, value: float) -> bool:
        """Whether the step has had this value, of whichever start."""
        values = self._many.get(step)
        if values is None:
            of_step = takewhile(
                lambda row: row[0] == step,
                self._rows.forward(self._rows.after((step - 1, math.inf, math.inf))),
            )
            values = {_plain(row[3]) for row in of_step}
            if len(values) > _MANY:
                self._many[step] = values
        return _plain(value) in values

    def _put(self, place: Place, row: tuple[int, int, int, float]) -> None:
        self._rows.put(place, row)
        values = self._many.get(row[0])
        if values is not None:
            values.add(_plain(row[3]))


def _plain(value: float) -> float | None:
    """A value by which it can be found: NaN is no equal of itself."""
    return None if value != value else value


def _same(one: float, other: float) -> bool:
    """Return whether two values are one, NaN included."""
    return one == other or (one != one and other != other)


class Seen:
    """What was taken of one series.

    Attributes:
        bounds: start, end, start, end, ... of the intervals: (start, end], ascending, not touching.
        points: Time and step of each single point.
        changes: Values of steps that are told again and again; None if the series has none.
    """

    __slots__ = ("bounds", "changes", "points")

    def __init__(self) -> None:
        self.bounds = array("q")
        self.points = OrderedRows(2)
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
        points = self.points
        if not points or time_ns > points.last(0):
            points.append((time_ns, step))
            return True
        place = points.after((time_ns, step))
        if next(points.backward(place), None) == [time_ns, step]:
            return False
        points.put(place, (time_ns, step))
        return True

    def newest_ns(self) -> int:
        """The latest time of all that was taken; 0 if nothing was."""
        return max(
            self.bounds[-1] if self.bounds else 0,
            self.points.last(0) if self.points else 0,
            self.changes.newest_ns() if self.changes is not None else 0,
        )

    def known_changes(self) -> Changes:
        """Return the values of steps, which there are none of at first."""
        if self.changes is None:
            self.changes = Changes()
        return self.changes

    def single_points(self) -> int:
        """Return the number of points that are remembered one by one."""
        return len(self.points) + (0 if self.changes is None else len(self.changes))

    def forget_times(self, through_ns: int) -> None:
        """Forget the single points through ``through_ns``."""
        self.points.forget_through(through_ns)
        if self.changes is not None:
            self.changes.forget(through_ns)
