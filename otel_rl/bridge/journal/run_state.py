"""State of a run in one word, by what its journal has of it."""

from typing import Final

from otel_rl.bridge.journal.reader import RunOverview
from otel_rl.records import ExperimentStatus

__all__ = ["state_of"]

_SILENT_S: Final = 60.0  # workers report each second, and by default at least once a minute
_SHORTEST_STALL_S: Final = 300.0
_STALL: Final = 10  # times the usual duration of a step

_STATES: Final = {
    ExperimentStatus.COMPLETE: "finished",
    ExperimentStatus.ABORTED: "aborted",
    ExperimentStatus.CRASHED: "crashed",
}


def state_of(run: RunOverview, now_ns: int) -> str:
    """Return ``running``, ``stalled``, or how it has ended: ``finished``, ``aborted``, ``crashed``.

    It is stalled if nothing was reported for a minute, or no step for ten times as long as usual.
    """
    ended = _STATES.get(run.description.status)
    if ended is not None:
        return ended
    if now_ns - run.changed_ns > _SILENT_S * 1e9:
        return "stalled"
    if run.step is None:
        return "running"
    usual_ns = (run.step_ns - run.begun_ns) / max(1, run.step)
    is_late = now_ns - run.step_ns > max(_SHORTEST_STALL_S * 1e9, _STALL * usual_ns)
    return "stalled" if is_late else "running"
