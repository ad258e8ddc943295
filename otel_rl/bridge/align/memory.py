"""Which single points of an experiment were taken: bounded, and kept as a log beside the state.

What tiles time is remembered with its series, see ``seen.py``. Everything else is sixteen bytes a
point or thirty-two bytes a step, too much to be written again with every commit. So it is given
out as a log of what is new, kept in the transaction of the rows, and read again after a restart.
"""

import zlib
from array import array
from collections.abc import Mapping
from itertools import chain
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
        self._fresh = _columns(3)
        # Stream number, step, start and time of values of steps, and the values beside them.
        self._changed, self._values = _columns(4), array("d")

    def of(self, number: int) -> Seen:
        """What was taken of a stream."""
        seen = self._seen.get(number)
        if seen is None:
            seen = self._seen[number] = Seen()
        return seen

    def drop(self, number: int) -> Seen:
        """Forget a stream. Returns what was taken of it."""
        seen = self._seen.pop(number)
        self._remembered -= seen.single_points()
        self._orphaned += seen.single_points()
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

    def take_change(self, number: int, place: tuple[int, int, int], value: float) -> bool:
        """Take note of the value that a stream has at a step. Returns whether it is new.

        Args:
            number: Of the stream.
            place: Step, start and time.
            value: Then.
        """
        if not self._seen[number].known_changes().take(*place, value):
            return False
        for column, entry in zip(self._changed, (number, *place), strict=True):
            column.append(entry)
        self._values.append(value)
        self._remembered += 1
        return True

    def lost_steps(self) -> dict[int, int]:
        """Return by stream the highest step of which values were forgotten."""
        return {
            number: seen.changes.lost_step
            for number, seen in self._seen.items()
            if seen.changes is not None and seen.changes.lost_step != NO_STEP
        }

    def lose_steps(self, lost: Mapping[int, int]) -> None:
        """Take back what ``lost_steps`` gave."""
        for number, step in lost.items():
            seen = self._seen.get(number)
            if seen is not None:
                seen.known_changes().lost_step = step

    def take_log(self, max_remembered: int, unknown_through_ns: int) -> SeenLog | None:
        """Take out the single points that were taken since the last call; None if none were.

        Args:
            max_remembered: Beyond it the older half is forgotten.
            unknown_through_ns: What to forget through if only dropped streams had points.
        """
        fresh, changed = self._fresh, self._changed
        if not fresh[0] and not changed[0]:
            return None
        counts = array("q", [len(fresh[0])])
        columns = [column.tobytes() for column in (counts, *fresh, *changed)]
        body = zlib.compress(b"".join((*columns, self._values.tobytes())), level=1)
        log = SeenLog(max((*fresh[1], *changed[3])), body)
        self._fresh = _columns(3)
        self._changed, self._values = _columns(4), array("d")
        if self._remembered + self._orphaned > max_remembered:
            self._forget_older_half(unknown_through_ns)
        return log

    def restore(self, body: bytes) -> None:
        """Remember again what ``take_log`` gave out, in any order."""
        raw = zlib.decompress(body)
        columns = array("q", raw)
        n = columns[0]
        singles, changes = columns[1 : 1 + 3 * n], columns[1 + 3 * n :]
        for number, time_ns, step in zip(*_cut(singles, 3), strict=True):
            seen = self._known(number, time_ns)
            if seen is not None and seen.take_time(time_ns, step):
                self._remembered += 1
        numbers, *places, _ = _cut(changes, 5)
        values = array("d", raw[-changes.itemsize * len(numbers) :] if numbers else b"")
        for number, value, *place in zip(numbers, values, *places, strict=True):
            step, start_ns, time_ns = place
            seen = self._known(number, time_ns)
            if seen is not None and seen.known_changes().restore(step, start_ns, time_ns, value):
                self._remembered += 1

    def _known(self, number: int, time_ns: int) -> Seen | None:
        """Find what was taken of the stream of a logged point; None if the point is forgotten."""
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


def _columns(number: int) -> "list[array[int]]":
    return [array("q") for _ in range(number)]


def _cut(columns: "array[int]", number: int) -> "list[array[int]]":
    """Cut columns of one length that lie one after the other."""
    n = len(columns) // number
    return [columns[n * place : n * (place + 1)] for place in range(number)]
