"""Workers that have left a run in order, so that their roles expect fewer than reported."""

from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from math import inf

from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.thresholds import A_FEW


def departed(history: RunHistory) -> AbstractSet[str]:
    """Return the workers that a role does not expect any more, and that nobody misses.

    They are the workers of a role that have been silent for longest, as many as are not expected
    any more: nobody waits for the work that they have not done.
    """
    expected = ((role, track.values[-1]) for role, track in _expected(history))
    return {worker for role, number in expected for worker in _of(history, role, number)}


def has_shrunk(history: RunHistory, role: str, begin_s: float, end_s: float) -> bool:
    """Return whether a role expected fewer workers for a while, as one left it and came back.

    Args:
        begin_s: Begin of the time, in s since the first record.
        end_s: End of the time, in s since the first record.
    """
    for of, track in _expected(history):
        first, end = (bisect_right(track.times_s, at_s) for at_s in (begin_s, end_s))
        values = track.values
        before = values[max(0, first - A_FEW) : first]
        if of != role or not before:
            continue
        # The row after it may be of a step of that time; those before it may have the end already.
        for place, value in enumerate(values[first : end + 1], first):
            # Without a row after it, who reports again may be expected again as well.
            later = values[place + 1 : end + A_FEW]
            if value < min(max(before), max(later, default=inf)):
                return True
    return False


def _expected(history: RunHistory) -> Iterator[tuple[str, Track]]:
    for key, track in history.rows.items():
        kind, _, place = key.partition("/")
        role, _, what = place.partition("/")
        if kind == "service" and what == "expected" and (numbers := track.finite()).values:
            yield role, numbers


def _of(history: RunHistory, role: str, expected: float) -> list[str]:
    """Return the workers of a role that have left, by their last exports."""
    last_s = {
        worker: track.times_s[-1]
        for worker, track in history.lags.items()
        if worker.rpartition("/")[0] == role
    }
    lost = {loss.worker for loss in history.losses}
    in_order = sorted(last_s.keys() - lost, key=lambda worker: (last_s[worker], worker))
    gone = in_order[: max(0, len(in_order) - round(expected))]
    newest_s = max(last_s.values(), default=0.0)
    return [worker for worker in gone if last_s[worker] < newest_s]
