"""Values of each of many workers relative to those of its peers, in each step.

The logarithms of a step are added up once for all workers; each leaves out its own. The sum is kept
as two floats, so that leaving out a value loses no digit that a mean of the others would have.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import exp, fsum, inf, log
from statistics import fmean
from typing import NamedTuple

from otel_rl.diagnose.history.run_history import Track

__all__ = ["Peers"]


class _Sum(NamedTuple):
    """Sum of logarithms: how many, how many of them infinite, and the others' sum and its rest."""

    number: int
    infinite: int
    total: float
    rest: float


class Peers:
    """Positive values of workers with the same work.

    Args:
        tracks: By worker.
    """

    def __init__(self, tracks: Mapping[str, Track]) -> None:
        self._logs = {worker: _logs(track) for worker, track in tracks.items()}
        of_step: dict[int, list[float]] = defaultdict(list)
        for own in self._logs.values():
            for step, logs in own.items():
                of_step[step] += logs
        self._sums = {step: _sum(logs) for step, logs in of_step.items()}

    @property
    def count(self) -> int:
        """Return the number of workers."""
        return len(self._logs)

    def relative(self, worker: str) -> Track:
        """Return the worker's values relative to the geometric mean of its peers', in common steps.

        Of several values of a step, the geometric mean counts.
        """
        own, relative = self._logs[worker], Track()
        for step in sorted(own):
            logs = own[step]
            if self._sums[step].number > len(logs):
                relative.add(
                    step, 0.0, exp(fmean(logs)) / exp(_mean_without(self._sums[step], logs))
                )
        return relative


def _logs(track: Track) -> Mapping[int, list[float]]:
    of_step: dict[int, list[float]] = defaultdict(list)
    for step, value in zip(track.steps, track.values, strict=True):
        if value > 0:
            of_step[step].append(log(value))
    return of_step


def _sum(logs: list[float]) -> _Sum:
    finite = [one for one in logs if one != inf]
    total = fsum(finite)
    return _Sum(len(logs), len(logs) - len(finite), total, fsum((*finite, -total)))


def _mean_without(whole: _Sum, logs: list[float]) -> float:
    """Return the mean of the others' logarithms; there are some."""
    finite = [one for one in logs if one != inf]
    if whole.infinite > len(logs) - len(finite):
        return inf
    return fsum((whole.total, whole.rest, *(-one for one in finite))) / (whole.number - len(logs))
