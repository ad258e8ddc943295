"""Recognises repeated points of one series.

Senders repeat a request whose answer was lost, and a collector splits, joins and delays requests
and repeats those that were in flight when it stopped. So the bridge recognises repeated points, not
repeated requests; and a repeat may arrive hours late, so nothing may be forgotten early.

There are three ways to recognise a repeat, see ``Covered`` and ``Measurements.repeats``:

* Points that tile time: the accepted ones are a union of intervals, which is one interval as long
  as none is missing. So memory is constant, however long the run.
* Values of steps that a stock SDK repeats with every export, each time with a new timestamp: by the
  values and the times at which they changed. They take thirty-two bytes for each step.
* All other points: by (time, step), in sixteen bytes each.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Final

NO_STEP = -(1 << 63)
"""Stands for "no step" among the steps."""

# A sender that drops every other export makes an interval of each. Beyond this many, the oldest gap
# is closed: later points for it then count as repeats.
_MAX_INTERVALS = 1024


# A value that alternates this often in one step is not a new measurement each time.
_MAX_CHANGES = 4

# Values of a step that are compared one by one; beyond that, a set is used.
_MANY = 16

_NO_ROW: Final[Sequence[float]] = (math.nan, math.nan, math.nan, math.nan)
_NO_COLUMNS: Final["list[array[Any]]"] = [array("q"), array("q"), array("q"), array("d")]

_BLOCK: Final = 1_024
"""Rows of a block. A block of twice as many is split."""

Place = tuple[int, int]
"""A block, and a row in it."""

Key = tuple[float, ...]
"""Integers; infinity is larger than any."""


class SortedRows:
    """Rows sorted by ``keys`` integers each, with an optional number beside the keys.

    The rows are as dense in memory as arrays. A single array would move all later rows for an
    insertion, at quadratic cost if the newest rows arrive first. So there are many short blocks,
    and an insertion moves the rows of one.

    Args:
        keys: Number of keys.
        with_value: Whether each row has a number of type float beside its keys.

    Attributes:
        blocks: The rows, each block by column. No block is empty.
    """

    __slots__ = ("_firsts", "_keys", "_typecodes", "blocks")

    def __init__(self, keys: int, *, with_value: bool = False) -> None:
        self._keys = keys
        self._typecodes = "q" * keys + "d" * with_value
        self._clear()

    def _clear(self) -> None:
        self.blocks: list[list[array[Any]]] = []
        # The first row of each block.
        self._firsts: list[Key] = []

    def __len__(self) -> int:
        return sum(len(block[0]) for block in self.blocks)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def __iter__(self) -> Iterator[Sequence[float]]:
        for block in self.blocks:
            yield from zip(*block, strict=True)

    def column(self, number: int) -> Iterator[float]:
        for block in self.blocks:
            yield from block[number]

    def sample(self, number: int, every: int) -> Iterator[int]:
        return islice((int(key) for key in self.column(number)), 0, None, every)

    def last(self, number: int) -> int:
        """Return the first key of the last row. There must be a row."""
        return int(self.blocks[-1][number][-1])

    def after(self, key: Key) -> Place:
        """Return the place after all rows up to ``key``, where a row with this key is inserted."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return 0, 0
        block = self.blocks[number]
        low, high = 0, len(block[0])
        for column, wanted in zip(block, key[:-1], strict=False):
            first = bisect_left(column, wanted, low, high)
            high = bisect_right(column, wanted, first, high)
            low = first
            if low == high:
                return number, low
        return number, bisect_right(block[len(key) - 1], key[-1], low, high)

    def backward(self, place: Place) -> Iterator[Sequence[float]]:
        """Yield the rows before a place, the last first."""
        number, row = place
        while number >= 0:
            if number < len(self.blocks):
                for one in range(row - 1, -1, -1):
                    yield self._row(number, one)
            number -= 1
            row = len(self.blocks[number][0]) if number >= 0 else 0

    def forward(self, place: Place) -> Iterator[Sequence[float]]:
        number, row = place
        while number < len(self.blocks):
            for one in range(row, len(self.blocks[number][0])):
                yield self._row(number, one)
            number, row = number + 1, 0

    def put(self, place: Place, row: Sequence[float]) -> None:
        """Insert a row at the place that ``after`` its key returned."""
        number, at = place
        if not self.blocks:
            self.append(row)
            return
        block = self.blocks[number]
        for column, value in zip(block, row, strict=True):
            column.insert(at, value)
        if not at:
            self._firsts[number] = self._key(number)
        if len(block[0]) >= 2 * _BLOCK:
            self.blocks.insert(number + 1, [column[_BLOCK:] for column in block])
            for column in block:
                del column[_BLOCK:]
            self._firsts.insert(number + 1, self._key(number + 1))

    def append(self, row: Sequence[float]) -> None:
        if not self.blocks or len(self.blocks[-1][0]) >= 2 * _BLOCK:
            self.blocks.append([array(code) for code in self._typecodes])
            self._firsts.append(tuple(int(key) for key in row[: self._keys]))
        for column, value in zip(self.blocks[-1], row):  # noqa: B905  # for every sample
            column.append(value)

    def forget_through(self, key: int) -> None:
        number, row = self.after((key, *(math.inf,) * (self._keys - 1)))
        del self.blocks[:number], self._firsts[:number]
        if row:
            for column in self.blocks[0]:
                del column[:row]
            if self.blocks[0][0]:
                self._firsts[0] = self._key(0)
            else:
                del self.blocks[0], self._firsts[0]

    def keep(self, rows: Sequence[Sequence[float]]) -> None:
        self._clear()
        for row in rows:
            self.append(row)

    def _row(self, number: int, row: int) -> Sequence[float]:
        return [column[row] for column in self.blocks[number]]

    def _key(self, number: int) -> Key:
        return tuple(int(column[0]) for column in self.blocks[number][: self._keys])


class Changes:
    """Values that a series had at each of its steps, with the time of each change.

    A repeated value is not news, whenever the export was made and however late it arrives: it
    equals the value before it, or the one after it. If two processes with one name report in turns,
    their values are kept apart by their starts. If neither sends a start, alternating values count
    as two measurements, not as one in every export.

    Attributes:
        lost_step: Values of steps up to this one may have been forgotten; ``NO_STEP`` if none was.
    """

    __slots__ = ("_many", "_rows", "lost_step")

    def __init__(self) -> None:
        # Step, start as the sender gave it (0 for none), first time of the value, the value.
        self._rows = SortedRows(3, with_value=True)
        # Values of steps that have many.
        self._many: dict[int, set[float | None]] = {}
        self.lost_step = NO_STEP

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, step: int, start_ns: int, time_ns: int, value: float) -> bool:
        """Record a value reported at ``time_ns``. Returns whether it is new."""
        rows = self._rows
        value = float(value)  # as it is kept: an integer beyond 2**53 does not equal its own float
        steps, starts_ns, times_ns, values = rows.blocks[-1] if rows.blocks else _NO_COLUMNS
        if not steps or step > steps[-1]:  # nearly always: the first value of a new step
            if step <= self.lost_step:
                return False
            if 0 < len(steps) < _BLOCK:  # nearly always: ``append``
                steps.append(step)
                starts_ns.append(start_ns)
                times_ns.append(time_ns)
                values.append(value)
            else:
                rows.append((step, start_ns, time_ns, value))
            return True
        last = bisect_right(steps, step) - 1
        if (
            last >= 0
            and steps[last] == step
            and starts_ns[last] == start_ns
            and times_ns[last] <= time_ns
            and _same(values[last], value)
        ):  # or a repetition of the last value of a step
            return False
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
        if returns and self._was_recorded(step, value):
            return False
        self._put(place, (step, start_ns, time_ns, value))
        return True

    def restore(self, step: int, start_ns: int, time_ns: int, value: float) -> bool:
        """Restore a value that was accepted, in any order. Returns whether it was missing."""
        place = self._rows.after((step, start_ns, time_ns))
        before = next(self._rows.backward(place), _NO_ROW)
        if before[:3] == [step, start_ns, time_ns]:
            return False
        self._put(place, (step, start_ns, time_ns, value))
        return True

    def times_ns(self, every: int) -> Iterator[int]:
        return self._rows.sample(2, every)

    def newest_ns(self) -> int:
        return max(self._rows.sample(2, 1), default=0)

    def forget(self, through_ns: int) -> None:
        kept = [row for row in self._rows if row[2] > through_ns]
        if len(kept) == len(self._rows):
            return
        lost = max(int(row[0]) for row in self._rows if row[2] <= through_ns)
        self.lost_step = max(self.lost_step, lost)
        self._rows.keep(kept)
        self._many.clear()

    def _has_many(self, place: Place, step: int, start_ns: int) -> bool:
        """Return whether a step had so many values since a start that old values may return."""
        found = 0
        for way in self._rows.backward(place), self._rows.forward(place):
            for row in islice(way, _MAX_CHANGES):
                if row[0] != step or row[1] != start_ns:
                    break
                found += 1
        return found >= _MAX_CHANGES

    def _was_recorded(self, step: int, value: float) -> bool:
        """Return whether a value was recorded for the step, under any start."""
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
    """Return a hashable form of a value, in which NaN equals itself."""
    return None if value != value else value


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


class SeriesDedup:
    """Accepted points of one series.

    Attributes:
        bounds: start, end, start, end, ... of the intervals (start, end]: ascending, not touching.
        points: Time and step of each single point.
        changes: Repeated values of steps; None if the series has none.
    """

    __slots__ = ("bounds", "changes", "points")

    def __init__(self) -> None:
        self.bounds = array("q")
        self.points = SortedRows(2)
        self.changes: Changes | None = None

    def take_interval(self, start_ns: int, end_ns: int) -> bool:
        """Record the interval (start_ns, end_ns]. Returns whether any of it is new."""
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
        # An odd index lies inside an interval, an even one between two.
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
        """Record a single point. Returns whether it is new."""
        points = self.points
        if not points.blocks or time_ns > points.blocks[-1][0][-1]:
            points.append((time_ns, step))
            return True
        place = points.after((time_ns, step))
        if next(points.backward(place), None) == [time_ns, step]:
            return False
        points.put(place, (time_ns, step))
        return True

    def newest_ns(self) -> int:
        return max(
            self.bounds[-1] if self.bounds else 0,
            self.points.last(0) if self.points else 0,
            self.changes.newest_ns() if self.changes is not None else 0,
        )

    def known_changes(self) -> Changes:
        if self.changes is None:
            self.changes = Changes()
        return self.changes

    def single_points(self) -> int:
        return len(self.points) + (0 if self.changes is None else len(self.changes))

    def forget_times(self, through_ns: int) -> None:
        self.points.forget_through(through_ns)
        if self.changes is not None:
            self.changes.forget(through_ns)
