"""Notices that a run may stand still, by how its newest step came on. Time is an argument."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from otel_rl.diagnose.detectors.stalls import STALL_S, stall_s, suspicious_s
from otel_rl.diagnose.history.rhythm import Rhythm

__all__ = ["StallWatch"]

_NS_PER_S: Final = 1_000_000_000
_LATE: Final = 1.2  # usual steps


def _late_s(rhythm: Rhythm) -> float:
    """Return the time from which on work may be late, though a step has taken longer before."""
    longest_s = suspicious_s(rhythm)  # endless for a new run
    return longest_s if longest_s == inf else min(max(STALL_S, _LATE * rhythm.usual_s), longest_s)


def _half_sure_s(rhythm: Rhythm) -> float:
    return min(2 * suspicious_s(rhythm), stall_s(rhythm))


def _again_s(times: float) -> Callable[[Rhythm], float]:
    return lambda rhythm: times * stall_s(rhythm)


# A diagnosis may know of later steps, by rows of workers that lead, and of work that takes longer:
# it sees a stall a step or two after this does.
_LIMITS: Final = (_late_s, suspicious_s, _half_sure_s, stall_s, *map(_again_s, (1.2, 1.5, 2.0)))

# Enough for the time of usual steps, and to have seen one with a checkpoint.
_MAX_TOLD: Final = 500


class StallWatch:
    """Watches one run.

    A stall is noticed when phases may tell it, when they are far longer than ever, when it is one
    without them, and a few times after that: what is known of it later is for the next look.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[int, float]] = deque(maxlen=_MAX_TOLD)
        self._newest_ns = 0
        self._noticed = 0

    def notices(self, newest_ns: int, step: int) -> bool:
        """Return whether the run has begun to stand still, as a diagnosis would see it.

        Args:
            newest_ns: Time of the newest stored history of the run: while nothing arrives of a run,
                it cannot be told that it stands still.
            step: The newest step then.
        """
        now_s = newest_ns / _NS_PER_S
        if self._told and step < self._told[-1][0]:
            self._told.clear()  # a new attempt
        if not self._told or step > self._told[-1][0]:
            self._told.append((step, now_s))
            self._noticed = 0
            return False
        if self._noticed == len(_LIMITS) or newest_ns == self._newest_ns:
            return False
        self._newest_ns = newest_ns
        rhythm = Rhythm.between(range(self._told[0][0], step + 1), self._told, now_s)
        if rhythm is None or rhythm.stands_s < _LIMITS[self._noticed](rhythm):
            return False
        self._noticed = sum(rhythm.stands_s >= limit_s(rhythm) for limit_s in _LIMITS)
        return True
