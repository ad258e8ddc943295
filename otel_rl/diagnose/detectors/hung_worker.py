"""Detectors of a worker that hangs in its work, or did for a while and then went on."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import mul
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject, is_collective, only_waits, tracks_about
from otel_rl.diagnose.detectors.stalls import STALL, own_step
from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.recorded import may_lack_until
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s
from otel_rl.diagnose.open_work import is_current
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.thresholds import FAR, FEWEST_PEERS, FEWEST_SINCE, FEWEST_STEPS, NEWS_S
from otel_rl.goodput import duration
from otel_rl.semconv import names
from otel_rl.semconv.spec import AWAITING, STEP_SPAN

__all__ = ["Hang", "held_up_workers", "hung_workers", "hung_workers_of"]

_REPORTS: Final = 5  # of a worker, of which one or two may be late


class Hang(NamedTuple):
    """Phase that a worker does not leave.

    Attributes:
        worker: ``<role>/<index>``.
        phase: In which it is.
        age_s: Time since it began, else since it was done.
        longest_s: Longest time that any worker of the role has taken for it.
        since: Step in progress when it began.
        is_told: Whether the worker tells the phase in which it is.
        own: The step in which it is, if others are further.
    """

    worker: str
    phase: str
    age_s: float
    longest_s: float
    since: int
    is_told: bool = True
    own: Sequence[Evidence] = ()

    @property
    def as_cause(self) -> Cause:
        """Return it as the cause of trouble."""
        return Cause(
            Kind.STALL,
            str(self),
            role=self.worker.rpartition("/")[0],
            worker=self.worker,
            phase=self.phase,
            since=self.since,
            evidence=[
                Evidence(
                    f"age of {self.phase}" if self.is_told else f"time without {self.phase}",
                    f"worker/phase/age/{self.phase}" if self.is_told else None,
                    self.worker,
                    self.longest_s,
                    self.age_s,
                    "s",
                ),
                *self.own,
            ],
        )

    def __str__(self) -> str:
        """Return who hangs, in what, and since when."""
        does = "has been in" if self.is_told else "still reports, and has done no"
        return (
            f"{self.worker} {does} {self.phase} for {duration(self.age_s)} since step "
            f"{self.since}, at most {duration(self.longest_s)} before; the others go on"
        )


def hung_workers(history: RunHistory) -> Iterator[Cause]:
    """Find workers that tell work in progress which takes far longer than ever, while steps go on.

    A run without further steps is a stall.
    """
    yield from (one.as_cause for one in hung_workers_of(history) if one.is_told)


def held_up_workers(history: RunHistory) -> Iterator[Cause]:
    """Find workers of which one piece of work took as long as a stall, and then ended.

    Few workers of a role, once: work of all takes long for a reason of all, and who is slow is so
    more often.
    """
    rhythm = Rhythm.of(history)
    if rhythm is None or rhythm.steps < FEWEST_STEPS:
        return
    least_s = STALL * rhythm.usual_s
    for place in sorted(history.spans):
        if place.phase == STEP_SPAN or _waits(history, place) or is_collective(place):
            continue
        long = list(_pieces(history, place, least_s))
        stuck = sorted({one.worker for one in long})
        if (
            not long
            or len(long) > len(stuck)
            or len(stuck) > max(1, len(history.spans[place]) // FEWEST_PEERS)
        ):
            continue
        others_s = _longest_beside(history, place, long)
        if others_s is None or min(one.seconds for one in long) < FAR * others_s:
            continue
        yield from (_held_up(history, place, one, others_s) for one in long)


class _Piece(NamedTuple):
    """Long piece of work of a worker.

    Attributes:
        worker: ``<role>/<index>``.
        place: Of its record in the series.
        seconds: That it took.
        end_s: When it was told.
    """

    worker: str
    place: int
    seconds: float
    end_s: float


def _pieces(history: RunHistory, place: PhaseKey, least_s: float) -> Iterator[_Piece]:
    """Yield records with a piece of that length, if their other pieces took the usual time."""
    for worker, track in history.spans[place].items():
        totals = [*map(mul, track.values, history.counts[place][worker].values)]
        if max(totals, default=0.0) < least_s:
            continue
        usual_s = median(track.values)
        for at, total_s in enumerate(totals):
            others = history.counts[place][worker].values[at] - 1
            if total_s - others * usual_s >= least_s:
                yield _Piece(worker, at, total_s - others * usual_s, track.times_s[at])


def _longest_beside(history: RunHistory, place: PhaseKey, long: Sequence[_Piece]) -> float | None:
    """Return the longest time of this work without the long pieces; None if too few are left."""
    left_out = {(one.worker, one.place) for one in long}
    others = [
        value
        for worker, track in history.spans[place].items()
        for at, value in enumerate(track.values)
        if (worker, at) not in left_out
    ]
    return max(others) if len(others) >= FEWEST_STEPS else None


def _held_up(history: RunHistory, place: PhaseKey, one: _Piece, others_s: float) -> Cause:
    since, until = (_step_at(history, at_s) for at_s in (one.end_s - one.seconds, one.end_s))
    return Cause(
        Kind.STALL,
        f"{one.worker} was in {place.phase} for {duration(one.seconds)} in step {since}, at most "
        f"{duration(others_s)} otherwise; over since step {until}",
        role=place.role,
        worker=one.worker,
        phase=place.phase,
        since=since,
        until=until,
        evidence=[
            Evidence(
                f"time of one {place.phase}",
                f"phase/{place}",
                one.worker,
                others_s,
                one.seconds,
                "s",
            )
        ],
    )


def hung_workers_of(history: RunHistory) -> Iterator[Hang]:
    """Yield the workers that hang, each with the phase that it does not leave."""
    rhythm = Rhythm.of(history)
    if rhythm is None or rhythm.steps < FEWEST_STEPS:
        return
    gone = departed(history) | {loss.worker for loss in history.losses}
    tell: set[str] = set()
    steps_s = FEWEST_SINCE * rhythm.usual_s
    for key, worker, track in tracks_about(history, Subject.PHASE_AGE):
        if worker is None or worker in gone:
            continue
        tell |= {worker}
        phase = key.partition("/phase/age/")[2]
        least_s = max(steps_s, _REPORTS * _report_interval_s(history, worker))
        hang = _hang(history, worker, phase, track.finite(), least_s)
        if hang is not None:
            yield hang
    for role in sorted({place.role for place in history.spans}):
        yield from _idle(history, role, gone, tell, max(NEWS_S, steps_s))


def _idle(
    history: RunHistory,
    role: str,
    gone: AbstractSet[str],
    tell: AbstractSet[str],
    least_s: float,
) -> Iterator[Hang]:
    """Yield the few workers of a role that report, and no more do any of the work of all others.

    By SDKs that do not tell the phase in progress. Most of a role are not used any more on purpose.

    Args:
        history: Of the run.
        role: Of the workers.
        gone: Workers that are peers of no one any more.
        tell: Workers that tell the phase in which they are.
        least_s: Least time without work.
    """
    work = [
        of
        for place, of in history.spans.items()
        if place.role == role and place.phase != STEP_SPAN and not only_waits(history, place)
    ]
    names_of_role = {name for of in work for name in of} - gone
    last = {worker: _newest_of(work, worker) for worker in names_of_role}
    newest_s = sorted(at_s for at_s, _ in last.values())
    # Who ends work that few others do has no peers that go on: an evaluator may be through.
    common = [of for of in work if 2 * len(of) > len(last)]
    idle = {
        worker: history.age_s(at_s, history.lags[worker].times_s[-1])
        for worker, (at_s, step) in last.items()
        if worker in history.lags and worker not in tell and history.last - step >= FEWEST_SINCE
        if sum(len(of[worker].steps) for of in common if worker in of) >= FEWEST_STEPS
    }
    late = {worker: idle_s for worker, idle_s in idle.items() if idle_s >= least_s}
    if not late or len(late) * FEWEST_PEERS > len(last):
        return
    if any(may_lack_until(of) >= 0 for of in work):
        return
    longest_s = max(_longest_gap(work, worker) for worker in last)
    for worker, idle_s in sorted(late.items()):
        at_s, step = last[worker]
        others_go_on = newest_s[len(late)] >= at_s + least_s
        if others_go_on and idle_s >= FAR * longest_s:
            yield Hang(worker, _main_phase(history, worker), idle_s, longest_s, step, is_told=False)


def _newest_of(work: Sequence[Mapping[str, Track]], worker: str) -> tuple[float, int]:
    """Return when a worker has last done any work, and in which step."""
    return max((of[worker].times_s[-1], of[worker].steps[-1]) for of in work if worker in of)


def _longest_gap(work: Sequence[Mapping[str, Track]], worker: str) -> float:
    """Return the longest time between two pieces of work of a worker."""
    times_s = sorted({at_s for of in work if worker in of for at_s in of[worker].times_s})
    return max(gaps_s(times_s), default=0.0)


def _main_phase(history: RunHistory, worker: str) -> str:
    """Return the phase in which a worker spends most of its time."""
    took_s = {
        place.phase: sum(of[worker].values)
        for place, of in history.spans.items()
        if worker in of and place.phase != STEP_SPAN and not only_waits(history, place)
    }
    return max(sorted(took_s), key=lambda phase: took_s[phase])


def _hang(history: RunHistory, worker: str, phase: str, ages: Track, least_s: float) -> Hang | None:
    if not ages.values or ages.values[-1] < least_s:
        return None  # of most workers in a look: the times of all others are not read for them
    place = PhaseKey(worker.rpartition("/")[0], phase)
    if not is_current(history, worker, ages) or _waits(history, place):
        return None
    took = [track.values for track in history.spans.get(place, {}).values() if track.values]
    longest_s = max(map(max, took), default=0.0)
    begun_s = ages.times_s[-1] - ages.values[-1]
    age_s = history.age_s(begun_s, ages.times_s[-1])
    if sum(map(len, took)) < FEWEST_STEPS or age_s < max(least_s, FAR * longest_s):
        return None
    since = _step_at(history, begun_s)
    goes_on = history.last - since >= FEWEST_SINCE
    if not goes_on:
        return None
    own = own_step(history, worker, before=since)
    return Hang(worker, phase, age_s, longest_s, since, own=own)


def _report_interval_s(history: RunHistory, worker: str) -> float:
    """Return the usual seconds between two reports of a worker; 0 if it is unknown."""
    lags = history.lags.get(worker)
    return 0.0 if lags is None else median(gaps_s(lags.times_s) or [0.0])


def _waits(history: RunHistory, place: PhaseKey) -> bool:
    spec = names.PHASES.get(place.phase)
    is_wait = spec is not None and spec.phase_class in AWAITING
    return is_wait or only_waits(history, place)


def _step_at(history: RunHistory, time_s: float) -> int:
    begun = sorted(history.begun_s.items(), key=lambda one: one[1])
    place = bisect_right(begun, time_s, key=lambda one: one[1])
    return begun[place - 1][0] if place else history.first
