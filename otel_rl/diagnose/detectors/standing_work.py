"""Work at which a run stands: the first part of its newest step that some, or all, have not done.

Most programs do the same parts once in each step, in one order. Workers that come to the end of a
part wait for those that do not: a worker that has done it once less than its peers is the one that
they wait for. Parts are counted, because a span does not always name its step.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf, sqrt
from statistics import fmean, median, stdev
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, waits_for_samples, work_of
from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.quiet_workers import report_interval_s
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s, newest_s
from otel_rl.diagnose.thresholds import FEWEST_VARYING, NEWS_S, NOISE_OF_MANY, SEVERAL, SMALL_PART
from otel_rl.semconv.spec import STEP_SPAN

TELLING_S: Final = 7.0
"""From the end of a span to its record: a stock SDK keeps spans for 5 s."""

_FAR: Final = 2.0  # times the longest time without
_LEAST: Final = 1e-3  # of the longest part: a span around others has no work of its own


class Standing(NamedTuple):
    """A part of a step that has not been done.

    Attributes:
        place: The part; the span of a whole step if all of its known parts are done.
        workers: Workers that have not done the part.
        is_partly_done: Whether other workers have done it.
        done_s: Time of the last news of workers that have done it, or of what precedes it in the
            same step: another part, or a wait for it; None without news.
        rivals: Other undone parts that may come before it, as exports are too far apart to tell.
    """

    place: PhaseKey
    workers: AbstractSet[str]
    is_partly_done: bool
    done_s: float | None
    rivals: Sequence[PhaseKey] = ()


class _Part(NamedTuple):
    """A part of each step.

    Attributes:
        times: By worker, how often the part was done.
        newest: By worker, the last step with the part, and how often it was done in that step.
        order_s: Usual time of the part's report within a step.
    """

    times: Mapping[str, float]
    newest: Mapping[str, tuple[int, float]]
    order_s: float

    @property
    def most(self) -> float:
        return max(self.times.values())

    @property
    def behind(self) -> AbstractSet[str]:
        """Return workers that have done it less often than others, including in its newest step.

        A worker that has reported it in one step less, and then again, is not behind.
        """
        last = max(self.newest.values())
        return {
            worker
            for worker, times in self.times.items()
            if times < self.most and self.newest[worker] < last
        }


def standing_work(history: RunHistory) -> Standing | None:
    """Return the part of a step at which the run stands; None if its steps are not alike."""
    parts = _parts(history)
    if not parts:
        return None
    for place in sorted(history.spans):
        if place.phase == STEP_SPAN and (open_step := _open_step(history, place, parts)):
            return open_step
    in_order = sorted(parts, key=lambda place: (parts[place].order_s, place))
    pulls = [place for place in in_order if is_pull(history, place)]
    for place in [*(place for place in in_order if place not in pulls), *pulls]:
        if behind := parts[place].behind:
            done_s = _told_s(history, place, parts[place].times.keys() - behind)
            return Standing(place, behind, is_partly_done=True, done_s=done_s)
    most = max(part.most for part in parts.values())
    # Who takes up weights waits for those who make them.
    own = [one for one in in_order if work_of(one) is not Work.SYNC] or in_order
    in_turn = (one for of in (own, in_order) for one in of if parts[one].most < most)
    place = next(in_turn, own[0])
    # Generators pull weights at their own pace: the next step may wait for their samples.
    awaiting = own[0] if place in pulls else place
    waits = _waits_before(history, awaiting, parts[awaiting])
    # Where all have done all parts, training needs samples next, though no wait for them is told.
    is_training = work_of(awaiting) is Work.TRAINING and parts[awaiting].most == most
    if waits or is_training:
        makers, workers = _makers(history, awaiting), parts[awaiting].times.keys()
        stood_s = max(_told_s(history, one, workers) for one in [awaiting, *waits])
        if waits and (awaited := _awaited(history, makers, stood_s)):
            return awaited
        report_s = max(report_interval_s(history, worker) for worker in workers)
        made_s = max((_last_s(history, of) for of in makers.values()), default=inf)
        if made_s <= stood_s + report_s:
            return None  # one of them holds up the others, which have nothing to do
        is_made = history.age_s(made_s) <= TELLING_S + report_s
        if not is_made and any(not _is_before(history, awaiting, one) for one in waits):
            return None  # the part has not begun
    if _others_stopped_before(history, parts):
        return None
    workers = parts[place].times.keys()
    done = [one for one in parts if parts[one].most == most > parts[place].most]
    news_s = [_told_s(history, one, parts[one].times.keys()) for one in done]
    last_s = max(news_s or _waited_s(history, place), default=None)
    equal = [one for one in own if one != place and parts[one].most == parts[place].most]
    rivals = [one for one in equal if not _is_before(history, place, one)]
    return Standing(place, workers, is_partly_done=False, done_s=last_s, rivals=rivals)


def _waits_before(history: RunHistory, place: PhaseKey, part: _Part) -> Sequence[PhaseKey]:
    """Return the waits for a part's samples that have not ended, and take time or precede it."""
    rhythm = Rhythm.of(history)
    return [
        other
        for other, of in history.spans.items()
        if other.role == place.role and other != place and waits_for_samples(other)
        if of.keys() == part.times.keys()
        if all(sum(n.values) == part.most for n in history.counts[other].values())
        if (rhythm and _usual(of) >= SMALL_PART * rhythm.usual_s)
        or _is_before(history, other, place)
    ]


def _makers(history: RunHistory, place: PhaseKey) -> Mapping[str, Sequence[PhaseKey]]:
    """Return the work of the roles that make samples, by role."""
    makers: dict[str, list[PhaseKey]] = defaultdict(list)
    for other in history.spans:
        is_work = other.phase != STEP_SPAN and not only_waits(history, other)
        if is_work and other.role != place.role and work_of(other) is not Work.SYNC:
            makers[other.role].append(other)
    return makers


def _awaited(
    history: RunHistory, makers: Mapping[str, Sequence[PhaseKey]], stood_s: float
) -> Standing | None:
    """Return the work of the one role of makers that stopped while all others go on.

    Args:
        history: Of the run.
        makers: The work of each role that makes samples.
        stood_s: When the last news came of those who wait for samples.
    """
    last_s = {role: _last_s(history, of) for role, of in makers.items()}
    stopped = [role for role, at_s in last_s.items() if at_s <= stood_s + TELLING_S]
    goes_on = [role for role, at_s in last_s.items() if history.age_s(at_s) <= TELLING_S]
    if len(stopped) != 1 or len(goes_on) != len(last_s) - 1 or not goes_on:
        return None
    (role,) = stopped
    of_role = makers[role]
    gaps = (gaps_s(track.times_s) for one in of_role for track in history.spans[one].values())
    longest_s = max(max(own, default=0.0) for own in gaps)
    if history.age_s(last_s[role]) < max(NEWS_S, _FAR * longest_s):
        return None
    work = max(of_role, key=lambda one: (sum(map(_total, history.spans[one].values())), one))
    return Standing(work, history.spans[work].keys(), is_partly_done=False, done_s=stood_s)


def _total(track: Track) -> float:
    return sum(track.values)


def is_pull(history: RunHistory, place: PhaseKey) -> bool:
    """Return whether generators pull weights in this phase, each at its own pace."""
    generates = any(
        other.role == place.role and work_of(other) is Work.GENERATION for other in history.spans
    )
    return generates and work_of(place) is Work.SYNC


def _is_before(history: RunHistory, place: PhaseKey, other: PhaseKey) -> bool:
    """Return whether one part of a step ends before another, beyond what chance explains."""
    told, other_told = _told_by_step(history, place), _told_by_step(history, other)
    earlier_s = [other_told[step] - at_s for step, at_s in told.items() if step in other_told]
    if len(earlier_s) < SEVERAL:
        return False
    return fmean(earlier_s) > NOISE_OF_MANY * stdev(earlier_s) / sqrt(len(earlier_s))


def _told_by_step(history: RunHistory, place: PhaseKey) -> Mapping[int, float]:
    """Return the time of a part's report by step, as the mean over its workers."""
    of_step: dict[int, list[float]] = defaultdict(list)
    for track in history.spans[place].values():
        for step, at_s in zip(track.steps, track.times_s, strict=True):
            of_step[step].append(at_s)
    return {step: fmean(times_s) for step, times_s in of_step.items()}


def _open_step(
    history: RunHistory, place: PhaseKey, parts: Mapping[PhaseKey, _Part]
) -> Standing | None:
    """Return the step of a role that has not ended, though all have done each part of it."""
    steps = {worker: sum(of.values) for worker, of in history.counts[place].items()}
    own = {one: part for one, part in parts.items() if one.role == place.role}
    done = {times for part in own.values() for times in part.times.values()}
    if len(done) != 1 or done != {times + 1 for times in steps.values()}:
        return None
    done_s = max(_told_s(history, one, part.times.keys()) for one, part in own.items())
    return Standing(place, steps.keys(), is_partly_done=False, done_s=done_s)


def _told_s(history: RunHistory, place: PhaseKey, workers: AbstractSet[str]) -> float:
    """Return the time of the newest report of this work by any of the workers."""
    tracks = history.spans[place]
    return max(tracks[worker].times_s[-1] for worker in workers)


def _waited_s(history: RunHistory, place: PhaseKey) -> Sequence[float]:
    """Return the times at which the only worker of this work ended waits of later steps."""
    if len(history.spans[place]) > 1:
        return []  # they may wait for each other
    ((worker, work),) = history.spans[place].items()
    return [
        of[worker].times_s[-1]
        for other, of in history.spans.items()
        if worker in of and of[worker].steps[-1] > work.steps[-1]
        if only_waits(history, other) and other.phase != STEP_SPAN
    ]


def _parts(history: RunHistory) -> Mapping[PhaseKey, _Part]:
    """Return the work that the same workers do once in each step."""
    parts = {}
    longest_s = max(map(_usual, history.spans.values()), default=0.0)
    gone = departed(history)
    for place, of in history.spans.items():
        tracks = {worker: track for worker, track in of.items() if worker not in gone}
        # A pull of weights waits for those who make them.
        is_wait = only_waits(history, place) or place in history.waits
        if is_wait or place.phase == STEP_SPAN or not tracks:
            continue
        if _usual(tracks) < _LEAST * longest_s:
            continue
        times = {worker: sum(history.counts[place][worker].values) for worker in tracks}
        if min(times.values()) >= max(SEVERAL, max(times.values()) - 1):
            newest = {worker: _newest(history, place, worker) for worker in tracks}
            parts[place] = _Part(times, newest, _order_s(history, tracks))
    # Who works ahead of the steps, or behind, is in no order with the others.
    steps = _steps(parts, history.last - history.first + 1)
    return {place: part for place, part in parts.items() if part.most in {steps, steps - 1}}


def _newest(history: RunHistory, place: PhaseKey, worker: str) -> tuple[int, float]:
    counts = history.counts[place][worker]
    last = counts.steps[-1]
    return last, sum(counts.between(last, last).values)  # snapshots may share a step


def _usual(tracks: Mapping[str, Track]) -> float:
    return max((median(track.values) for track in tracks.values() if track.values), default=0.0)


def _steps(parts: Mapping[PhaseKey, _Part], begun: int) -> float:
    """Return how often most parts were begun, or those of a step if others are steps ahead.

    Args:
        parts: Parts of each step, or of work ahead of the steps.
        begun: Number of steps that were begun.
    """
    most = [part.most for part in parts.values()]
    # Weights that are sent every few steps are no part of each one.
    most = [times for times in most if times >= begun - 1] or most
    usual = max(
        most, key=lambda times: (most.count(times) + most.count(times - 1), times), default=0
    )
    of_steps = [times for times in most if begun - 1 <= times <= min(begun, usual - 2)]
    return max(of_steps) if of_steps and usual > begun else usual


def _order_s(history: RunHistory, tracks: Mapping[str, Track]) -> float:
    late_s = [
        at_s - history.begun_s[step]
        for track in tracks.values()
        for step, at_s in zip(
            track.steps[-FEWEST_VARYING:], track.times_s[-FEWEST_VARYING:], strict=True
        )
        if step in history.begun_s
    ]
    return fmean(late_s) if late_s else 0.0


def _others_stopped_before(history: RunHistory, parts: Mapping[PhaseKey, _Part]) -> bool:
    """Return whether workers ahead of the steps stopped first, so that all wait for them.

    A role with parts of a step may work ahead, too, as generators that take up weights: the time
    until which it does shows nothing about the step.
    """
    of_steps = {place.role for place in parts}
    ahead = {place.role for place in history.spans if not only_waits(history, place)} - of_steps
    last_s = _last_s(history, parts)
    return any(
        _last_s(history, [place for place in history.spans if place.role == role]) < last_s
        for role in ahead
    )


def _last_s(history: RunHistory, places: Iterable[PhaseKey]) -> float:
    """Return the time of the newest report of any of these kinds of work."""
    return max(newest_s(history.spans[of]) for of in places if not only_waits(history, of))
