"""Measurements of one key by several workers, in columns that become series on demand.

Most keys are read by no rule, so a look at a run that goes on only appends to their columns.
"""

from array import array
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from operator import attrgetter
from sys import getsizeof
from typing import Final, NamedTuple

from otel_rl.diagnose.history.track import Track, in_order

LARGEST: Final = 1e60
"""Beyond what any device computes in single precision, and below what rules may square and sum."""

_BYTES_OF_NAME: Final = 128  # with its places in dictionaries


def cut(value: float) -> float:
    """Return a value, cut to the range in which rules can calculate. NaN stays."""
    return max(min(value, LARGEST), -LARGEST)


class _Pair(NamedTuple):
    """Two series of one worker that share their steps and times.

    Attributes:
        means: Mean of the measurements in each snapshot.
        numbers: Number of the measurements in each snapshot.
    """

    means: Track
    numbers: Track


class Measured:
    """Growing measurements of one key."""

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
        """Add the measurements of a snapshot, by worker.

        Args:
            steps: Step of each worker.
            numbers: Number of measurements of each worker, at least 1.
            totals: Sum of the measurements of each worker.
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
        return self._places

    def of(self, place: int) -> _Pair:
        """Return the series of a worker, in order of arrival."""
        self._split()
        return self._pairs[place]

    def means(self, worker: str) -> Track:
        """Return a worker's means in order of arrival; none if it has not measured."""
        place = self._places.get(worker)
        return Track() if place is None else self.of(place).means

    def memory_bytes(self) -> int:
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
    """Series of a key's workers, each in order of its steps. Valid until more is added.

    Args:
        column: Name of the series: ``means`` or ``numbers``.
    """

    def __init__(self, measured: Measured, column: str) -> None:
        self._measured = measured
        self._column = attrgetter(column)
        self._known: dict[str, Track] = {}

    def __getitem__(self, worker: str) -> Track:
        """Return the series of a worker.

        Raises:
            KeyError: The worker has no series.
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
        return len(self._measured.workers)

    def __contains__(self, worker: object) -> bool:
        """Return whether a worker has measurements, without making its series."""
        return worker in self._measured.workers
