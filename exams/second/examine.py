"""Replays a run to a bridge and looks at it as it goes on."""

from collections.abc import Sequence
from typing import Final

from exams.first.intake import Intake
from exams.first.judge import Diagnose
from exams.first.requests import Arrived
from exams.second.judge import Look, Mark, is_told, judged
from exams.second.run import Run, requests, simulate
from exams.second.sdk.encode import BEGIN_NS
from exams.second.systems.world import World
from otel_rl.diagnose import engine
from otel_rl.diagnose.history.run_history import GrowingHistory
from otel_rl.diagnose.result import Diagnosis

_SEEN_STEPS: Final = 40  # after the trouble begins; none once it is told
_WELL_LOOKS: Final = 4  # at a healthy run
_EVERY_S: Final = 5.0  # the bridge's own pace, at first; later ones are farther apart
_PACE: Final = 1.2
_AFTER_END_S: Final = 30.0


class _Watcher:
    """A bridge, and the diagnosis of what it has."""

    def __init__(self, diagnose: Diagnose) -> None:
        self._diagnose = diagnose
        self._intake, self._history = Intake(), GrowingHistory()
        self._read = 0

    def take(self, at_s: float, arrived: Sequence[Arrived]) -> None:
        self._intake.take(BEGIN_NS + int(at_s * 1e9), arrived)

    def look(self, at_s: float, *, is_last: bool) -> Diagnosis:
        for facts in self._intake.records[self._read :]:
            self._history.add(facts)
        self._read = len(self._intake.records)
        history = self._history.history()
        silent_s = max(0.0, at_s - (history.newest_ns - BEGIN_NS) / 1e9)
        return self._diagnose(history, passed=is_last, silent_s=silent_s)

    @property
    def refused(self) -> int:
        return self._intake.refused


def examined(run: Run, diagnose: Diagnose = engine.diagnose) -> tuple[Mark, Sequence[Look], float]:
    """Simulate a run, look at it and judge what is said.

    Returns:
        The judgement, the looks, and the seconds of the run after which its trouble can be seen.
    """
    world = simulate(run)
    onset_s = _onset_s(run, world)
    seen = looks(run, world, onset_s, diagnose)
    return judged(run, seen, onset_s), seen, onset_s


def looks(
    run: Run, world: World, onset_s: float, diagnose: Diagnose = engine.diagnose
) -> Sequence[Look]:
    """Return what is said as the run goes on; the last is at its end."""
    watcher, seen = _Watcher(diagnose), list[Look]()
    due = _times(run, world, onset_s)
    at_s = 0.0
    for at_s, bodies in requests(run, world):
        while due and due[0] <= at_s:
            now_s = due.pop(0)
            if seen and now_s > onset_s and is_told(run, seen[-1]):
                continue
            step = sum(end < now_s for _, end in world.step_ends)
            seen.append(Look(now_s, step, watcher.look(now_s, is_last=False)))
        watcher.take(at_s, [Arrived(BEGIN_NS, signal, body) for signal, body in bodies])
    if not world.is_stuck:
        at_s += _AFTER_END_S
        watcher.take(at_s, ())
    if watcher.refused:
        message = f"{run.scenario.name}: the bridge refused {watcher.refused} items"
        raise AssertionError(message)
    seen.append(Look(at_s, len(world.step_ends), watcher.look(at_s, is_last=True)))
    return seen


def _onset_s(run: Run, world: World) -> float:
    """Return the end of the first step with the trouble, or when it should have ended."""
    ends = dict(world.step_ends)
    onset = run.onset or 0
    return ends.get(onset, max(ends.values(), default=0.0) + run.program.step_s)


def _times(run: Run, world: World, onset_s: float) -> list[float]:
    if not run.expected:
        return [world.ends_s * (n + 0.5) / _WELL_LOOKS for n in range(_WELL_LOOKS)]
    times, at_s, pace_s = [0.85 * onset_s], onset_s + _EVERY_S / 2, _EVERY_S
    ends_s = min(world.ends_s, onset_s + _SEEN_STEPS * run.program.step_s)
    while at_s < ends_s:
        times.append(at_s)
        at_s, pace_s = at_s + pace_s, pace_s * _PACE
    return times
