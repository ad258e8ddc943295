"""Work that cannot have made steps longer: no critical path has it, nor a longer wait since.

A server whose queue is full makes its callers wait, and its spans only say that they take longer.
That happens whenever the consumer of the queue is slower, or one more worker fills it.
"""

from statistics import median
from typing import Final

from otel_rl.diagnose.classify import Work, is_collective, only_waits, work_of
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Cause, Kind
from otel_rl.diagnose.thresholds import FEWEST_SINCE, GOOD_PART
from otel_rl.semconv.spec import STEP_SPAN

_SLOW: Final = {Kind.SLOW_PHASE, Kind.SLOW_GENERATION, Kind.SLOW_REWARD, Kind.STRAGGLER}


class Paths:
    """Critical paths of a run, read once."""

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        known = [step for step in history.steps if step.path]
        self._on = {PhaseKey(role, phase) for step in known for role, phase, *_ in step.path}
        waits = {
            place
            for place in self._on
            if only_waits(history, place) or not _is_named_work(place)
            if not is_collective(place)
        }
        self._steps = [step.step for step in known]
        self._taken_s = [sum(seconds for *_, seconds in step.path) for step in known]
        self._waited_s = [
            sum(s for role, phase, _, s in step.path if PhaseKey(role, phase) in waits)
            for step in known
        ]

    def bear_out(self, cause: Cause) -> bool:
        """Return False for a cause whose phase takes longer without making any step longer."""
        if cause.kind not in _SLOW or None in {cause.role, cause.phase, cause.since}:
            return True
        place = PhaseKey(str(cause.role), str(cause.phase))
        return not self.leave_out(place, cause.since or 0, cause.until)

    def leave_out(self, place: PhaseKey, since: int, until: int | None = None) -> bool:
        """Return whether steps do not depend on how long a phase takes.

        Return False if that is not known: without paths, for a phase that is neither a call nor its
        answer, for a phase whose name tells what it does, or for the role that makes the steps.

        Args:
            place: A phase that takes longer.
            since: First step in which the phase takes longer.
            until: First step in which it does not any more; None if it goes on.
        """
        spans = self._history.spans
        if not self._steps or place in self._on or _is_named_work(place):
            return False
        if PhaseKey(place.role, STEP_SPAN) in spans:
            return False
        if not any(_is_of_one_call(place, other) for other in spans):
            return False
        before = [number for number, step in enumerate(self._steps) if step < since]
        after = [
            number
            for number, step in enumerate(self._steps)
            if since <= step and (until is None or step < until)
        ]
        if min(len(before), len(after)) < FEWEST_SINCE:
            return False
        longer_s, waited_s = (
            median(map(taken_s.__getitem__, after)) - median(map(taken_s.__getitem__, before))
            for taken_s in (self._taken_s, self._waited_s)
        )
        return waited_s <= max(0.0, GOOD_PART * longer_s)


def _is_named_work(place: PhaseKey) -> bool:
    """Return whether the name of a phase tells what it does, whatever its role does."""
    return work_of(PhaseKey("", place.phase)) is not Work.OTHER


def _is_of_one_call(one: PhaseKey, other: PhaseKey) -> bool:
    """Return whether spans are of a client and its server: one name, or that with a route."""
    names = sorted((one.phase, other.phase), key=len)
    return one.role != other.role and f"{names[1]} ".startswith(f"{names[0]} ")
