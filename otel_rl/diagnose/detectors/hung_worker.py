"""Detector of a worker that hangs in its work while the run goes on without it."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject, only_waits, tracks_about
from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.semconv import names
from otel_rl.semconv.spec import AWAITING

__all__ = ["hung_workers", "hung_workers_of", "is_current"]

_FEWEST: Final = 8  # times of the phase, to know the longest
_FAR: Final = 4  # times the longest time of the phase, by any worker of the role
_LEAST_S: Final = 10.0
_STEPS: Final = 4  # that the run makes meanwhile
_FRESH_S: Final = 60.0  # age of the last export of the worker
_LATE_EXPORTS: Final = 2  # without the age of the phase: an export may have several requests


class Hang(NamedTuple):
    """Phase that a worker does not leave.

    Attributes:
        worker: ``<role>/<index>``.
        phase: In which it is.
        age_s: Time since it began.
        longest_s: Longest time that any worker of the role has taken for it.
        since: Step in progress when it began.
    """

    worker: str
    phase: str
    age_s: float
    longest_s: float
    since: int


def hung_workers(history: RunHistory) -> Iterator[Cause]:
    """Find workers whose work in progress takes far longer than it ever took, while steps go on.

    A run without further steps is a stall.
    """
    for hang in hung_workers_of(history):
        yield Cause(
            Kind.STALL,
            0.95,
            f"{hang.worker} has been in {hang.phase} for {hang.age_s:.3g} s since step "
            f"{hang.since}, at most {hang.longest_s:.3g} s before; the others go on",
            role=hang.worker.rpartition("/")[0],
            worker=hang.worker,
            phase=hang.phase,
            since=hang.since,
            evidence=[
                Evidence(
                    f"age of {hang.phase}",
                    f"worker/phase/age/{hang.phase}",
                    hang.worker,
                    hang.longest_s,
                    hang.age_s,
                    "s",
                )
            ],
        )


def hung_workers_of(history: RunHistory) -> Iterator[Hang]:
    """Yield the workers that hang, each with the phase that it does not leave."""
    rhythm = Rhythm.of(history)
    if rhythm is None or rhythm.steps < _FEWEST:
        return
    lost = departed(history) | {loss.worker for loss in history.losses}
    for key, worker, track in tracks_about(history, Subject.PHASE_AGE):
        if worker is None or worker in lost:
            continue
        phase = key.partition("/phase/age/")[2]
        hang = _hang(history, worker, phase, track.finite())
        if hang is not None and hang.age_s >= _STEPS * rhythm.usual_s:
            yield hang


def _hang(history: RunHistory, worker: str, phase: str, ages: Track) -> Hang | None:
    place = PhaseKey(worker.rpartition("/")[0], phase)
    if not ages.values or not is_current(history, worker, ages) or _waits(history, place):
        return None
    age_s = ages.values[-1]
    took = [value for track in history.spans.get(place, {}).values() for value in track.values]
    if len(took) < _FEWEST or age_s < max(_LEAST_S, _FAR * max(took)):
        return None
    since = _step_at(history, ages.times_s[-1] - age_s)
    goes_on = history.last - since >= _STEPS
    return Hang(worker, phase, age_s, max(took), since) if goes_on else None


def is_current(history: RunHistory, worker: str, ages: Track) -> bool:
    """Return whether the worker is still in the phase: its newest exports tell its age."""
    told_s = ages.times_s[-1]
    own = history.lags.get(worker)
    newest_s = told_s if own is None else max(told_s, own.times_s[-1])
    later = 0 if own is None else len(own.times_s) - bisect_right(own.times_s, told_s)
    return later <= _LATE_EXPORTS and history.ends_s - newest_s <= _FRESH_S


def _waits(history: RunHistory, place: PhaseKey) -> bool:
    spec = names.PHASES.get(place.phase)
    is_wait = spec is not None and spec.phase_class in AWAITING
    return is_wait or only_waits(history, place)


def _step_at(history: RunHistory, time_s: float) -> int:
    begun = sorted(history.begun_s.items(), key=lambda one: one[1])
    place = bisect_right(begun, time_s, key=lambda one: one[1])
    return begun[place - 1][0] if place else history.first
