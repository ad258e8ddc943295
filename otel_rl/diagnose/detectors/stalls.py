"""Detector of runs that stand still: no step for far longer than the run's steps take."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import exp, inf, log
from statistics import NormalDist, median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import (
    Subject,
    Work,
    goodput_part_of,
    is_collective,
    only_waits,
    tracks_about,
    work_of,
)
from otel_rl.diagnose.detectors.standing_work import (
    TELLING_S,
    Standing,
    is_pull,
    standing_work,
)
from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.quiet_workers import QUIET_S, quiet_workers, report_interval_s
from otel_rl.diagnose.history.recorded import may_lack_until
from otel_rl.diagnose.history.records import OWN_STEP
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s, newest_s
from otel_rl.diagnose.open_work import is_current
from otel_rl.diagnose.result import MOST_WORKERS, Cause, Evidence, Kind, listed
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.stats.levels import settled
from otel_rl.diagnose.thresholds import (
    A_FEW,
    BEYOND_NOISE,
    FAR,
    FEWEST_STEPS,
    FRESH_S,
    LONGER,
    MANY,
    MOSTLY,
    NEARLY_ALL,
    NEWS_S,
)
from otel_rl.goodput import duration
from otel_rl.records import ExperimentStatus
from otel_rl.semconv import names
from otel_rl.semconv.spec import AWAITING, STEP_SPAN

__all__ = [
    "NEWS_S",
    "SAVE_S",
    "STALL",
    "always_heard",
    "own_step",
    "stall_s",
    "stalls",
    "suspicious_s",
]

STALL: Final = 10
"""Times the usual duration of a step, after which a run stands, or a worker does."""

SAVE_S: Final = 300.0
"""Time that a first save, evaluation or compilation may take: none has told how long one takes."""

_MISSED = 2  # exports, after which a worker is silent
_FAR_ALONE = 2.0  # times the longest time of work that no other does
_NOISES_BY_LONGEST = 6.0  # times the noise that the longest time of work tells: none is beyond
_NORMAL = NormalDist()
_CALLS = 1.25  # times what it calls, a call usually takes at most: it does nothing beside
_LATE = 3  # times the longest of it, behind others
_LONGEST = 2  # times the longest one, such as one with a checkpoint
_FOR_PEERS: Final = {names.RlPhaseValues.RANK_BARRIER, names.RlPhaseValues.PARAM_SYNC}


class _Age(NamedTuple):
    """A worker's phase by its last report; a working phase holds up the waiting ones."""

    is_work: bool
    seconds: float
    worker: str
    phase: str
    told_ago_s: float

    @property
    def place(self) -> PhaseKey:
        return PhaseKey(self.worker.rpartition("/")[0], self.phase)


def stalls(history: RunHistory) -> Iterator[Cause]:
    """Find a run that still reports, but makes no step any more."""
    rhythm = Rhythm.of(history)
    if rhythm is None or rhythm.steps < FEWEST_STEPS:
        return
    if history.status == ExperimentStatus.COMPLETE:
        return
    stands_s, usual_s = rhythm.stands_s, rhythm.usual_s
    ages = _innermost_first(history, sorted(_ages(history), reverse=True))
    if not _is_long(history, rhythm) and not _is_evident(history, rhythm, ages):
        return
    # Without phases the run may be over, unless its workers have not ended.
    if not ages and history.status != ExperimentStatus.RUNNING:
        return
    if stands_s < _may_take_s(history, ages):
        return
    is_held_up = any(one.is_work and one.seconds > stands_s / 2 for one in ages)
    if not is_held_up and _has_ended(history):
        return
    times = f"for {duration(stands_s)}, usually {duration(usual_s)}"
    words = f"no step since step {history.last}, {times}; "
    quiet = _quiet(history)
    # What a silent worker was at when it reported last says more.
    if quiet and not (ages and ages[0].is_work and ages[0].worker in quiet):
        yield _silent(history, words, quiet)
        return
    if ages and ages[0].is_work:
        _, age_s, worker, phase, told_ago_s = ages[0]
        yield _cause(
            history,
            f"{words}{worker} has been in {phase} for {duration(age_s + told_ago_s)}",
            [worker],
            phase=phase,
            evidence=[
                Evidence(f"age of {of}", f"worker/phase/age/{of}", by, None, age, "s")
                for _, age, by, of, _ in ages[:MOST_WORKERS]
            ],
        )
        return
    standing = standing_work(history)
    if standing is not None:
        holding = _holding_up_peers(ages, standing.workers)
        if holding and standing.is_partly_done:
            yield _held_up(history, words, holding)
        else:
            yield _at_work(history, words, standing)
        return
    last, silent = _first_silent(history)
    if not silent:
        yield _cause(history, f"{words}no worker has stopped before the others", [], evidence=[])
        return
    yield _cause(
        history,
        f"{words}{listed(silent)} stopped first, after step {last}",
        silent,
        evidence=[
            Evidence("last step", None, worker, None, last) for worker in silent[:MOST_WORKERS]
        ],
    )


def _quiet(history: RunHistory) -> Mapping[str, float]:
    """Return the silent workers of roles that always report, with the seconds of silence."""
    begin_s = history.begun_s[max(history.begun_s)]
    quiet = quiet_workers(history, begin_s, history.ends_s)
    always = always_heard(history)
    return {name: silent_s for name, silent_s in quiet.items() if name.rpartition("/")[0] in always}


def always_heard(history: RunHistory) -> AbstractSet[str]:
    """Return the roles that report at all times; others may have nothing to report for a while.

    Of a role with many workers, records contain only some.
    """
    return {
        worker.rpartition("/")[0]
        for subject in (Subject.GC_TIME, Subject.PHASE_AGE)
        for _, worker, _ in tracks_about(history, subject)
        if worker is not None
    }


def _silent(history: RunHistory, words: str, quiet: Mapping[str, float]) -> Cause:
    workers = sorted(quiet)
    return _cause(
        history,
        f"{words}{listed(workers)} reported nothing for "
        f"{max(quiet.values()):.3g} s: killed, frozen, or cut off",
        workers,
        evidence=[
            Evidence("time without a report", None, worker, None, quiet[worker], "s")
            for worker in workers[:MOST_WORKERS]
        ],
    )


def _holding_up_peers(ages: Sequence[_Age], workers: AbstractSet[str]) -> Sequence[_Age]:
    """Return the phases of workers that wait for no peer, if all other workers wait for a peer."""
    waiting = {
        one.worker for one in ages if one.phase in _FOR_PEERS or is_collective(one.place)
    } & workers
    holding = [one for one in ages if one.worker in workers - waiting]
    return holding if waiting and {one.worker for one in holding} == workers - waiting else []


def _held_up(history: RunHistory, words: str, holding: Sequence[_Age]) -> Cause:
    workers = sorted({one.worker for one in holding})
    oldest = max(holding)
    return _cause(
        history,
        f"{words}{listed(workers)} in {oldest.phase} for "
        f"{duration(oldest.seconds + oldest.told_ago_s)}, and their peers wait",
        workers,
        phase=oldest.phase,
        evidence=[
            Evidence(
                f"age of {one.phase}",
                f"worker/phase/age/{one.phase}",
                one.worker,
                None,
                one.seconds,
                "s",
            )
            for one in holding[:MOST_WORKERS]
        ],
    )


def _at_work(history: RunHistory, words: str, standing: Standing) -> Cause:
    place, workers = standing.place, sorted(standing.workers)
    if standing.rivals:
        workers = sorted({one for of in (place, *standing.rivals) for one in history.spans[of]})
        parts = sorted(f"{one.phase} of {one.role}" for one in (place, *standing.rivals))
        return _cause(
            history,
            f"{words}none of {', '.join(parts)} is done; which comes first is unknown: they are "
            "told together",
            workers if len(workers) == 1 else [],
            evidence=[],
        )
    others = "the first work that is not done"
    if standing.is_partly_done and standing.done_s is not None:
        others = f"which others have done {duration(history.ends_s - standing.done_s)} ago"
    return _cause(
        history,
        f"{words}{listed(workers)} came to no end of {place.phase}, {others}",
        workers,
        phase=place.phase,
        evidence=[
            Evidence(f"last step with {place.phase}", None, worker, None, float(last))
            for worker in workers[:MOST_WORKERS]
            for last in history.spans[place][worker].steps[-1:]
        ],
    )


def stall_s(rhythm: Rhythm) -> float:
    """Return the seconds without a step after which a run stands still; infinite for a new run."""
    if rhythm.steps < FEWEST_STEPS:
        return inf
    return max(NEWS_S, STALL * rhythm.usual_s, _LONGEST * rhythm.longest_s)


def suspicious_s(rhythm: Rhythm) -> float:
    """Return these seconds if work shows that one worker holds up the others."""
    if rhythm.steps < FEWEST_STEPS:
        return inf
    return max(NEWS_S, rhythm.longest_s)


def _is_long(history: RunHistory, rhythm: Rhythm) -> bool:
    """Return whether no step came for far longer than one takes, for the work that goes on."""
    if rhythm.stands_s < stall_s(rhythm):
        return False
    more = _more_work(history, history.begun_s[max(history.begun_s)], than=_mostly_s) or 1.0
    return rhythm.stands_s >= more * stall_s(rhythm)


def _is_evident(history: RunHistory, rhythm: Rhythm, ages: Sequence[_Age]) -> bool:
    """Return whether work lasts far longer than ever, or other workers have all done theirs.

    Something new, such as a first evaluation, is neither: it lies between steps.
    """
    if ages:
        oldest = ages[0]
        if not oldest.is_work or oldest.seconds < _far_s(history, oldest):
            return False
        is_missed = len(history.spans[oldest.place]) == 1 or _is_done_by_others(history, oldest)
        is_missed &= oldest.seconds >= NEWS_S
        if is_missed and not _goes_on(history, history.ends_s - oldest.seconds):
            return True
        return rhythm.stands_s >= suspicious_s(rhythm)
    standing = standing_work(history)
    if standing is None or standing.done_s is None or _goes_on(history, standing.done_s):
        return False
    if standing.place.phase == STEP_SPAN:
        return False
    if _may_have_ended(history, standing):
        return False
    if not _all_wait(history, standing) and rhythm.stands_s <= suspicious_s(rhythm):
        return False  # the step goes on without those who have not done their part
    age_s = history.age_s(standing.done_s) + _least_taken_s(history, standing)
    return age_s >= max(_least_age_s(history, rhythm, standing))


def _goes_on(history: RunHistory, since_s: float) -> bool:
    """Return whether at least two steps began since that time, as news of one may be late."""
    later = (at_s > since_s for _, at_s in sorted(history.begun_s.items())[-A_FEW:])
    return sum(later) > 1


def _least_taken_s(history: RunHistory, standing: Standing) -> float:
    """Return the shortest time in which a peer has ended the work; 0 if none has."""
    if not standing.is_partly_done:
        return 0.0
    tracks = history.spans[standing.place]
    return min(tracks[worker].values[-1] for worker in tracks.keys() - standing.workers)


def _least_age_s(history: RunHistory, rhythm: Rhythm, standing: Standing) -> Sequence[float]:
    """Return the least times that late work takes from its beginning.

    A step in which no work goes on may have something new in it, which may be as long as any work.
    Silence of a worker does not show that its work is late, and work may be reported some time
    after its end.
    """
    of_place = history.spans[standing.place]
    took = [value for track in of_place.values() for value in settled(track).values]
    done_s = max(of_place[worker].times_s[-1] for worker in standing.workers)
    more = _more_work(history, done_s, than=_longest_s) or 1.0
    longest_s = more * max(took, default=0.0)
    of_role = (_longest_s(of) for at, of in history.spans.items() if at.role == standing.place.role)
    still_tells = all(_tells_after(history, worker, standing.done_s) for worker in standing.workers)
    margin: float = _LATE
    if still_tells:
        margin = min(_LATE, max(_beyond(took, LONGER), _hiccup(history)))
    is_soon = standing.is_partly_done and still_tells and _all_wait(history, standing)
    told_s = longest_s + TELLING_S if still_tells else _least_taken_s(history, standing) + NEWS_S
    new_s = 0.0 if is_soon else min(rhythm.usual_s, max(map(_longest_s, _all_work(history))))
    return NEWS_S, told_s, new_s, margin * longest_s, more * LONGER * max(of_role)


def _all_work(history: RunHistory) -> Iterator[Mapping[str, Track]]:
    for place, of in history.spans.items():
        if place.phase != STEP_SPAN and not only_waits(history, place):
            yield of


def _all_wait(history: RunHistory, standing: Standing) -> bool:
    """Return whether no further work has ended: makers ahead of a buffer do not wait for a step."""
    return not any(
        track.times_s[-1] > (standing.done_s or 0.0)
        for place, of in history.spans.items()
        if place != standing.place and not only_waits(history, place)
        for track in of.values()
        if track.times_s
    )


def _tells_after(history: RunHistory, worker: str, done_s: float | None) -> bool:
    """Return whether the worker has exported for long enough since it ended that work."""
    own = history.lags.get(worker)
    return (
        own is not None
        and done_s is not None
        and history.age_s(done_s, own.times_s[-1]) >= NEWS_S / 2
    )


def _may_have_ended(history: RunHistory, standing: Standing) -> bool:
    """Return whether all workers are silent, as after the end of programs that do not report it.

    Spans alone are not signs of life. In the end they lack what workers do at their own pace.
    """
    if not history.lags:
        return work_of(standing.place) is Work.SYNC
    return not any(_is_heard(history, track) for track in history.lags.values())


def _is_heard(history: RunHistory, exports: Track) -> bool:
    usual_s = median(gaps_s(exports.times_s) or [0.0])
    return history.ends_s - exports.times_s[-1] <= max(NEWS_S, _MISSED * usual_s)


def _beyond(took: Sequence[float], least: float) -> float:
    """Return how many times the longest of these a further one takes at most.

    The bound follows the distance of the longest from the usual time: where some work takes long
    now and then, the spread of most of it does not show it. The longest of few is not far, so noise
    counts for more with few.
    """
    usual_s = median(took) if took else 0.0
    if usual_s <= 0:
        return inf
    longest = log(max(took) / usual_s)
    noise = spread([log(value) for value in took if value > 0])
    noises = _NORMAL.inv_cdf((len(took) + 1) / (len(took) + 2))  # of the longest
    by_noise = min(BEYOND_NOISE * noise, _NOISES_BY_LONGEST / noises * longest)
    return max(least, exp(max(longest, by_noise - longest)))


def _hiccup(history: RunHistory) -> float:
    """Return the longest time of some work, in units of what nearly all of it takes; at least 1.

    Where a machine holds up one piece of work for a moment, it may hold up any piece.
    """
    times = [1.0]
    for of in _all_work(history):
        took = sorted(value for track in of.values() for value in settled(track).values)
        if len(took) >= MANY and (usual_s := took[int(NEARLY_ALL * (len(took) - 1))]) > 0:
            times.append(took[-1] / usual_s)
    return max(times)


def _longest_s(tracks: Mapping[str, Track], until_s: float = inf) -> float:
    parts = (track.head(bisect_right(track.times_s, until_s)) for track in tracks.values())
    return max((max(settled(part).values) for part in parts if part.values), default=0.0)


def _mostly_s(tracks: Mapping[str, Track], until_s: float) -> float:
    """Return the time that most of this work took at most: single calls may vary by chance."""
    parts = (track.values[: bisect_right(track.times_s, until_s)] for track in tracks.values())
    return median([sorted(part)[int(MOSTLY * (len(part) - 1))] for part in parts if part] or [0.0])


def _far_s(history: RunHistory, age: _Age) -> float:
    """Return the time in a phase that no worker of the role has come near to.

    The time of peers in the same step counts, too, because a larger batch takes all longer. For a
    worker without peers, the time of other work in the same step counts.
    """
    tracks = history.spans.get(age.place, {})
    took = [value for track in tracks.values() for value in settled(track).values]
    if len(took) < FEWEST_STEPS:
        return inf
    if _is_done_by_others(history, age):
        return max(took) * min(FAR, max(_beyond(took, LONGER), _hiccup(history)))
    own = tracks.get(age.worker, Track())
    more = None
    if len(tracks) == 1 and own.times_s:
        more = _more_work(history, own.times_s[-1], than=_longest_s, beside=age.place.role)
    return max(took) * min(FAR, (more or inf) * _beyond(took, _FAR_ALONE))


def _more_work(
    history: RunHistory,
    since_s: float,
    *,
    than: Callable[[Mapping[str, Track], float], float],
    beside: str = "",
) -> float | None:
    """Return how many times as long any work has taken that was reported since then, at least 1.

    Return None if none was reported: then nothing shows how much work there is.

    Args:
        since_s: Time at which earlier work was reported.
        than: Returns the time that work of some workers took before a moment.
        beside: Role whose own work does not count.
    """
    times = [
        median(track.values[-1] for track in newest) / before_s
        for place, of in history.spans.items()
        if place.role != beside and place.phase != STEP_SPAN and not only_waits(history, place)
        for newest in [[track for track in of.values() if track.times_s[-1] > since_s]]
        if newest and (before_s := than(of, since_s)) > 0
    ]
    return max(1.0, *times) if times else None


def _is_done_by_others(history: RunHistory, age: _Age) -> bool:
    """Return whether peers have done this work in a later step than the worker has."""
    tracks = history.spans.get(age.place, {})
    own = tracks.get(age.worker, Track())
    others = (track.steps[-1] for worker, track in tracks.items() if worker != age.worker)
    return bool(own.steps) and max(others, default=0) > own.steps[-1]


def _has_ended(history: RunHistory) -> bool:
    """Return whether a whole role fell silent with the last step, without a lost worker.

    Such workers have reported their end, and others go on; frozen workers are lost after a while.
    """
    stopped_s = history.begun_s[max(history.begun_s)]
    lost = {loss.worker for loss in history.losses}
    last_s: dict[str, list[float]] = defaultdict(list)
    for worker, track in history.lags.items():
        role = worker.rpartition("/")[0]
        last_s[role].append(inf if worker in lost else track.times_s[-1])
    # The news of the last step may be late: who still reports then has not ended with it.
    newest_s = min(stopped_s, history.ends_s - 2 * QUIET_S) + QUIET_S
    return any(max(of) <= newest_s and min(of) >= stopped_s - QUIET_S for of in last_s.values())


def _may_take_s(history: RunHistory, ages: Sequence[_Age]) -> float:
    """Return the time that a new, rare phase may take, such as the first checkpoint."""
    if not ages:
        return 0.0
    place = ages[0].place
    is_new = all(of.phase != place.phase for of in history.spans)
    return SAVE_S if is_new and _is_of_few_steps(place) else 0.0


def _is_of_few_steps(place: PhaseKey) -> bool:
    """Return whether a phase is not in every step, as a checkpoint or an evaluation."""
    spec = names.PHASES.get(place.phase)
    if spec is not None:
        return spec.phase_class == names.RlPhaseClassValues.IO
    is_overhead = goodput_part_of(place) is names.RlGoodputPartValues.OVERHEAD
    return is_overhead and work_of(place) is not Work.SYNC


def _cause(
    history: RunHistory,
    words: str,
    workers: list[str],
    *,
    evidence: list[Evidence],
    phase: str | None = None,
) -> Cause:
    roles = {worker.rpartition("/")[0] for worker in workers}
    worker = workers[0] if len(workers) == 1 else None
    lost = [one for one in history.failures if one.worker in workers and one.recovery_s is None]
    ends = "".join(f"; {one.in_a_live_run}" for one in lost[-1:])
    return Cause(
        Kind.STALL,
        words + ends,
        role=roles.pop() if len(roles) == 1 else None,
        worker=worker,
        phase=phase,
        since=history.last,
        evidence=[
            *_time_without_a_step(history),
            *evidence,
            *own_step(history, worker, before=history.last),
        ],
    )


def _time_without_a_step(history: RunHistory) -> Iterator[Evidence]:
    rhythm = Rhythm.of(history)
    if rhythm is not None:
        yield Evidence(
            "time without a step", before=rhythm.usual_s, after=rhythm.stands_s, unit="s"
        )


def own_step(history: RunHistory, worker: str | None, *, before: int) -> Sequence[Evidence]:
    """Return the step that a worker reports to be in, if others are further; else nothing."""
    role = (worker or "").rpartition("/")[0]
    track = history.workers.get(f"{role}/{OWN_STEP}", {}).get(worker or "")
    values = track.finite().values if track is not None else ()
    if not values or values[-1] >= before:
        return ()
    return (Evidence("step", OWN_STEP, worker, None, values[-1]),)


def _innermost_first(history: RunHistory, ages: Sequence[_Age]) -> Sequence[_Age]:
    """Return the ages with work first that other work calls, and therefore waits for."""
    if not ages or not ages[0].is_work:
        return ages
    first = ages[0]
    while inner := [one for one in ages if one.is_work and _calls(history, first, one)]:
        first = inner[0]
    return [first, *(one for one in ages if one is not first)]


def _calls(history: RunHistory, outer: _Age, inner: _Age) -> bool:
    """Return whether a worker waits in one phase for all workers of another, as a controller does.

    Such a phase ends with the last of them, in each step, and begins before them.
    """
    if outer.place.role == inner.place.role or inner.seconds + inner.told_ago_s > (
        outer.seconds + outer.told_ago_s
    ):
        return False
    calls_s = _by_step(history, outer.place, [outer.worker])
    works_s = _by_step(history, inner.place, history.spans.get(inner.place, ()))
    ratios = sorted(
        calls_s[step] / seconds
        for step, seconds in works_s.items()
        if step in calls_s and seconds > 0
    )
    if len(ratios) < FEWEST_STEPS:
        return False
    return ratios[len(ratios) // FEWEST_STEPS] >= 1 and median(ratios) <= _CALLS


def _by_step(history: RunHistory, place: PhaseKey, workers: Iterable[str]) -> Mapping[int, float]:
    """Return the time of a phase in each step, of the worker that took longest."""
    longest_s: dict[int, float] = defaultdict(float)
    for worker in history.spans.get(place, {}).keys() & set(workers):
        for step, seconds in history.seconds_of(place, worker).items():
            longest_s[step] = max(longest_s[step], seconds)
    return longest_s


def _ages(history: RunHistory) -> Iterator[_Age]:
    gone = departed(history)
    for key, worker, track in tracks_about(history, Subject.PHASE_AGE):
        values = track.finite().values
        if worker is None or worker in gone or not values:
            continue
        if history.ends_s - track.times_s[-1] > FRESH_S or not is_current(history, worker, track):
            continue
        phase = key.partition("/phase/age/")[2]
        spec = names.PHASES.get(phase)
        is_work = spec is None or spec.phase_class not in AWAITING
        is_work &= not only_waits(history, PhaseKey(worker.rpartition("/")[0], phase))
        is_work |= phase == names.RlPhaseValues.WEIGHT_PUSH  # for which all others wait
        told_s, age_s = track.times_s[-1], values[-1]
        one = _Age(
            is_work,
            history.age_s(told_s - age_s, told_s),
            worker,
            phase,
            history.age_s(told_s),
        )
        # Weights that have come to its peers are there: who still waits for them hangs itself.
        is_late = work_of(one.place) is Work.SYNC and not is_collective(one.place)
        yield one._replace(is_work=is_work or (is_late and _is_done_by_others(history, one)))


def _first_silent(history: RunHistory) -> tuple[int, list[str]]:
    """Return the lowest last step of a worker, and the few workers with it; none if all have it.

    Only reports of every step count: reports that go on without steps show that a process lives.
    Others have to be heard for longer than these workers usually take to the next report: work that
    ended together is told in reports at different times.
    """
    last: dict[str, int] = {}
    told_s: dict[str, float] = {}
    gone = departed(history)
    stopped_s = history.begun_s[history.last]
    for of in (*history.spans.values(), *history.workers.values()):
        if not _is_of_steps(of, stopped_s):
            continue
        unsure = may_lack_until(of)
        for worker, track in of.items():
            if len(track.steps) >= FEWEST_STEPS and worker not in gone:
                last[worker] = max(last.get(worker, 0), track.steps[-1], unsure)
                told_s[worker] = max(told_s.get(worker, 0.0), track.times_s[-1])
    if not last:
        return 0, []
    behind = _behind_their_peers(history, gone)
    if behind:
        return min(behind.values()), sorted(behind)
    least = min(last.values())
    silent = sorted(worker for worker, step in last.items() if step == least)
    until_s = min((told_s[worker] for worker in last.keys() - {*silent}), default=0.0)
    is_first = all(until_s > told_s[one] + report_interval_s(history, one) for one in silent)
    return least, silent if is_first and 2 * len(silent) <= len(last) else []


def _behind_their_peers(history: RunHistory, gone: AbstractSet[str]) -> dict[str, int]:
    """Return the last steps of workers that have not done what most of their peers have.

    The newest work of the run shows it: a worker that waits comes to no new work. A wait does not
    show it, as the last worker to come to a barrier has none.
    """
    work = ((at, of) for at, of in history.spans.items() if not only_waits(history, at))
    for place, of in sorted(work, key=lambda one: newest_s(one[1]), reverse=True):
        unsure = may_lack_until(of)
        ends = {
            worker: max(track.steps[-1], unsure)
            for worker, track in of.items()
            if track.steps and worker not in gone
        }
        behind = {worker: step for worker, step in ends.items() if step < max(ends.values())}
        if 0 < len(behind) < len(ends) / 2:
            # Who pulls weights does so between pieces of work, and those may be at any pace.
            alike = [place]
            if is_pull(history, place):
                alike += [at for at in history.spans if work_of(at) is Work.GENERATION]
            until = min(behind.values())
            if all(_are_in_step(history, at, ends, until) for at in alike if at.role == place.role):
                return behind
    return {}


def _are_in_step(history: RunHistory, place: PhaseKey, workers: Iterable[str], until: int) -> bool:
    """Return whether workers did this work equally often until a step, none at its own pace.

    Records of many workers lack some of it, and do not show how often they did it.
    """
    counts = history.counts[place]
    if may_lack_until(counts) >= 0:
        return True
    times = [sum(counts[one].between(0, until).values) for one in workers if one in counts]
    return max(times, default=0) - min(times, default=0) <= 1


def _is_of_steps(tracks: Mapping[str, Track], stopped_s: float) -> bool:
    return bool(tracks) and max(track.times_s[-1] for track in tracks.values()) <= stopped_s
