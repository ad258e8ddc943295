"""Coverage of a diagnosis: what "healthy" rests on, and why it may not be known."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.detectors.always_slower import longer_by_design
from otel_rl.diagnose.detectors.idle_workers import unused_workers
from otel_rl.diagnose.detectors.processes import fell_silent_together
from otel_rl.diagnose.detectors.slow_phases import grown_together, least_slowdowns
from otel_rl.diagnose.detectors.stalls import STALL
from otel_rl.diagnose.detectors.standing_work import standing_work
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.history.track import gaps_s
from otel_rl.diagnose.result import MOST_NAMED, Kind, listed
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.stats.levels import settled
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import FEWEST_STEPS, FRESH_S, LONGER, LONGER_NOISE, NEWS_S
from otel_rl.plurals import many
from otel_rl.records import ExperimentStatus, WorkerFailure
from otel_rl.semconv.spec import STEP_SPAN

NO_PATH: Final = f"no critical path (no span {STEP_SPAN}, as otel_rl.step(n) makes)"
"""What costs a diagnosis the critical path, beside what it has seen."""

_SILENT_TOGETHER: Final = "all workers fell silent at once: their SDK reports no end of a run"
_WORK: Final = {
    Kind.SLOW_GENERATION: "generation",
    Kind.SLOW_REWARD: "reward",
    Kind.SLOW_TRAINING: "training",
    Kind.SLOW_SYNC: "weight sync",
    Kind.SLOW_TOOL: "tools",
    Kind.SLOW_DATA: "data",
    Kind.SLOW_PHASE: "other",
}
_UNMEASURED: Final = "nothing tells their work (tokens, samples or lengths)"
_UNTIMED: Final = "nothing measures how long steps take"


class Coverage(NamedTuple):
    """Extent of the data about a run.

    Attributes:
        steps: Number of steps in the data.
        workers: Number of workers in the data.
        timed: Number of workers that have spans or phases, or logged times instead.
        has_path: Whether the critical path of steps is known.
        least_ratio: The smallest lasting slowdown of steps that a diagnosis finds; None if their
            duration is unknown.
        least_work: The smallest slowdown that a diagnosis finds, for each kind of slow work.
        longest: (step, seconds, times the usual) of the longest step after the start, if it is far
            longer than others; else None.
        is_logged: Whether only logged times tell the parts of steps.
    """

    steps: int
    workers: int
    timed: int
    has_path: bool
    least_ratio: float | None
    least_work: Mapping[Kind, float] = {}
    longest: tuple[int, float, float] | None = None
    is_logged: bool = False

    def __str__(self) -> str:
        kind = "logged times" if self.is_logged else "spans or phases"
        of = f"{kind} of {self.timed}" if self.timed else "no spans or phases"
        path = "" if self.has_path else f", {NO_PATH}"
        size = f"{many(self.steps, 'step')}, {many(self.workers, 'worker')}"
        return f"{size}, {of}{path}; {self._least}{self._once}"

    @property
    def unknown(self) -> str:
        """Return in words what findings cannot be about; empty if times were measured."""
        return _UNTIMED if self.least_ratio is None and not self.least_work else ""

    @property
    def _once(self) -> str:
        """Return the longest step in words: it may be a save, an evaluation, or had trouble."""
        if self.longest is None:
            return ""
        step, seconds, times = self.longest
        return f"; step {step} alone took {seconds:.3g} s, {times:.0f} times as long as usual"

    @property
    def _least(self) -> str:
        """Return in words the smallest slowdowns that a diagnosis finds."""
        parts = []
        if self.least_ratio is not None:
            parts.append(f"steps that take {self.least_ratio:.1f} times")
        if work := sorted(self.least_work.items(), key=lambda one: (one[1], one[0])):
            parts.append(", ".join(f"{_WORK[kind]} {least:.3g} times" for kind, least in work))
        untimed = f"{_UNTIMED}, " if self.least_ratio is None and parts else ""
        return f"{untimed}{', '.join(parts)} as long would be seen" if parts else _UNTIMED


def coverage(history: RunHistory) -> Coverage:
    times_s = settled(step_time(history).finite())
    values = times_s.values
    timed = {worker for of in history.spans.values() for worker in of}
    workers = {*timed, *history.lags, *(name for of in history.workers.values() for name in of)}
    least_ratio = None
    if len(values) >= FEWEST_STEPS and (usual := median(values)) > 0:
        least_ratio = max(LONGER, 1 + LONGER_NOISE * spread(values) / usual)
    has_path = bool(history.steps)
    return Coverage(
        steps_of(history),
        len(workers),
        len(timed),
        has_path,
        least_ratio,
        least_slowdowns(history),
        _longest(times_s),
        all(
            place in history.unspanned and f"phase/{place}" not in history.workers
            for place in history.spans
        ),
    )


def _longest(times_s: Track) -> tuple[int, float, float] | None:
    """Return the step, duration and ratio of the longest step, if it is far beyond the usual."""
    if len(times_s.values) < FEWEST_STEPS:
        return None
    seconds, step = max(zip(times_s.values, times_s.steps, strict=True))
    usual_s = median(times_s.values)
    is_long = seconds >= NEWS_S and usual_s > 0 and seconds >= STALL * usual_s
    return (step, seconds, seconds / usual_s) if is_long else None


def doubts(
    history: RunHistory,
    *,
    silent_s: float = 0.0,
    is_part: bool = False,
    is_interrupted: bool = False,
) -> Iterator[str]:
    """Yield reasons why a run without a finding may still not be healthy.

    Args:
        silent_s: Seconds since the last record.
        is_part: Whether the steps are a part that was asked for, which may be few.
        is_interrupted: Whether the run's bridge is gone, and the run has no end.
    """
    steps = steps_of(history)
    if not steps:
        yield "no step was seen"
    elif steps < FEWEST_STEPS and not is_part:
        yield f"{many(steps, 'step')} {'is' if steps == 1 else 'are'} too few to compare"
    grown = sorted({place.phase for place in grown_together(history)})
    if grown:
        yield f"{' and '.join(grown)} take longer and longer, in proportion, and {_UNMEASURED}"
    if fell_silent_together(history):
        yield f"{_SILENT_TOGETHER}{_undone(history)}"
    else:
        yield from map(str, _dead(history))
    gone = _gone(history)
    if gone:
        others = " and others" if len(gone) > MOST_NAMED else ""
        yield f"{', '.join(gone[:MOST_NAMED])}{others} stopped reporting"
    yield from unused_workers(history)
    yield from longer_by_design(history)
    begun_s = [history.begun_s[step] for step in sorted(history.begun_s)]
    usual_s = median(gaps_s(begun_s) or [0.0])
    if is_interrupted and not is_part:
        yield "its bridge was killed or stopped before the end of the run"
        return
    is_silent = silent_s > max(FRESH_S, STALL * usual_s)
    if is_silent and history.status == ExperimentStatus.RUNNING:
        yield f"nothing was reported for {silent_s:.0f} s, and the run has not ended"


def steps_of(history: RunHistory) -> int:
    # Before the first step, what is in progress is step 0.
    begun = len(history.known_steps) if history.last > history.first else 0
    return max(begun, len(step_time(history).values))


def _dead(history: RunHistory) -> list[WorkerFailure]:
    """Return failures without a replacement, unless a person has ended the run."""
    lasting = [one for one in history.failures if one.recovery_s is None]
    return [] if any(one.is_interrupt for one in lasting) else lasting


def _gone(history: RunHistory) -> list[str]:
    """Return lost workers that were not heard of later and have no known failure."""
    known = {one.worker for one in history.failures}
    return sorted(
        {
            loss.worker
            for loss in history.losses
            if loss.worker not in known and _last_s(history, loss.worker) <= loss.time_s
        }
    )


def _last_s(history: RunHistory, worker: str) -> float:
    tracks = (*history.spans.values(), *history.workers.values(), history.lags)
    return max((of[worker].times_s[-1] for of in tracks if worker in of), default=0.0)


def _undone(history: RunHistory) -> str:
    """Return in words the work that most workers had ended and a few had not."""
    standing = standing_work(history)
    if standing is None or not standing.is_partly_done:
        return ""
    of, peers = sorted(standing.workers), history.spans[standing.place].keys()
    if len(of) > len(peers) / 2:
        return ""
    return (
        f"; {listed(of)} had come to no end of {standing.place.phase}, which their peers had done"
    )
