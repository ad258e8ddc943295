"""Values of each of many workers relative to the median of all workers, in each step."""

from array import array
from collections import defaultdict
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field
from math import log
from statistics import median
from typing import NamedTuple

from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.thresholds import FEWEST_PEERS


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
    """Ratios of a worker to the median, in columns, in order of steps.

    Attributes:
        medians: Median of all workers in each step.
        own: The worker's own value in each step.
        values: Ratio of the worker's value to that median.
    """

    steps: MutableSequence[int] = field(default_factory=lambda: array("q"))
    medians: MutableSequence[float] = field(default_factory=_floats)
    own: MutableSequence[float] = field(default_factory=_floats)
    values: MutableSequence[float] = field(default_factory=_floats)
    _usual: _Usual | None = None

    def add(self, step: int, middle: float, value: float) -> None:
        self.steps.append(step)
        self.medians.append(middle)
        self.own.append(value)
        self.values.append(value / middle)
        self._usual = None

    @property
    def usual(self) -> _Usual:
        """Return the summary; there must be a value."""
        if self._usual is None:
            noise = spread([*map(log, self.values)])
            self._usual = _Usual(median(self.values), noise, min(self.values), max(self.values))
        return self._usual


class ToMedian:
    """Positive values of workers with the same work, relative to their median.

    Args:
        tracks: Series by worker.
        begin: First step that counts.
    """

    def __init__(self, tracks: Mapping[str, Track], begin: int) -> None:
        of_step: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for worker, track in tracks.items():
            for step, value in track.pairs():
                if step >= begin and value > 0:
                    of_step[step].append((worker, value))
        self.steps = len(of_step)
        """Number of steps with a value."""
        found: dict[str, Ratios] = defaultdict(Ratios)
        for step, some in sorted(of_step.items()):
            if len(some) >= FEWEST_PEERS:
                middle = median([value for _, value in some])
                for worker, value in some:
                    found[worker].add(step, middle, value)
        self.of_workers = {worker: found[worker] for worker in tracks if worker in found}
        """Those that have values, in the order of the series."""
