"""Values of each of many workers relative to the median of all, in each step."""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field
from math import log
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.stats.growth import Growth, begin_of
from otel_rl.diagnose.thresholds import FEWEST_PEERS

__all__ = ["Ratios", "ToMedian", "to_median"]

_BYTES: Final = 32  # of a value of a worker


class _Usual(NamedTuple):
    """Summary of ratios: their median, the noise of their logarithms, and their range."""

    ratio: float
    noise: float
    least: float
    most: float


def _floats() -> MutableSequence[float]:
    return array("d")


@dataclass(slots=True)
class Ratios:
    """Steps of a worker, in order, in columns.

    Attributes:
        steps: The steps.
        medians: Of all workers.
        own: Its own value.
        values: Its own value to that median.
    """

    steps: MutableSequence[int] = field(default_factory=lambda: array("q"))
    medians: MutableSequence[float] = field(default_factory=_floats)
    own: MutableSequence[float] = field(default_factory=_floats)
    values: MutableSequence[float] = field(default_factory=_floats)
    _usual: _Usual | None = None

    def add(self, step: int, middle: float, value: float) -> None:
        """Append a value."""
        self.steps.append(step)
        self.medians.append(middle)
        self.own.append(value)
        self.values.append(value / middle)
        self._usual = None

    def cut_from(self, first: int) -> None:
        """Remove the values of these steps."""
        place = bisect_left(self.steps, first)
        for column in (self.steps, self.medians, self.own, self.values):
            del column[place:]
        self._usual = None

    @property
    def usual(self) -> _Usual:
        """Return the summary; there is a value."""
        if self._usual is None:
            noise = spread([*map(log, self.values)])
            self._usual = _Usual(median(self.values), noise, min(self.values), max(self.values))
        return self._usual


class ToMedian:
    """Positive values of workers with the same work."""

    def __init__(self) -> None:
        self._growth = Growth()
        self._steps: MutableSequence[int] = array("q")
        self._of: dict[str, Ratios] = defaultdict(Ratios)

    @property
    def steps(self) -> int:
        """Return the number of steps with a value."""
        return len(self._steps)

    def follow(self, tracks: Mapping[str, Track], begin: int) -> None:
        """Go on with the same series, which may have grown, or may be put in order.

        Args:
            tracks: By worker.
            begin: First step that counts.
        """
        first = self._growth.first_new(tracks)
        if first is not None:
            self._take(tracks, max(first, begin))

    def _take(self, tracks: Mapping[str, Track], first: int) -> None:
        del self._steps[bisect_left(self._steps, first) :]
        for one in self._of.values():
            if one.steps and one.steps[-1] >= first:
                one.cut_from(first)
        of_step: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for worker, track in tracks.items():
            begin = begin_of(track, first)
            for step, value in zip(track.steps[begin:], track.values[begin:], strict=True):
                if value > 0:
                    of_step[step].append((worker, value))
        for step, some in sorted(of_step.items()):
            self._steps.append(step)
            if len(some) >= FEWEST_PEERS:
                middle = median([value for _, value in some])
                for worker, value in some:
                    self._of[worker].add(step, middle, value)

    def of_workers(self, tracks: Mapping[str, Track]) -> Iterator[tuple[str, Ratios]]:
        """Yield those that have values, in the order of the series."""
        for worker in tracks:
            if worker in self._of and self._of[worker].steps:
                yield worker, self._of[worker]

    def memory_bytes(self) -> int:
        """Return the memory of what is kept."""
        return _BYTES * sum(len(one.steps) for one in self._of.values())


def to_median(history: RunHistory, place: PhaseKey, begin: int) -> ToMedian:
    """Return the values of a phase since a step, as far as they are known from earlier looks."""
    found = history.derived(ToMedian, place)
    found.follow(history.spans[place], begin)
    return found
