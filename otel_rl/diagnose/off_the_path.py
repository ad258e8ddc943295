"""Work that cannot have made steps longer: it is on no critical path, and nobody there waits more.

A server whose queue is full makes its callers wait, and its spans say only that they take longer.
That is so whenever who takes from the queue is slower, or one more worker fills it.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from statistics import median
from typing import Final

from otel_rl.diagnose.classify import Work, is_collective, work_of
from otel_rl.diagnose.history.records import StepFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Cause, Kind
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["is_off_the_path", "no_effect"]

_SLOW: Final = {Kind.SLOW_PHASE, Kind.SLOW_GENERATION, Kind.SLOW_REWARD, Kind.STRAGGLER}
_FEWEST: Final = 4  # steps with a known path, before and since
_MOST_ELSEWHERE: Final = 0.25  # of what steps take longer


def no_effect(history: RunHistory, cause: Cause) -> bool:
    """Return whether a cause is that a phase takes longer, which makes no step longer."""
    if cause.kind not in _SLOW or None in {cause.role, cause.phase, cause.since}:
        return False
    place = PhaseKey(str(cause.role), str(cause.phase))
    return is_off_the_path(history, place, cause.since or 0, cause.until)


def is_off_the_path(
    history: RunHistory, place: PhaseKey, since: int, until: int | None = None
) -> bool:
    """Return whether steps do not depend on how long a phase takes.

    False if that is not known: without paths, for what is no call or its answer, for a phase whose
    name tells what it does, or for the role that makes the steps.

    Args:
        history: Of the run.
        place: A phase that takes longer.
        since: First step in which it does.
        until: First step in which it does no more; None if it goes on.
    """
    if _is_named_work(place) or PhaseKey(place.role, STEP_SPAN) in history.spans:
        return False
    if not any(_is_of_one_call(place, other) for other in history.spans):
        return False
    known = [step for step in history.steps if step.path]
    if any((role, phase) == place for step in known for role, phase, *_ in step.path):
        return False
    before = [step for step in known if step.step < since]
    after = [step for step in known if since <= step.step and (until is None or step.step < until)]
    if min(len(before), len(after)) < _FEWEST:
        return False
    longer_s = _usual(after) - _usual(before)
    waits = {
        place
        for step in known
        for role, phase, *_ in step.path
        for place in [PhaseKey(role, phase)]
        if not _is_named_work(place) and not is_collective(place)
    }
    waited_s = _usual(after, waits) - _usual(before, waits)
    return waited_s <= max(0.0, _MOST_ELSEWHERE * longer_s)


def _is_named_work(place: PhaseKey) -> bool:
    """Return whether the name of a phase tells what it does, whatever its role does."""
    return work_of(PhaseKey("", place.phase)) is not Work.OTHER


def _is_of_one_call(one: PhaseKey, other: PhaseKey) -> bool:
    """Return whether spans are of a client and its server: of one name, or that with a route."""
    names = sorted((one.phase, other.phase), key=len)
    return one.role != other.role and f"{names[1]} ".startswith(f"{names[0]} ")


def _usual(steps: Sequence[StepFacts], of: AbstractSet[PhaseKey] | None = None) -> float:
    """Return the median time of paths, in s, of all phases or of these."""
    return median(
        sum(
            seconds
            for role, phase, _, seconds in step.path
            if of is None or PhaseKey(role, phase) in of
        )
        for step in steps
    )
