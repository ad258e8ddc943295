"""Workers that have left a run in order: their roles expect fewer than have reported."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from otel_rl.diagnose.history.run_history import RunHistory

__all__ = ["departed"]


def departed(history: RunHistory) -> AbstractSet[str]:
    """Return the workers that a role expects no more, and that nothing is missed of.

    Those of a role that have been silent for longest, as many as are expected no more: what they
    have not done is no work that anyone waits for.
    """
    expected = _expected(history)
    return {worker for role, number in expected for worker in _of(history, role, number)}


def _expected(history: RunHistory) -> Iterator[tuple[str, float]]:
    for key, track in history.rows.items():
        kind, _, place = key.partition("/")
        role, _, what = place.partition("/")
        if kind == "service" and what == "expected" and track.values:
            yield role, track.values[-1]


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
