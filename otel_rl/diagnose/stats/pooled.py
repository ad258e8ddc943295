"""Series of a whole role: the geometric mean over its workers in each step."""

from collections import defaultdict
from collections.abc import Mapping
from math import exp, log
from statistics import fmean

from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.stats.growth import Growth, begin_of, cut_from

__all__ = ["pooled", "together"]


class _Pooled:
    """Mean of series that grow."""

    def __init__(self) -> None:
        self._growth = Growth()
        self._mean = Track()

    def of(self, tracks: Mapping[str, Track]) -> Track:
        """Return the mean. Valid until the next time."""
        first = self._growth.first_new(tracks)
        if first is not None:
            cut_from(self._mean, first)
            of_step = _logs_of_steps(tracks, first)
            for step in sorted(of_step):
                self._mean.add(step, 0.0, exp(fmean(of_step[step])))
        return self._mean

    def memory_bytes(self) -> int:
        """Return the memory of what is kept."""
        return self._mean.memory_bytes()


def _logs_of_steps(tracks: Mapping[str, Track], first: int) -> Mapping[int, list[float]]:
    of_step: dict[int, list[float]] = defaultdict(list)
    for track in tracks.values():
        begin = begin_of(track, first)
        for step, value in zip(track.steps[begin:], track.values[begin:], strict=True):
            if value > 0:
                of_step[step].append(log(value))
    return of_step


def together(tracks: Mapping[str, Track]) -> Track:
    """Return the geometric mean over the workers, in each step."""
    return _Pooled().of(tracks)


def pooled(history: RunHistory, place: PhaseKey) -> Track:
    """Return the same of a phase, as far as it is known from earlier looks."""
    return history.derived(_Pooled, place).of(history.spans[place])
