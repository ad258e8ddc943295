"""Times in which no worker was heard: all stood still together, or the way to the bridge did.

A person may suspend a job and resume it, or a cluster may move it: no part of the run takes longer
by itself. So the age of steps and work only counts time in which some worker was heard.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from otel_rl.diagnose.thresholds import NEWS_S

_FAR: Final = 2.5  # times the usual time between two exports of one worker
_WEIGHT: Final = 1 / 8  # of the newest of these times


@dataclass(slots=True)
class Silences:
    """Silences of a run, each from the last export before it to the first one after it.

    Many workers may export together once a minute, and slow ones may all export later than before:
    so a silence is found by the times between exports of one worker, and by the newest of them.
    """

    _heard_s: float | None = None
    _usual_s: float | None = None
    _begun_s: list[float] = field(default_factory=list)
    _ended_s: list[float] = field(default_factory=list)
    _until_s: list[float] = field(default_factory=list)  # all up to the end of each

    def hear(self, time_s: float, before_s: float | None) -> None:
        """Add exports, in order.

        Args:
            before_s: Time of the newest earlier export of the same workers; None without one.
        """
        heard_s, usual_s = self._heard_s, self._usual_s
        self._heard_s = time_s
        far_s = inf if usual_s is None else max(NEWS_S, _FAR * usual_s)
        if heard_s is not None and time_s - heard_s > far_s:
            self._add(heard_s, time_s)
        if before_s is not None:
            self._get_used_to(time_s - before_s)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Yield the begin and the end of each silence that is over."""
        return zip(self._begun_s, self._ended_s, strict=True)

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of silence between two times, including all since the last export."""
        if self._heard_s is None:
            return 0.0
        since_s = max(0.0, end_s - max(begin_s, self._heard_s))
        return since_s + max(0.0, self._until(end_s) - self._until(begin_s))

    def _get_used_to(self, own_s: float) -> None:
        """Update the usual time between exports; a single long pause counts little."""
        if self._usual_s is None:
            self._usual_s = own_s
        own_s = min(own_s, _FAR * self._usual_s)
        self._usual_s += _WEIGHT * (own_s - self._usual_s)

    def _add(self, begin_s: float, end_s: float) -> None:
        before_s = self._until_s[-1] if self._until_s else 0.0
        self._begun_s.append(begin_s)
        self._ended_s.append(end_s)
        self._until_s.append(before_s + end_s - begin_s)

    def _until(self, time_s: float) -> float:
        """Return the seconds of silence before a time, of the silences that had begun by then."""
        place = bisect_right(self._begun_s, time_s) - 1
        if place < 0:
            return 0.0
        return self._until_s[place] - max(0.0, self._ended_s[place] - time_s)
