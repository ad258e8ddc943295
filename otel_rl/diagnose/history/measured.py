"""Measurements of one key by several workers: columns that become series when they are asked for.

Most keys are read by no rule, so a look at a run that goes on only appends to their columns.
"""

from array import array
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from operator import attrgetter
from sys import getsizeof
from typing import Final, NamedTuple

from otel_rl.diagnose.history.track import Track, in_order

__all__ = ["LARGEST", "Measured", "SeriesOfWorkers", "cut"]

LARGEST: Final = 1e60
"""Beyond what any device computes in single precision, and below what rules may square and sum."""

_BYTES_OF_NAME: Final = 128  # with its places in dictionaries


def cut(value: float) -> float:
    """Return a value, cut to what rules can calculate with. NaN stays."""
    return max(min(value, LARGEST), -LARGEST)


class _Pair(NamedTuple):
    """Series of one worker, with the same steps and times.

    Attributes:
        means: Mean of its measurements in each snapshot.
        numbers: Their number.
    """

    means: Track
    numbers: Track


class Measured:
    """Measurements of one key. They grow."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._pairs: list[_Pair] = []
        # Not yet in the series of their workers, one value of each for each worker and snapshot.
        self._who: MutableSequence[int] = array("i")
        self._steps: MutableSequence[int] = array("q")
        self._times_s: MutableSequence[float] = array("d")
        self._totals: MutableSequence[float] = array("d")
        self._numbers: MutableSequence[int] = array("q")

    def add(
        self,
        workers: Sequence[str],
        steps: Sequence[int],
        time_s: float,
        numbers: Sequence[int],
        totals: Sequence[float],
    ) -> None:
        """Add those of a snapshot, by worker.

        Args:
            workers: Who measured.
            steps: Their steps.
            time_s: Of the snapshot.
            numbers: Of measurements, at least 1.
            totals: Their sums.
        """
        places = self._places
        try:
            who = [places[worker] for worker in workers]
        except KeyError:
            for worker in workers:
                if worker not in places:
                    places[worker] = len(places)
            who = [places[worker] for worker in workers]
        self._who.extend(who)
        self._steps.extend(steps)
        self._times_s.extend([time_s] * len(who))
        self._totals.extend(totals)
        self._numbers.extend(numbers)

    @property
    def workers(self) -> Mapping[str, int]:
        """Return who has measured, with the place of each."""
        return self._places

    def of(self, place: int) -> _Pair:
        """Return the series of a worker, as they came."""
        self._split()
        return self._pairs[place]

    def means(self, worker: str) -> Track:
        """Return the means of a worker as they came; none if it has not measured."""
        place = self._places.get(worker)
        return Track() if place is None else self.of(place).means

    def memory_bytes(self) -> int:
        """Return the memory of columns and series."""
        columns = (self._who, self._steps, self._times_s, self._totals, self._numbers)
        series = sum(
            one.means.memory_bytes() + getsizeof(one.numbers.values) for one in self._pairs
        )
        return series + sum(map(getsizeof, columns)) + len(self._places) * _BYTES_OF_NAME

    def _split(self) -> None:
        """Move the columns into the series of their workers."""
        if not self._who:
            return
        pairs = self._pairs
        for _ in range(len(self._places) - len(pairs)):
            means = Track()
            pairs.append(_Pair(means, means.beside()))
        for who, step, time_s, total, number in zip(
            self._who, self._steps, self._times_s, self._totals, self._numbers, strict=True
        ):
            means, numbers = pairs[who]
            means.add(step, time_s, cut(total / number))  # also of a sum beyond all numbers
            numbers.values.append(number)
        for column in (self._who, self._steps, self._times_s, self._totals, self._numbers):
            del column[:]


class SeriesOfWorkers(Mapping[str, Track]):
    """Series of the workers of a key, each in order of its steps. Valid until more is added.

    Args:
        measured: The measurements.
        column: The series: ``means`` or ``numbers``.
    """

    def __init__(self, measured: Measured, column: str) -> None:
        self._measured = measured
        self._column = attrgetter(column)
        self._known: dict[str, Track] = {}

    def __getitem__(self, worker: str) -> Track:
        """Return the series of a worker.

        Raises:
            KeyError: It has none.
        """
        found = self._known.get(worker)
        if found is None:
            track = self._column(self._measured.of(self._measured.workers[worker]))
            found = self._known[worker] = in_order(track, by_step=True)
        return found

    def __iter__(self) -> Iterator[str]:
        """Iterate over the workers, in the order of their first measurements."""
        return iter(self._measured.workers)

    def __len__(self) -> int:
        """Return the number of workers."""
        return len(self._measured.workers)

    def __contains__(self, worker: object) -> bool:
        """Return whether a worker has measurements, without making its series."""
        return worker in self._measured.workers
