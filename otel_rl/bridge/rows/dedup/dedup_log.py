"""Bounded memory of an experiment's accepted single points, logged beside its state.

Points that tile time are stored with their series, see ``dedup.py``. Single points take sixteen
bytes each, or thirty-two bytes for a step, too much to be written again with every commit. So new
points are returned as a log, stored in the transaction of the rows, and read again after a restart.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from otel_rl.bridge.journal.log import Appended
from otel_rl.bridge.journal.state import (
    Floats,
    Integers,
    Stored,
    compress,
    decode,
    decompress_each,
    encode,
    refusing,
)
from otel_rl.bridge.rows.dedup.series_dedup import NO_STEP, SeriesDedup

# Points in a part of the log, which is read part by part. One takes 40 bytes.
_PART_POINTS = 1 << 17

# One time in this many is sampled to find the median.
_SAMPLED = 64


class Part(Stored):
    """Part of the log: columns of one length each.

    Single points are listed by stream, time and step; values of steps by stream, step, start and
    time.
    """

    numbers: Integers
    times_ns: Integers
    steps: Integers
    changed_numbers: Integers
    changed_steps: Integers
    changed_starts_ns: Integers
    changed_times_ns: Integers
    changed_values: Floats


class DedupMemory:
    """Accepted points of each series that may report them again, by the number of its stream.

    Attributes:
        forgotten_ns: Single points up to this time are forgotten.
    """

    def __init__(self, forgotten_ns: int = 0) -> None:
        self.forgotten_ns = forgotten_ns
        self._seen: dict[int, SeriesDedup] = {}
        # Number of single points in the log: of the series in _seen, and of others.
        self._remembered = self._orphaned = 0
        # By stream, the highest step whose values may have been forgotten.
        self._lost_steps: dict[int, int] = {}
        # Stream number, time and step of points that are not in the log yet.
        self._fresh = _columns(3)
        # Stream number, step, start and time of values of steps, and the values beside them.
        self._changed, self._values = _columns(4), array("d")

    def of(self, number: int) -> SeriesDedup:
        seen = self._seen.get(number)
        if seen is None:
            seen = self._seen[number] = SeriesDedup()
        return seen

    def drop(self, number: int) -> SeriesDedup:
        seen = self._seen.pop(number)
        self._lost_steps.pop(number, None)
        self._remembered -= seen.single_points()
        self._orphaned += seen.single_points()
        return seen

    def take_time(self, number: int, time_ns: int, step: int | None = None) -> bool:
        """Record a single point of a stream. Returns whether it is new."""
        marked = NO_STEP if step is None else step
        if not self._seen[number].take_time(time_ns, marked):
            return False
        self.took_times([number], [time_ns], [marked])
        return True

    def took_times(self, *columns: Sequence[int]) -> None:
        """Log single points of several streams, as columns: stream numbers, times and steps."""
        for column, values in zip(self._fresh, columns, strict=True):
            column.extend(values)
        self._remembered += len(columns[0])

    def took_changes(self, *columns: Sequence[Any]) -> None:
        """Log values of steps as columns: stream numbers, steps, starts, times, values."""
        logged: tuple[array[Any], ...] = (*self._changed, self._values)
        for column, values in zip(logged, columns, strict=True):
            column.extend(values)
        self._remembered += len(columns[0])

    def lost_steps(self) -> dict[int, int]:
        """Return, by stream, the highest step whose values may have been forgotten."""
        return self._lost_steps

    def lose_steps(self, lost: Mapping[int, int]) -> None:
        for number, step in lost.items():
            seen = self._seen.get(number)
            if seen is not None:
                seen.known_changes().lost_step = self._lost_steps[number] = step

    def take_log(self, max_remembered: int, unknown_through_ns: int) -> Appended | None:
        """Return the single points accepted since the last call; None if there are none.

        Args:
            max_remembered: Beyond this number of points the older half is forgotten.
            unknown_through_ns: Time up to which points count as forgotten if only dropped streams
                had points.
        """
        fresh, changed = self._fresh, self._changed
        if not fresh[0] and not changed[0]:
            return None
        columns: tuple[Any, ...] = (*fresh, *changed, self._values)
        body = b"".join(
            compress(encode(Part(*(one[at : at + _PART_POINTS] for one in columns))))
            for at in range(0, max(len(fresh[0]), len(changed[0])), _PART_POINTS)
        )
        log = Appended(max((*fresh[1], *changed[3])), body)
        self._fresh = _columns(3)
        self._changed, self._values = _columns(4), array("d")
        if self._remembered + self._orphaned > max_remembered:
            self._forget_older_half(unknown_through_ns)
        return log

    def restore(self, body: bytes, max_remembered: int) -> None:
        """Restore results of ``take_log``, in any order.

        Args:
            max_remembered: Beyond twice this number of points, which no log of a bridge reaches,
                the older half is forgotten.

        Raises:
            StateRefused: The bytes are not a log. Points read before the fault are kept.
        """
        for raw in decompress_each(body):
            part = decode(raw, Part)
            with refusing():
                self._restore(part)
            if self._remembered + self._orphaned > 2 * max_remembered:
                self._forget_older_half(self.forgotten_ns)

    def _restore(self, part: Part) -> None:
        singles = zip(part.numbers, part.times_ns, part.steps, strict=True)
        for number, time_ns, step in singles:
            seen = self._known(number, time_ns)
            if seen is not None and seen.take_time(time_ns, step):
                self._remembered += 1
        changes = zip(
            part.changed_numbers,
            part.changed_steps,
            part.changed_starts_ns,
            part.changed_times_ns,
            part.changed_values,
            strict=True,
        )
        for number, step, start_ns, time_ns, value in changes:
            seen = self._known(number, time_ns)
            if seen is not None and seen.known_changes().restore(step, start_ns, time_ns, value):
                self._remembered += 1

    def _known(self, number: int, time_ns: int) -> SeriesDedup | None:
        """Return the accepted points of a logged point's stream; None if the point is forgotten."""
        if time_ns <= self.forgotten_ns:
            return None
        seen = self._seen.get(number)
        if seen is None:
            self._orphaned += 1
        return seen

    def _forget_older_half(self, unknown_through_ns: int) -> None:
        seen_times = [seen.points.sample(0, _SAMPLED) for seen in self._seen.values()]
        seen_times += [
            seen.changes.times_ns(_SAMPLED)
            for seen in self._seen.values()
            if seen.changes is not None
        ]
        sample = sorted(chain.from_iterable(seen_times)) or [unknown_through_ns]
        self.forgotten_ns = max(self.forgotten_ns, sample[len(sample) // 2])
        self._remembered = self._orphaned = 0
        for seen in self._seen.values():
            seen.forget_times(self.forgotten_ns)
            self._remembered += seen.single_points()
        self._lost_steps = {
            number: seen.changes.lost_step
            for number, seen in self._seen.items()
            if seen.changes is not None and seen.changes.lost_step != NO_STEP
        }


def _columns(number: int) -> "list[array[int]]":
    return [array("q") for _ in range(number)]
