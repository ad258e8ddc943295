"""Cost of a cause: each step is replayed with the phase as it was before.

The slowest worker of a phase decides how long the others wait for it. So a step is shorter without
the fault by as much as the slowest worker is then faster, if that phase is on the critical path.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.detectors.slow_phases import step_time
from otel_rl.diagnose.history.records import StepFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.spans.critical_path import IDLE

__all__ = ["Cost", "cost_of", "with_cost"]

_LEAST: Final = 0.01  # of a step
_HOUR_S: Final = 3600.0


class Cost(NamedTuple):
    """Cost of a cause so far.

    Attributes:
        step_s: Median time of a step since it began.
        without_s: The same without it.
        lost_hours: Time that the run has lost, times its workers.
    """

    step_s: float
    without_s: float
    lost_hours: float


def cost_of(history: RunHistory, cause: Cause) -> Cost | None:
    """Return the cost of slow work; None of other causes, or if steps are no longer by it."""
    took = {one: value for one, value in zip(*_columns(history), strict=True) if _is_in(cause, one)}
    if cause.phase is None or not took or not cause.evidence or not cause.evidence[0].after:
        return None
    saved = _saved(history, cause, PhaseKey(cause.role or "", cause.phase), took)
    lost_s = sum(saved.values())
    if lost_s < _LEAST * sum(took.values()):
        return None
    without = [seconds - saved.get(step, 0.0) for step, seconds in took.items()]
    workers = len({name for of in history.spans.values() for name in of})
    return Cost(median(took.values()), median(without), lost_s * workers / _HOUR_S)


def with_cost(history: RunHistory, cause: Cause) -> Cause:
    """Return the cause with its cost in its words."""
    cost = cost_of(history, cause)
    if cost is None:
        return cause
    return replace(
        cause,
        words=f"{cause.words}; without it a step takes {cost.without_s:.3g} s, not "
        f"{cost.step_s:.3g}: {cost.lost_hours:.3g} worker hours lost so far",
    )


def _columns(history: RunHistory) -> tuple[Sequence[int], Sequence[float]]:
    track = step_time(history).finite()
    return track.steps, track.values


def _path_s(step: StepFacts, place: PhaseKey) -> float:
    """Return the seconds of a phase on the critical path, else those that nothing explains."""
    own = sum(s for role, phase, _, s in step.path if PhaseKey(role, phase) == place)
    return own or sum(s for _, phase, _, s in step.path if phase == IDLE)


def _is_in(cause: Cause, step: int) -> bool:
    return (cause.since or 0) <= step and (cause.until is None or step < cause.until)


def _saved(
    history: RunHistory, cause: Cause, place: PhaseKey, took: Mapping[int, float]
) -> Mapping[int, float]:
    """Return by how many seconds each step is shorter without the cause."""
    evidence = cause.evidence[0]
    faster = (evidence.before or 0.0) / (evidence.after or 1.0)
    slow = {cause.worker} if cause.worker else set(history.spans[place])
    totals: dict[int, dict[str, float]] = defaultdict(dict)
    for worker, track in history.spans[place].items():
        of = history.counts[place][worker]
        counts = dict(zip(of.steps, of.values, strict=True))
        for step, value in zip(track.steps, track.values, strict=True):
            if step in took:
                before = totals[step].get(worker, 0.0)
                totals[step][worker] = before + value * counts.get(step, 1.0)
    on_path = {step.step: _path_s(step, place) for step in history.steps}
    saved = {}
    for step, each in totals.items():
        now = max(each.values())
        # A worker that is slow in some steps is as fast as its peers in the others.
        floor = median(each.values()) if cause.worker and len(each) > 2 else 0.0
        then = max(
            max(s * faster, min(s, floor)) if name in slow else s for name, s in each.items()
        )
        shorter = max(0.0, now - then)
        if on_path:
            shorter = min(shorter, on_path.get(step, 0.0) * (1 - then / now) if now else 0.0)
        saved[step] = min(shorter, took[step])
    return saved
