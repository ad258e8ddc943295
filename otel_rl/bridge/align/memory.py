"""Which single points of an experiment were taken: bounded, and kept as a log beside the state.

What tiles time is remembered with its series, see ``seen.py``. Everything else is sixteen bytes a
point, too much to be written again with every commit. So it is given out as a log of what is new,
kept in the transaction of the rows, and read again after a restart.
"""

import zlib
from array import array
from typing import NamedTuple

from otel_rl.bridge.align.seen import NO_STEP, Seen

__all__ = ["Memory", "SeenLog"]

# One time in so many is looked at to find the middle of all that are remembered.
_SAMPLED = 64


class SeenLog(NamedTuple):
    """Single points that were taken, to be kept beside the state and given back to ``restore``.

    Attributes:
        newest_ns: The latest of their times.
        body: Opaque.
    """

    newest_ns: int
    body: bytes


class Memory:
    """What was taken of each series that may be heard of again, by the number of its stream.

    Attributes:
        forgotten_ns: Single points of this time and before are remembered no longer.
    """

    def __init__(self, forgotten_ns: int = 0) -> None:
        self.forgotten_ns = forgotten_ns
        self._seen: dict[int, Seen] = {}
        # Single points in the log: of the series in _seen, and of others.
        self._remembered = self._orphaned = 0
        # Stream number, time and step of what is not in the log yet.
        self._fresh = _no_points()

    def of(self, number: int) -> Seen:
        """What was taken of a stream."""
        seen = self._seen.get(number)
        if seen is None:
            seen = self._seen[number] = Seen()
        return seen

    def drop(self, number: int) -> Seen:
        """Forget a stream. Returns what was taken of it."""
        seen = self._seen.pop(number)
        self._remembered -= len(seen.times_ns)
        self._orphaned += len(seen.times_ns)
        return seen

    def take_time(self, number: int, time_ns: int, step: int | None = None) -> bool:
        """Take note of a single point of a stream. Returns whether it is new."""
        marked = NO_STEP if step is None else step
        if not self._seen[number].take_time(time_ns, marked):
            return False
        for column, value in zip(self._fresh, (number, time_ns, marked), strict=True):
            column.append(value)
        self._remembered += 1
        return True

    def take_log(self, max_remembered: int, unknown_through_ns: int) -> SeenLog | None:
        """Take out the single points that were taken since the last call; None if none were.

        Args:
            max_remembered: Beyond it the older half is forgotten.
            unknown_through_ns: What to forget through if only dropped streams had points.
        """
        fresh = self._fresh
        if not fresh[0]:
            return None
        body = zlib.compress(b"".join(column.tobytes() for column in fresh), level=1)
        log = SeenLog(max(fresh[1]), body)
        self._fresh = _no_points()
        if self._remembered + self._orphaned > max_remembered:
            self._forget_older_half(unknown_through_ns)
        return log

    def restore(self, body: bytes) -> None:
        """Remember again what ``take_log`` gave out, in any order."""
        columns = array("q", zlib.decompress(body))
        n = len(columns) // 3
        numbers, times_ns, steps = columns[:n], columns[n : 2 * n], columns[2 * n :]
        for number, time_ns, step in zip(numbers, times_ns, steps, strict=True):
            if time_ns <= self.forgotten_ns:
                continue
            seen = self._seen.get(number)
            if seen is None:
                self._orphaned += 1
            elif seen.take_time(time_ns, step):
                self._remembered += 1

    def _forget_older_half(self, unknown_through_ns: int) -> None:
        sample = sorted(
            time_ns for seen in self._seen.values() for time_ns in seen.times_ns[::_SAMPLED]
        ) or [unknown_through_ns]
        self.forgotten_ns = max(self.forgotten_ns, sample[len(sample) // 2])
        self._remembered = self._orphaned = 0
        for seen in self._seen.values():
            seen.forget_times(self.forgotten_ns)
            self._remembered += len(seen.times_ns)


def _no_points() -> "tuple[array[int], array[int], array[int]]":
    return array("q"), array("q"), array("q")
