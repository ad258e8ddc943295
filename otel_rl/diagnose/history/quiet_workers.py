"""Workers of which nothing was heard for a time, while most others went on to report."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Final

from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.run_history import RunHistory, Track

__all__ = ["QUIET_S", "quiet_workers", "silences_of"]

QUIET_S: Final = 5.0
"""Shortest silence that tells anything."""

_EXPORTS: Final = 4  # usual times between two exports: one or two may be late
_MOST_OF_IT: Final = 0.6  # of the time in question
_LONG_BEFORE_S: Final = 60.0  # those that were silent for longer are known as lost


def quiet_workers(history: RunHistory, begin_s: float, end_s: float) -> Mapping[str, float]:
    """Return the seconds of silence of each, without those that have left in order.

    None if they are half of all or more: then it may be normal to report nothing at that time, as
    for SDKs that send only changes, or the way here was broken.

    Args:
        history: Of the run.
        begin_s: Begin of the time, since the first record.
        end_s: End of the time, since the first record.
    """
    gone = departed(history)
    present = {
        worker: exports
        for worker, exports in history.lags.items()
        if worker not in gone and exports.times_s[0] < begin_s
    }
    found: dict[str, float] = {}
    for worker, exports in present.items():
        for from_s, until_s in silences_of(exports, end_s):
            inside_s = min(until_s, end_s) - max(from_s, begin_s)
            is_new = from_s >= begin_s - _LONG_BEFORE_S
            if is_new and inside_s >= _MOST_OF_IT * (end_s - begin_s):
                found[worker] = until_s - from_s
    return found if 2 * len(found) < len(present) else {}


def silences_of(exports: Track, ends_s: float | None = None) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each time between two exports that is far longer than usual.

    Args:
        exports: Of a worker.
        ends_s: Also the time from the last one to then.
    """
    times_s = [*exports.times_s]
    gaps_s = [later_s - at_s for at_s, later_s in pairwise(times_s)]
    least_s = max(QUIET_S, _EXPORTS * median(gaps_s or [0.0]))
    if ends_s is not None:
        times_s.append(ends_s)
    yield from ((at_s, end_s) for at_s, end_s in pairwise(times_s) if end_s - at_s >= least_s)
