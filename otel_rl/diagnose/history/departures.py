"""Workers that have left a run in order: their roles expect fewer than have reported."""

from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from otel_rl.diagnose.history.run_history import RunHistory, Track

__all__ = ["departed", "has_shrunk"]


def departed(history: RunHistory) -> AbstractSet[str]:
    """Return the workers that a role expects no more, and that nothing is missed of.

    Those of a role that have been silent for longest, as many as are expected no more: what they
    have not done is no work that anyone waits for.
    """
    expected = ((role, track.values[-1]) for role, track in _expected(history))
    return {worker for role, number in expected for worker in _of(history, role, number)}


def has_shrunk(history: RunHistory, role: str, begin_s: float, end_s: float) -> bool:
    """Return whether a role expected fewer workers for a while: one has left it, and come back.

    Args:
        history: Of the run.
        role: Of the workers.
        begin_s: Begin of the time, since the first record.
        end_s: End of the time, since the first record.
    """
    for of, track in _expected(history):
        first, end = (bisect_right(track.times_s, at_s) for at_s in (begin_s, end_s))
        # The row after it may be of a step of that time.
        meanwhile = track.values[first : end + 1]
        if of == role and first and meanwhile and min(meanwhile) < track.values[first - 1]:
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
