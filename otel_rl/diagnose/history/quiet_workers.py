"""Workers that were not heard for a time, while most others went on to report."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import sub
from statistics import median
from typing import Final

from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s
from otel_rl.diagnose.thresholds import (
    FEWEST_SINCE,
    FRESH_S,
    HALF,
)

QUIET_S: Final = 5.0
"""Shortest silence that tells anything."""


def quiet_workers(history: RunHistory, begin_s: float, end_s: float) -> Mapping[str, float]:
    """Return the seconds of silence of each worker, see ``Silent.between``."""
    return Silent(history).between(begin_s, end_s)


class Silent:
    """Silences of all workers of a history, found once, as a thousand may coincide.

    Attributes:
        by_worker: Begin and end of each silence, since the first record: times between two exports
            that are far longer than usual.
    """

    def __init__(self, history: RunHistory) -> None:
        gone = departed(history)
        exports = {name: _Exports(track) for name, track in history.lags.items()}
        self.by_worker = {name: of.silences for name, of in exports.items() if of.silences}
        self._present = {name: of for name, of in exports.items() if name not in gone}

    def between(self, begin_s: float, end_s: float) -> Mapping[str, float]:
        """Return the seconds of silence of each worker, without workers that have left in order.

        Return nothing if half of all workers or more were silent: then it may be normal to report
        nothing at that time, as for SDKs that send only changes, or the way to the bridge was
        broken.

        Args:
            begin_s: Begin of the time, in s since the first record.
            end_s: End of the time, in s since the first record.
        """
        present = {name: of for name, of in self._present.items() if of.times_s[0] < begin_s}
        found: dict[str, float] = {}
        for name, exports in present.items():
            for from_s, until_s in exports.until(end_s):
                inside_s = min(until_s, end_s) - max(from_s, begin_s)
                is_new = from_s >= begin_s - FRESH_S
                if is_new and inside_s >= HALF * (end_s - begin_s):
                    found[name] = until_s - from_s
        return found if 2 * len(found) < len(present) else {}


class _Exports:
    """Times of a worker's exports, in order, and the silences between them."""

    def __init__(self, track: Track) -> None:
        self.times_s = track.times_s
        self.silences: Sequence[tuple[float, float]] = ()
        if max(self._gaps_s(), default=0.0) >= QUIET_S:
            self.silences = [
                one for one in pairwise(track.times_s) if one[1] - one[0] >= self._least_s
            ]

    def _gaps_s(self) -> Iterator[float]:
        return map(sub, self.times_s[1:], self.times_s)

    @cached_property
    def _least_s(self) -> float:
        # One or two exports may be late.
        return max(QUIET_S, FEWEST_SINCE * median([*self._gaps_s()] or [0.0]))

    def until(self, end_s: float) -> Iterator[tuple[float, float]]:
        """Yield the silences, and the time from the last export to ``end_s`` if that is one."""
        yield from self.silences
        silent_s = end_s - self.times_s[-1]
        if silent_s >= QUIET_S and silent_s >= self._least_s:
            yield self.times_s[-1], end_s


def report_interval_s(history: RunHistory, worker: str) -> float:
    """Return the usual seconds between two reports of a worker; 0 if it is unknown."""
    lags = history.lags.get(worker)
    return 0.0 if lags is None else median(gaps_s(lags.times_s) or [0.0])
