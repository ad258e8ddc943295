"""Detectors of a worker that hangs in its work, or did for a while and then went on."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import mul
from statistics import median
from typing import NamedTuple

from otel_rl.diagnose.classify import Subject, is_collective, only_waits, tracks_about
from otel_rl.diagnose.detectors.stalls import STALL, own_step
from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.quiet_workers import report_interval_s
from otel_rl.diagnose.history.recorded import may_lack_until
from otel_rl.diagnose.history.rhythm import BEGINNING, Rhythm
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s
from otel_rl.diagnose.open_work import is_current
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import settled
from otel_rl.diagnose.thresholds import (
    FAR,
    FEWEST_PEERS,
    FEWEST_SINCE,
    FEWEST_STEPS,
    LONGER,
    NEWS_S,
    SIDE,
)
from otel_rl.goodput import duration
from otel_rl.semconv import names
from otel_rl.semconv.spec import AWAITING, STEP_SPAN


class Hang(NamedTuple):
    """A phase that a worker does not leave.

    Attributes:
        worker: ``<role>/<index>``.
        phase: Phase in which the worker is.
        age_s: Seconds since the phase began, else since it was last done.
        longest_s: Longest time that a warm worker of the role has taken for the phase.
        since: Step in progress when the phase began.
        is_told: Whether the worker reports the phase in which it is.
        own: Step in which the worker is, if others are further.
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
        """Return which worker hangs, in which phase, and since when."""
        does = "has been in" if self.is_told else "still reports, and has done no"
        return (
            f"{self.worker} {does} {self.phase} for {duration(self.age_s)} since step "
            f"{self.since}, usually at most {duration(self.longest_s)}; the others go on"
        )


def hung_workers(history: RunHistory) -> Iterator[Cause]:
    """Find workers whose reported work takes far longer than ever, while steps go on.

    If no further step comes, the run stalls, which is another cause.
    """
    yield from (one.as_cause for one in hung_workers_of(history) if one.is_told)


def held_up_workers(history: RunHistory) -> Iterator[Cause]:
    """Find workers with one piece of work that took as long as a stall, and then ended.

    Only few workers of a role, once: work of all workers takes long for a common reason, and a slow
    worker takes long more often.
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
    """A long piece of a worker's work.

    Attributes:
        worker: ``<role>/<index>``.
        place: Place of the piece's record in the series.
        end_s: Time at which the piece was reported.
    """

    worker: str
    place: int
    seconds: float
    end_s: float


def _pieces(history: RunHistory, place: PhaseKey, least_s: float) -> Iterator[_Piece]:
    """Yield records with a piece of ``least_s`` or more, if their other pieces took the usual time.

    The first pieces of a worker may be odd, as it compiles its work.
    """
    for worker, track in history.spans[place].items():
        totals = [*map(mul, track.values, history.counts[place][worker].values)]
        if max(totals, default=0.0) < least_s:
            continue
        usual_s = median(track.values)
        for at, total_s in enumerate(totals):
            others = history.counts[place][worker].values[at] - 1
            if at >= BEGINNING and total_s - others * usual_s >= least_s:
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
    """Yield the hanging workers, each with the phase that it does not leave."""
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
        # One or two of so many reports may be late.
        least_s = max(steps_s, SIDE * report_interval_s(history, worker))
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
    """Yield the few workers of a role that report, but do no more of the work of all others.

    Such workers have SDKs that do not report the phase in progress. If most workers of a role do no
    work, they are not used any more on purpose.

    Args:
        gone: Workers that are nobody's peers any more.
        tell: Workers that report the phase in which they are.
        least_s: Least time without work, in s.
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
    """Return when a worker last did any work, and in which step."""
    return max((of[worker].times_s[-1], of[worker].steps[-1]) for of in work if worker in of)


def _longest_gap(work: Sequence[Mapping[str, Track]], worker: str) -> float:
    """Return the longest time between two pieces of work of a worker."""
    times_s = sorted({at_s for of in work if worker in of for at_s in of[worker].times_s})
    return max(gaps_s(times_s), default=0.0)


def _main_phase(history: RunHistory, worker: str) -> str:
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
    told = [track for track in history.spans.get(place, {}).values() if track.values]
    took = [settled(track).values for track in told]
    longest_s = max(map(max, took), default=0.0)
    # It may compile again what it does, which took long as the run began.
    longest_ever_s = max((max(track.values) for track in told), default=0.0)
    begun_s = ages.times_s[-1] - ages.values[-1]
    age_s = history.age_s(begun_s, ages.times_s[-1])
    least_s = max(least_s, FAR * longest_s, LONGER * longest_ever_s)
    if sum(map(len, took)) < FEWEST_STEPS or age_s < least_s:
        return None
    since = _step_at(history, begun_s)
    goes_on = history.last - since >= FEWEST_SINCE
    if not goes_on:
        return None
    own = own_step(history, worker, before=since)
    return Hang(worker, phase, age_s, longest_s, since, own=own)


def _waits(history: RunHistory, place: PhaseKey) -> bool:
    spec = names.PHASES.get(place.phase)
    is_wait = spec is not None and spec.phase_class in AWAITING
    return is_wait or only_waits(history, place)


def _step_at(history: RunHistory, time_s: float) -> int:
    begun = sorted(history.begun_s.items(), key=lambda one: one[1])
    place = bisect_right(begun, time_s, key=lambda one: one[1])
    return begun[place - 1][0] if place else history.first
