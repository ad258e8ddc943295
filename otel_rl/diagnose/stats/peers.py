"""Values of each of many workers relative to those of its peers, in each step.

Workers that take turns, such as servers, are compared over the steps in which each has one turn. A
worker that has become slow gets out of step with its peers: it is compared with those of the step
before.

The logarithms of a step are added up once for all workers; each worker leaves out its own. The sum
is kept as two floats, so that leaving out a value loses no digit that a mean of the others would
have.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, fsum, inf, log
from operator import neg
from statistics import fmean
from typing import NamedTuple, TypeAlias

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.thresholds import A_FEW

_Logs: TypeAlias = Sequence[tuple[int, float]]


class _Sum(NamedTuple):
    """Sum of logarithms: how many, how many infinite, and the finite sum in two parts."""

    number: int
    infinite: int
    total: float
    rest: float


class Peers:
    """Positive values of workers with the same work.

    Args:
        tracks: Series by worker.
        turn: Number of steps that are compared as one, see ``turn_length``.
    """

    def __init__(self, tracks: Mapping[str, Track], turn: int = 1) -> None:
        self._tracks, self._width = tracks, turn
        self._relative: dict[str, Track] = {}
        of_part: dict[int, list[float]] = defaultdict(list)
        for track in tracks.values():
            _add_parts(of_part, _logs(track), turn)
        self._sums = {part: _sum(logs) for part, logs in of_part.items()}

    def relative(self, worker: str) -> Track:
        """Return the worker's values relative to the geometric mean of its peers', in common steps.

        If a step has several values, their geometric mean counts.
        """
        if worker not in self._relative:
            self._relative[worker] = self._to_peers(worker)
        return self._relative[worker]

    def _to_peers(self, worker: str) -> Track:
        relative, logs = Track(), _logs(self._tracks[worker])
        of_step = _parts(logs, 1)
        of_part = of_step if self._width == 1 else _parts(logs, self._width)
        for step in sorted(of_step):
            part = step // self._width
            if self._sums[part].number > len(of_part[part]):
                peers: float | None = _mean_without(self._sums[part], of_part[part])
            else:
                peers = self._peers_before(worker, part)
            if peers is not None:
                relative.add(step, 0.0, exp(_mean(of_step[step])) / exp(peers))
        return relative

    def _peers_before(self, worker: str, part: int) -> float | None:
        """Return the peers' mean in the last part that has one, unless the worker is in it, too."""
        steps, width = self._tracks[worker].steps, self._width
        for before in range(part - 1, part - 1 - A_FEW, -1):
            own = bisect_left(steps, before * width)
            if own < len(steps) and steps[own] < (before + 1) * width:
                return None
            if before in self._sums:
                return _mean_without(self._sums[before], [])
        return None


def peers_of(history: RunHistory, place: PhaseKey) -> Peers:
    tracks = history.spans[place]
    return history.once("peers", place, lambda: Peers(tracks, turn_length(tracks)))


def turn_length(tracks: Mapping[str, Track]) -> int:
    """Return in how many steps each worker has its turn: 1 if all work in every step.

    Workers that joined late, or left, had no turns before or after.
    """
    each = [set(track.steps) for track in tracks.values() if track.steps]
    steps = sorted(set().union(*each))
    present = sum(bisect_right(steps, max(of)) - bisect_left(steps, min(of)) for of in each)
    return max(1, round(present / max(1, sum(map(len, each)))))


def _logs(track: Track) -> _Logs:
    columns = track.pairs()
    return [(step, log(value)) for step, value in columns if value > 0]


def _parts(logs: _Logs, width: int) -> Mapping[int, list[float]]:
    of_part: dict[int, list[float]] = defaultdict(list)
    _add_parts(of_part, logs, width)
    return of_part


def _add_parts(of_part: Mapping[int, list[float]], logs: _Logs, width: int) -> None:
    for step, one in logs:
        of_part[step // width].append(one)


def _mean(logs: list[float]) -> float:
    return logs[0] if len(logs) == 1 else fmean(logs)


def _sum(logs: list[float]) -> _Sum:
    finite = [one for one in logs if one != inf]
    total = fsum(finite)
    return _Sum(len(logs), len(logs) - len(finite), total, fsum((*finite, -total)))


def _mean_without(whole: _Sum, logs: list[float]) -> float:
    """Return the mean of all logarithms but these. There must be others."""
    if not whole.infinite and len(logs) == 1:
        return fsum((whole.total, whole.rest, -logs[0])) / (whole.number - 1)
    finite = [one for one in logs if one != inf]
    if whole.infinite > len(logs) - len(finite):
        return inf
    return fsum((whole.total, whole.rest, *map(neg, finite))) / (whole.number - len(logs))
