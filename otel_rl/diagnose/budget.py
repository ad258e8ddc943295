"""Budget of a step: how its time is spent, by the critical path or by parts that add up to it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from statistics import fmean, median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.history.timings import is_step_time, is_whole_step
from otel_rl.diagnose.spans.critical_path import IDLE
from otel_rl.diagnose.spans.span_forest import UNACCOUNTED
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import A_FEW, ALIKE, AS_MUCH, HALF, LARGE_PART, OFTEN

ANSWERS: Final = (Work.REWARD, Work.ENVIRONMENT)
"""Work that others call, and wait for."""


class Share(NamedTuple):
    """Work of one place in a usual step.

    Attributes:
        of_step: Seconds of each step that the work decides, by step.
        usual_s: Median of those seconds if most steps have the work, else their mean.
        tail_s: Part of the usual seconds that is gone if all workers are as fast as the median
            worker.
        slowest: The worker that is the slowest in most steps; empty without one.
        workers: Workers that do the work.
    """

    of_step: Mapping[int, float]
    usual_s: float
    tail_s: float
    slowest: str
    workers: int


class Budget(NamedTuple):
    """The parts of a usual step's time.

    Attributes:
        step_s: Seconds of a usual step.
        parts: Work by place; waits are left out.
        how: Source of the budget, in words: the critical path, parts of all roles that add up to
            each step, or parts of the role that makes the steps, which waits in the rest.
        own: The role that makes the steps; empty if unknown.
        is_whole: Whether the budget contains the work of all roles.
    """

    step_s: float
    parts: Mapping[PhaseKey, Share]
    how: str
    own: str
    is_whole: bool = True

    def of(self, *works: Work) -> float:
        return sum(one.usual_s for place, one in self.parts.items() if work_of(place) in works)

    def largest(self, *works: Work) -> PhaseKey | None:
        """Return the place with most work of these kinds; None without any."""
        of = [place for place in self.parts if not works or work_of(place) in works]
        return max(of, key=lambda place: self.parts[place].usual_s, default=None)


def budget_of(history: RunHistory, steps: Sequence[int]) -> Budget | None:
    """Return the budget of these steps; None if no source accounts for all of their time."""
    asked, own = set(steps), _stepping_role(history)
    explained = {one.step: one for one in history.steps if one.step in asked}
    if len(explained) < max(A_FEW, HALF * len(steps)):
        return _by_parts(history, asked, own)
    # Of a role whose work has no phase, its spans tell what it did.
    of_role = cache(partial(seconds_of_role, history, asked=asked))
    on_path: dict[PhaseKey, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    waits_s: dict[int, float] = defaultdict(float)
    for one in explained.values():
        for role, phase, _, seconds in one.path:
            place = PhaseKey(role, phase)
            if phase == IDLE or only_waits(history, place):
                waits_s[one.step] += seconds
            elif phase == UNACCOUNTED and (whole_s := sum(of_role(role).values())) > 0:
                for other, part_s in of_role(role).items():
                    on_path[other][one.step] += seconds * part_s / whole_s
            else:
                on_path[place][one.step] += seconds
    number = len(explained)
    parts = {
        place: _share(_by_step(history, place, asked), of, number) for place, of in on_path.items()
    }
    idle_s = _usual(waits_s, number)
    step_s = sum(one.usual_s for one in parts.values()) + idle_s
    if idle_s > LARGE_PART * step_s:
        by_parts = _by_parts(history, asked, own)
        if by_parts is not None and by_parts.is_whole:
            return by_parts  # of workers that wait for each other the path does not tell the work
    return Budget(step_s, parts, "the critical path", own) if step_s > 0 else None


def _by_parts(history: RunHistory, asked: set[int], own: str) -> Budget | None:
    """Return the budget by the times of parts, if these account for the steps' time."""
    took = {at: s for at, s in step_time(history).finite().pairs() if at in asked and s > 0}
    parts = {}
    for place in _works(history):
        each = _by_step(history, place, asked)
        if each and not _is_call(history, place, asked):
            longest = {step: max(some.values()) for step, some in each.items()}
            parts[place] = _share(each, longest, len(asked))
    for of in (parts, {place: one for place, one in parts.items() if place.role == own}):
        rests = [s - sum(one.of_step.get(at, 0.0) for one in of.values()) for at, s in took.items()]
        if len(rests) < A_FEW or not of:
            return None
        rest_s, step_s = median(rests), median(took.values())
        # Parts of all roles that add up to each step follow each other. Else roles work at the same
        # time, and the one that makes the steps waits for what its parts do not account for.
        if abs(rest_s) <= (ALIKE - 1) * step_s or (of is not parts and rest_s > 0):
            whole_s = sum(one.usual_s for one in of.values()) + max(0.0, rest_s)
            how = "the parts of a step" if of is parts else f"the parts of {own}"
            return Budget(whole_s, of, how, own, is_whole=of is parts)
    return None


def _share(
    by_worker: Mapping[int, Mapping[str, float]], decided_s: Mapping[int, float], steps: int
) -> Share:
    """Return the share of work in ``steps`` steps.

    Args:
        by_worker: Seconds of each worker, by step.
        decided_s: Seconds that the work decides, by step.
    """
    workers = len({worker for of in by_worker.values() for worker in of})
    whole = {step: of for step, of in by_worker.items() if 1 < len(of) == workers}
    tails, slowest = dict[int, float](), Counter[str]()
    if len(whole) >= OFTEN * len(by_worker):  # else no step waits for all of them
        for step, of in whole.items():
            *others, most_s = sorted(of.values())
            tails[step] = decided_s.get(step, 0.0) * (1 - median(others) / (most_s or 1.0))
            slowest[max(of, key=lambda worker: of[worker])] += 1
    name, times = max(slowest.items(), key=lambda one: one[1], default=("", 0))
    is_same = times >= OFTEN * len(whole) > 0
    tail_s = _usual(tails, steps)
    return Share(decided_s, _usual(decided_s, steps), tail_s, name if is_same else "", workers)


def _usual(of: Mapping[int, float], steps: int) -> float:
    """Return the usual seconds of a step: the median if most steps have a value, else the mean."""
    values = [seconds for seconds in of.values() if seconds > 0]
    if 2 * len(values) > steps:
        return float(median([*values, *([0.0] * (steps - len(values)))]))
    return sum(values) / steps


def _by_step(
    history: RunHistory, place: PhaseKey, asked: set[int]
) -> Mapping[int, Mapping[str, float]]:
    """Return the seconds of a place in each of these steps, by worker.

    Work of every step counts as often as on average, with its mean time, because spans without a
    step may be counted in the step before or after their own.
    """
    each: dict[int, dict[str, float]] = defaultdict(dict)
    sums: dict[int, dict[str, float]] = defaultdict(dict)
    number, tracks = 0.0, history.spans.get(place, {})
    for worker, track in tracks.items():
        counts = history.counts[place][worker].values
        for (step, mean_s), count in zip(track.pairs(), counts, strict=True):
            if step in asked:
                each[step][worker] = max(mean_s, each[step].get(worker, 0.0))
                sums[step][worker] = sums[step].get(worker, 0.0) + mean_s * count
                number += count
    times = number / (len(asked) * max(1, len(tracks)))
    if times < OFTEN:
        return sums
    return {step: {of: s * times for of, s in some.items()} for step, some in each.items()}


def _works(history: RunHistory) -> Iterator[PhaseKey]:
    for place, of in history.spans.items():
        if of and not (only_waits(history, place) or is_whole_step(place.phase)):
            yield place


def _roles(history: RunHistory) -> Sequence[str]:
    return sorted({place.role for place in history.spans})


def _stepping_role(history: RunHistory) -> str:
    """Return the role that makes the steps; empty if unknown."""
    found = [place.role for place in history.spans if is_whole_step(place.phase)]
    timed = [
        key for key in history.rows if key.endswith("/iteration/duration") or is_step_time(key)
    ]
    found += [key.partition("/")[0] for key in timed]
    found += [place.role for place in history.spans if work_of(place) is Work.TRAINING]
    return next((role for role in found if role in _roles(history)), "")


def seconds_of_role(history: RunHistory, role: str, asked: set[int]) -> dict[PhaseKey, float]:
    """Return the seconds of work of a role in a usual step, mean of its workers, by place."""
    found = {}
    for place in _works(history):
        if place.role == role and work_of(place) is not Work.SYNC:
            found[place] = mean_of_workers(history, place, asked)
    return found


def mean_of_workers(history: RunHistory, place: PhaseKey, asked: set[int]) -> float:
    """Return the seconds in a place per step, as the mean over these steps and its workers."""
    each = (history.seconds_of(place, worker) for worker in history.spans[place])
    return fmean(sum(s for at, s in of.items() if at in asked) for of in each) / len(asked)


def answering(history: RunHistory, call: PhaseKey, asked: set[int]) -> PhaseKey | None:
    """Return the work that a call waits for, of another role and about as long; None without it."""
    if work_of(call) not in ANSWERS:
        return None
    low_s, high_s = (ratio * _each_s(history, call, asked) for ratio in AS_MUCH)
    for place in history.spans:
        is_other = place.role != call.role and work_of(place) in ANSWERS
        if is_other and low_s <= _each_s(history, place, asked) <= high_s:
            return place
    return None


def _is_call(history: RunHistory, place: PhaseKey, asked: set[int]) -> bool:
    """Return whether a generator's phase only waits for an answer that another role reports."""
    generates = (
        other.role == place.role and work_of(other) is Work.GENERATION for other in history.spans
    )
    return any(generates) and answering(history, place, asked) is not None


def _each_s(history: RunHistory, place: PhaseKey, asked: set[int]) -> float:
    tracks = history.spans[place].values()
    return median([s for of in tracks for at, s in of.pairs() if at in asked] or [0.0])
