"""Work at which a run stands: the first part of its newest step that some, or all, have not done.

Most programs do the same parts in each step, in one order. Those who come to the end of a part wait
for those who do not, so whoever has not done what its peers have is the one that they wait for.
"""

from collections import defaultdict
from collections.abc import Mapping, Set
from statistics import fmean
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import only_waits
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["Standing", "standing_work"]

_LOOK_BACK: Final = 12  # steps
_FEWEST: Final = 6  # of them
_MOSTLY: Final = 0.8  # of the steps, and of their workers


class Standing(NamedTuple):
    """Part of a step that has not been done.

    Attributes:
        place: The part.
        workers: Those who have not done it.
        step: The step.
        is_partly_done: Whether others have done it.
    """

    place: PhaseKey
    workers: Set[str]
    step: int
    is_partly_done: bool


class _Part(NamedTuple):
    """Part of each step: who does it, who has done it in which step, and when in a step."""

    workers: Set[str]
    done: Mapping[int, Set[str]]
    order_s: float


def standing_work(history: RunHistory) -> Standing | None:
    """Return the part of a step at which the run stands; None if its steps are not alike."""
    parts = _parts(history)
    if not parts:
        return None
    step = max(max(part.done) for part in parts.values())
    in_order = sorted(parts.items(), key=lambda one: (one[1].order_s, one[0]))
    missing = {place: part.workers - part.done.get(step, set()) for place, part in in_order}
    for place, part in in_order:
        if missing[place] and missing[place] != part.workers:
            return Standing(place, missing[place], step, is_partly_done=True)
    for place, part in in_order:
        if missing[place]:
            if _others_stopped_before(history, parts, step):
                return None
            return Standing(place, part.workers, step, is_partly_done=False)
    place, part = in_order[0]
    if _others_stopped_before(history, parts, step):
        return None
    return Standing(place, part.workers, step + 1, is_partly_done=False)


def _parts(history: RunHistory) -> Mapping[PhaseKey, _Part]:
    """Return the work that the same workers do in each step."""
    parts = {}
    for place, tracks in history.spans.items():
        if only_waits(history, place) or place.phase == STEP_SPAN:
            continue
        done: dict[int, set[str]] = defaultdict(set)
        told_s: dict[int, float] = {}
        for worker, track in tracks.items():
            for step, at_s in zip(track.steps, track.times_s, strict=True):
                done[step].add(worker)
                told_s[step] = max(told_s.get(step, 0.0), at_s)
        before = range(max(history.first, history.last - _LOOK_BACK), history.last)
        counted = [len(done[step]) for step in before if step in done]
        workers = {one for step in before for one in done.get(step, ())}
        if len(counted) < max(_FEWEST, _MOSTLY * len(before)):
            continue
        if sum(counted) < _MOSTLY * len(workers) * len(counted):
            continue
        late_s = [
            told_s[step] - history.begun_s[step]
            for step in before
            if _is_told(history, told_s, step)
        ]
        parts[place] = _Part(workers, done, fmean(late_s) if late_s else 0.0)
    return parts


def _is_told(history: RunHistory, told_s: Mapping[int, float], step: int) -> bool:
    return step in told_s and step in history.begun_s


def _others_stopped_before(history: RunHistory, parts: Mapping[PhaseKey, _Part], step: int) -> bool:
    """Return whether those who work ahead of the steps stopped first: then all wait for them."""
    of_steps = {place.role for place in parts}
    last_s = _last_s(history, of_steps)
    ahead = {
        place.role
        for place in history.spans
        if place.role not in of_steps and not only_waits(history, place)
    }
    return any(_last_s(history, {role}) < last_s for role in ahead)


def _last_s(history: RunHistory, roles: Set[str]) -> float:
    """Return when the last work of these roles was told."""
    return max(
        track.times_s[-1]
        for place, tracks in history.spans.items()
        if place.role in roles and not only_waits(history, place)
        for track in tracks.values()
    )
