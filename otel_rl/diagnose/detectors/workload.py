"""Work of each step: tokens or samples, and the workers that share it.

A batch doubled on purpose, growing answers and fewer workers make work longer, and are not faults:
the diagnosis names them as what they are.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from operator import sub
from statistics import fmean, median, pvariance
from typing import Final

from otel_rl.diagnose.detectors.hung_worker import hung_workers_of
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.timings import is_step_time, is_whole_step
from otel_rl.diagnose.spans.new_work import new_work
from otel_rl.diagnose.stats.levels import LevelChange, level
from otel_rl.diagnose.stats.peers import turn_length
from otel_rl.diagnose.thresholds import (
    A_FEW,
    ALIKE,
    FEWEST_BEFORE,
    FEWEST_VARYING,
    HALF,
    IN_ORDER,
    MOSTLY,
    NEARLY_ALL,
    SIDE,
)
from otel_rl.plurals import many

_RATES: Final = (
    r"per_?(s|sec|second|gpu)(?![a-z])|/s$|rate|throughput|max|limit|second|sample/|generator/"
)
_LENGTH: Final = "answers' length"
# The best measure of work first.
_MEASURES: Final = (
    ("tokens", r"(^|/|_)(num_|total_)*tokens?(_(per_step|num|total|count|trained|processed))?$"),
    ("samples", r"(^|/|_)(batch_?size|num_(samples|sequences|rollouts)|samples)$"),
    (
        _LENGTH,
        r"(response|completions?|answer|episode|episodic|ep)(/|_)(mean_)?(length|tokens|len)((/|_)mean)?$",
    ),
)
_MISSED: Final = 2  # reports, as far apart as any
_REPORTS = 1.5  # steps on each side, at least so many reports
_FOLLOWS: Final = FEWEST_BEFORE  # steps in which a buffer takes up a change


class Workload:
    """Work of the steps of a run, relative to the usual amount.

    Attributes:
        what: Measure of the work; empty if none is known.
        of_step: Work of each step, in units of the first steps' work.
    """

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self.what, self.of_step, self._told_s = history.once("work", None, lambda: _work(history))
        self._steps = sorted(self.of_step)
        if len(self._steps) > 1 and self.of_step[self._steps[-1]] < self.of_step[self._steps[-2]]:
            del self._steps[-1]  # not all of it may have come
        # Beyond it, work is only known by the length of answers.
        self._newest = min(self._steps[-1], max(self._told_s)) if self._steps else None
        self._workers: dict[PhaseKey, Mapping[int, int]] = {}

    def eased(self, place: PhaseKey, track: Track, *, ahead: int = 0) -> Track:
        """Return times of a phase per unit of a worker's work, in steps with reported work.

        Args:
            track: Times of the phase.
            ahead: Number of further steps, whose work is taken to be that of the last one that
                reported it.
        """
        parts = self.parts(place, track.steps)
        eased = Track()
        for step, at_s, value, part in zip(
            track.steps, track.times_s, track.values, parts, strict=True
        ):
            if self.is_told(step - ahead):
                eased.add(step, at_s, value / part)
        return eased

    def parts(self, place: PhaseKey, steps: Iterable[int]) -> Sequence[float]:
        """Return the work of one worker in each of some steps, relative to the usual amount."""
        shared = self._workers_of(place)
        usual = median(shared.values()) if shared else 1.0
        return [self._at(step) * usual / shared.get(step, usual) for step in steps]

    def eased_steps(self, track: Track) -> Track:
        """Return times of whole steps per unit of work, in steps that have reported their work."""
        told = self.told(track)
        eased = [value / self._at(step) for step, value in told.pairs()]
        return Track.of(told.steps, told.times_s, eased)

    def is_of_its_step(self, tracks: Mapping[str, Track]) -> bool:
        """Return whether the steps of these times are the steps that have reported their work.

        A worker that names no step is filed under the last one that others have named: its work may
        be of the next step.
        """
        began = [
            at_s - took_s < self._told_s[step]
            for track in tracks.values()
            for step, at_s, took_s in _newest(track)
            if step in self._told_s
        ]
        return not self.what or sum(began) >= MOSTLY * max(1, len(began))

    def told(self, track: Track) -> Track:
        """Return the values of steps that have reported their work."""
        told = Track()
        for step, at_s, value in zip(track.steps, track.times_s, track.values, strict=True):
            if self.is_told(step):
                told.add(step, at_s, value)
        return told

    def is_told(self, step: int) -> bool:
        """Return whether the work of a step was reported; a further report may take very long."""
        return self.is_known(step) or not self.is_known(self._history.last - _FOLLOWS)

    def is_known(self, step: int) -> bool:
        """Return whether the work of a step was reported, or no work ever is."""
        return self._newest is None or step <= self._newest

    def _at(self, step: int) -> float:
        """Return the work of a step, or of the last step before it that has reported its work."""
        place = bisect_right(self._steps, step)
        return self.of_step[self._steps[place - 1]] if place else 1.0

    def _workers_of(self, place: PhaseKey) -> Mapping[int, int]:
        if place not in self._workers:
            tracks = self._history.spans.get(place, {})
            is_each = turn_length(tracks) == 1
            self._workers[place] = _present(self._history, tracks) if is_each else {}
        return self._workers[place]


def _newest(track: Track) -> Iterator[tuple[int, float, float]]:
    for place in range(max(0, len(track.steps) - _FOLLOWS), len(track.steps)):
        yield track.steps[place], track.times_s[place], track.values[place]


def _present(history: RunHistory, tracks: Mapping[str, Track]) -> Mapping[int, int]:
    """Return how many workers share each step's work, each from its first one to its last.

    A worker without a value in between reports it with another step.
    """
    present, order = defaultdict[int, int](int), _order(history)
    for track in tracks.values():
        if track.steps:
            begin, end = bisect_left(order, track.steps[0]), bisect_right(order, track.steps[-1])
            for step in order[begin:end]:
                present[step] += 1
    return present


def _order(history: RunHistory) -> Sequence[int]:
    """Return all steps in order: only the known ones if the numbers have large gaps."""
    if history.has_gaps:
        return sorted(history.known_steps)
    return range(min(0, history.first), history.last + 1)


def changes(history: RunHistory) -> Iterator[str]:
    """Yield in words the changes that were made on purpose."""
    work = Workload(history)
    found = _change_of(work)
    if found is not None:
        if found.jump > HALF:
            yield f"{found.ratio:.1f} times the {work.what} in a step since step {found.step}"
        else:
            values = [value for _, value in sorted(work.of_step.items())]
            ratio = median(values[-SIDE:]) / median(values[:SIDE])
            yield f"the {work.what} of a step change gradually, to {ratio:.1f} times the first"
    for role, before, after, since in _resized(history):
        yield f"{many(after, 'worker')} of {role} since step {since}, {before} before"
    for place, since in new_work(history):
        yield f"{place.phase} of {place.role} since step {since}, and not before"


def follows_a_change(history: RunHistory, step: int, *, within: float = _FOLLOWS) -> bool:
    """Return whether the work or the number of workers changed on purpose just before a step.

    After that, buffers and waits settle at another level, which is not a fault.

    Args:
        step: The first step of the other level.
        within: Number of steps that settling may take, if more than usual.
    """
    since = change_steps(history)
    return any(-1 <= step - moment <= max(within, _FOLLOWS) for moment in since)


def change_steps(history: RunHistory) -> Sequence[int]:
    """Return the steps at which the work or the number of workers changed on purpose."""
    steps = [since for _, _, _, since in _resized(history)]
    steps += [since for _, since in new_work(history)]
    found = _change_of(Workload(history))
    if found is not None and found.jump > HALF:
        steps.append(found.step)
    return steps


def slower_by_fewer_workers(history: RunHistory, step: int) -> float:
    """Return how many times as long steps may take since a step, as fewer workers share the work.

    Args:
        step: The first longer step.
    """
    ratio = 1.0
    for _, before, after, since in _resized(history):
        if after < before and -A_FEW <= step - since <= _FOLLOWS:
            ratio *= before / after
    return ratio


def _change_of(work: Workload) -> LevelChange | None:
    """Return the change of the work in a step; None if the work stays about the same."""
    track = Track()
    for step, value in sorted(work.of_step.items()):
        track.add(step, 0.0, value)
    found = level(track)
    if found is None or not found.is_clear or 1 / ALIKE < found.ratio < ALIKE:
        return None
    return found if abs(found.change.order) >= IN_ORDER else None


def _work(history: RunHistory) -> tuple[str, Mapping[int, float], Mapping[int, float]]:
    """Return the measure of work, the work of each step, and the time of its measurement."""
    told = [
        (is_of_steps, what, count, track)
        for what, pattern in _MEASURES
        for is_of_steps, count, track in _told(history, pattern)
    ]
    # What others count while a step lasts is more if it lasts longer. A total that is told now and
    # then tells less of each step.
    for is_of_steps in (True, False):
        found = [one for one in told if one[0] is is_of_steps]
        if found:
            best = [one for one in found if one[1] == found[0][1]]
            _, what, told_steps, track = max(best, key=lambda one: one[2])
            work = _relative(track)
            lengths = [one for one in found if one[1] == _LENGTH]
            if lengths and told_steps < HALF * len(work):
                work = _with_lengths(work, _relative(max(lengths, key=lambda one: one[2])[-1]))
            return what, work, dict(zip(track.steps, track.times_s, strict=True))
    return "", {}, {}


def _relative(track: Track) -> Mapping[int, float]:
    """Return the work of each step in units of the first steps' work."""
    first = median(track.values[:SIDE])
    return {step: value / first for step, value in track.pairs()}


def _with_lengths(work: Mapping[int, float], lengths: Mapping[int, float]) -> Mapping[int, float]:
    """Return work counted over several steps, or as much as the length of answers shows.

    Such counts come late, and share a change among the steps around it.
    """
    newest = max(work)
    steps = sorted({*work, *(step for step in lengths if step > newest)})
    return {step: max(work.get(step, work[newest]), lengths.get(step, 0.0)) for step in steps}


def _told(history: RunHistory, pattern: str) -> Iterator[tuple[bool, int, Track]]:
    """Yield (is of makers of steps, number of reported steps, work of each), if of most steps.

    The count from one report to the next is shared among the steps in between.
    """
    stepping = _stepping_roles(history)
    for key, track in history.rows.items():
        if not re.search(pattern, key) or re.search(_RATES, key.partition("/")[2]):
            continue
        if key.startswith(("otel_rl/", "phase/", "critical_path/")):
            continue
        if f"{key}/per_step" in history.rows:
            track = history.rows[f"{key}/per_step"]
        is_counter = f"{key}/rate" in history.rows
        if is_counter and key in history.workers:
            track = _counted(history, key)
        else:
            track = _of_each_step(track.finite(), is_counter=is_counter)
        has_gaps = history.has_gaps
        steps = len(history.known_steps) if has_gaps else history.last - history.first + 1
        if len(track.values) < FEWEST_VARYING or min(track.values) <= 0:
            continue
        # A total that is told in some steps accounts for those in between.
        told = len(track.values)
        if is_counter and not has_gaps:
            told = track.steps[-1] - track.steps[0] + 1
        if told >= HALF * steps:
            is_of_steps = not is_counter or key.partition("/")[0] in stepping
            yield is_of_steps, len({*history.rows[key].steps} & {*track.steps}), track


def _stepping_roles(history: RunHistory) -> AbstractSet[str]:
    """Return the roles that make the steps, as they report; all roles if none does."""
    of_spans = {place.role for place in history.spans if is_whole_step(place.phase)}
    of_rows = {
        key.partition("/")[0]
        for key in history.rows
        if key.endswith("/iteration/duration") or is_step_time(key)
    }
    return of_spans | of_rows or {key.partition("/")[0] for key in history.rows}


def _counted(history: RunHistory, key: str) -> Track:
    """Return the count of all workers in each step; one without a report counts with the next.

    Rows have the total of all workers now and then.
    """
    of_step: dict[int, float] = defaultdict(float)
    known: list[Sequence[int]] = []
    order = _order(history)
    for worker, track in history.workers[key].items():
        own: dict[int, float] = defaultdict(float)
        numbers = history.measurements[key][worker].values
        for step, mean, number in zip(track.steps, track.values, numbers, strict=True):
            own[bisect_left(order, step)] += mean * number
        told = [place for place, amount in sorted(own.items()) if amount > 0]
        for before, place in pairwise([*(one - 1 for one in told[:1]), *told]):
            for each in range(before + 1, place + 1):
                of_step[each] += own[place] / (place - before)
        known.append(told)
    is_by_step = _is_by_step(known)
    if not is_by_step:
        known = [told[:-1] for told in known]  # the last report of a process comes early
    # The first report of a process may have more than one step, or is but a reference.
    oldest = bisect_left(order, history.first) if is_by_step else _first_told_by_all(known)
    counted, newest = Track(), _told_by_all(known)
    for place, amount in sorted(of_step.items()):
        if oldest <= place <= newest and place < len(order):
            counted.add(order[place], 0.0, amount)
    return counted if is_by_step else _without_beat(counted, known)


def _first_told_by_all(known: Sequence[Sequence[int]]) -> int:
    """Return the step after the first one of which all workers have reported their part."""
    return 1 - _told_by_all([[-step for step in reversed(told)] for told in known])


def _gaps_of(known: Sequence[Sequence[int]]) -> Sequence[int]:
    return [gap for told in known for gap in map(sub, told[1:], told)]


def _is_by_step(known: Sequence[Sequence[int]]) -> bool:
    """Return whether each step has its own report, by nearly all workers."""
    gaps = _gaps_of(known)
    return sum(gap == 1 for gap in gaps) >= NEARLY_ALL * len(gaps)


def _without_beat(counted: Track, known: Sequence[Sequence[int]]) -> Track:
    """Return the mean amount of the steps before or after each, whichever are more alike.

    Exports at times of their own contain one step or two, though all steps are alike: only the sum
    of their amounts is right. The last steps are left out.
    """
    side = max(A_FEW, round(_REPORTS * fmean(_gaps_of(known) or [1])))
    smooth, values = Track(), counted.values
    for place in range(len(values) - side):
        before = values[max(0, place - 2 * side) : place + 1]
        after = values[place : place + 2 * side + 1]
        sides = [one for one in (before, after) if len(one) > side]
        alike = min(sides or [after], key=pvariance)
        smooth.add(counted.steps[place], counted.times_s[place], fmean(alike))
    return smooth


def _told_by_all(known: Sequence[Sequence[int]]) -> int:
    """Return the last step of which all workers have reported their part.

    Args:
        known: Reported steps of each worker. A worker that has missed several steps has ended.
    """
    ends = [told[-1] for told in known if told]
    missed = [_MISSED * max(map(sub, told[1:], told), default=1) for told in known if told]
    newest = max(ends, default=0)
    return min((end for end in ends if newest - end < max(missed)), default=newest)


def _of_each_step(track: Track, *, is_counter: bool = False) -> Track:
    """Return what each step added to a running total; other series stay as they are."""
    newest = dict(zip(track.steps, zip(track.times_s, track.values, strict=True), strict=True))
    steps = sorted(newest)
    values = [newest[step][1] for step in steps]
    if len(values) < FEWEST_VARYING or any(b < a for a, b in pairwise(values)):
        return track
    is_total = 0 < HALF * len(values) * values[0] <= values[-1]
    if not is_counter and (not is_total or len(set(values)) < len(values)):
        return track
    moves = Track()
    for (step, value), (later, then) in pairwise(zip(steps, values, strict=True)):
        moves.add(later, newest[later][0], (then - value) / (later - step))
    return moves


def _resized(history: RunHistory) -> Iterator[tuple[str, int, int, int]]:
    """Yield (role, workers before, workers after, first step) of roles that were resized.

    A worker that failed, or that hangs, was not removed on purpose; a worker that exports without
    work is idle.
    """
    failed = {one.worker for one in history.failures} | {one.worker for one in history.losses}
    failed |= {hang.worker for hang in hung_workers_of(history)}
    of_role: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, tracks in history.spans.items():
        for worker, track in tracks.items():
            if track.steps:
                of_role[place.role][worker] += [track.steps[0], track.steps[-1]]
    for role, of in sorted(of_role.items()):
        for worker, steps in of.items():
            exports = history.lags.get(worker, Track())
            steps += [*exports.steps[:1], *exports.steps[-1:]]
        spans = {worker: (min(steps), max(steps)) for worker, steps in of.items()}
        late = [first for first, _ in spans.values() if first > history.first + SIDE]
        early = [
            last
            for worker, (_, last) in spans.items()
            if last < history.last - SIDE and worker not in failed
        ]
        for moments, sign in ((late, 1), (early, -1)):
            if moments and len(moments) < len(spans):
                since = round(fmean(moments)) + (sign < 0)
                fewer = len(spans) - len(moments)
                sizes = (fewer, len(spans))[::sign]
                yield role, sizes[0], sizes[1], since
