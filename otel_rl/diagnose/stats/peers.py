"""Values of each of many workers relative to those of its peers, in each step.

Workers that take turns, such as servers, are compared over the steps in which each has one.

The logarithms of a step are added up once for all workers; each leaves out its own. The sum is kept
as two floats, so that leaving out a value loses no digit that a mean of the others would have.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import exp, fsum, inf, log
from statistics import fmean
from typing import NamedTuple

from otel_rl.diagnose.history.run_history import Track

__all__ = ["Peers", "turn_length"]


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
        turn: Steps that are compared as one, see ``turn_length``.
    """

    def __init__(self, tracks: Mapping[str, Track], turn: int = 1) -> None:
        self._logs = {worker: _logs(track) for worker, track in tracks.items()}
        self._width = turn
        of_part: dict[int, list[float]] = defaultdict(list)
        for own in self._logs.values():
            for step, logs in own.items():
                of_part[step // self._width] += logs
        self._sums = {part: _sum(logs) for part, logs in of_part.items()}

    @property
    def count(self) -> int:
        """Return the number of workers."""
        return len(self._logs)

    def relative(self, worker: str) -> Track:
        """Return the worker's values relative to the geometric mean of its peers', in common steps.

        Of several values of a step, the geometric mean counts.
        """
        own = self._logs[worker]
        of_part: Mapping[int, list[float]] = own
        if self._width > 1:
            parts: dict[int, list[float]] = defaultdict(list)
            for step, logs in own.items():
                parts[step // self._width] += logs
            of_part = parts
        steps, values = list[int](), list[float]()
        for step in sorted(own):
            part = step // self._width
            whole, logs = self._sums[part], of_part[part]
            if whole.number > len(logs):
                steps.append(step)
                values.append(_ratio(own[step], _mean_without(whole, logs)))
        return Track(steps, [0.0] * len(steps), values)


def _ratio(own: list[float], peers: float) -> float:
    return exp(own[0] if len(own) == 1 else fmean(own)) / exp(peers)


def turn_length(tracks: Mapping[str, Track]) -> int:
    """Return the steps in which each worker has its turn: 1 if all work in every step."""
    each = [set(track.steps) for track in tracks.values()]
    steps = len(set().union(*each))
    return max(1, round(len(each) * steps / max(1, sum(map(len, each)))))


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
    if not whole.infinite and len(logs) == 1:
        return fsum((whole.total, whole.rest, -logs[0])) / (whole.number - 1)
    finite = [one for one in logs if one != inf]
    if whole.infinite > len(logs) - len(finite):
        return inf
    return fsum((whole.total, whole.rest, *(-one for one in finite))) / (whole.number - len(logs))
