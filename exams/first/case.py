"""One case: draws a run, plays it to the bridge, diagnoses it as it goes on, has it judged."""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exams.first import changes, faults, programs, styles
from exams.first.effects import Effect, Effects
from exams.first.events import Recording
from exams.first.intake import Intake
from exams.first.judge import Diagnose, Look, Mark, judged
from exams.first.play import play
from exams.first.programs import Program
from exams.first.requests import arrivals
from exams.first.styles import Instrumentation
from exams.first.truth import Fault, Truth
from otel_rl.bridge.config import DiagnoseSettings
from otel_rl.diagnose import engine
from otel_rl.diagnose.history.run_history import GrowingHistory

_NS: Final = 1_000_000_000
_WATCHED_S: Final = 720.0  # after the symptom; then only at the end
_AFTER_END_S: Final = 30.0
_HEALTHY_EVERY: Final = 5
_MIXTURES: Final = 0.2
_FAR: Final = 2.0  # times the longest time of work: then it is seen to hang


@dataclass(frozen=True)
class Case:
    """A run, and the truth about it."""

    number: int
    program: Program
    how: Instrumentation
    effects: Effects
    truth: Truth
    seed: str


def draw(seed: int, number: int) -> Case:
    """Draw a case. Every fifth is healthy."""
    text = f"{seed}-{number}"
    chance = random.Random(text)
    program = programs.drawn(chance)
    how = styles.drawn(chance, program)
    effects: list[Effect] = []
    if number % _HEALTHY_EVERY == 0:
        program, effects, names = changes.drawn(chance, program, has_end_reports=how.is_ours)
        truth = Truth((), names)
    else:
        mixture = chance.random() < _MIXTURES
        drawn = faults.drawn(chance, program, measures_machine=how.is_ours, mixture=mixture)
        effects = [effect for effect, _ in drawn]
        truth = Truth(tuple(fault for _, fault in drawn))
    return Case(number, program, how, Effects(effects), truth, text)


def examine(
    case: Case, diagnose: Diagnose, looked: Callable[[Look], None] = lambda _: None
) -> Mark:
    """Play a case and judge what is said of it. ``looked`` gets each look."""
    begun_s = time.perf_counter()
    made = play(case.program, case.effects, has_end_reports=case.how.is_ours)
    truth = with_symptoms(case.truth, case, made)
    looks, refused = _looks(case, truth, made, diagnose)
    for look in looks:
        looked(look)
    mark = judged(case.number, truth, looks)
    about = {
        "topology": str(case.program.topology),
        "style": str(case.how.style) + ("" if case.how.is_ours else ", stock"),
        "workers": sum(case.program.sizes.values()),
        "steps": case.program.steps,
        "step_s": round(case.program.usual_step_s, 2),
        "noise": round(case.program.noise, 3),
        "refused": refused,
        "took_s": round(time.perf_counter() - begun_s, 1),
    }
    return replace(mark, about=about)


def examined(number: int, seed: int) -> Mark:
    """Draw a case and judge the rules of this checkout."""
    return examine(draw(seed, number), engine.diagnose)


def with_symptoms(truth: Truth, case: Case, made: Recording) -> Truth:
    """Return the truth with the times at which its faults can be seen."""
    faults = tuple(_with_symptom(fault, case, made) for fault in truth.faults)
    return replace(truth, faults=faults)


def _with_symptom(fault: Fault, case: Case, made: Recording) -> Fault:
    """Set when its first effect has been reported."""
    ends_s = made.step_ends_s
    if fault.step is None:
        at_s = ends_s[0]
    elif fault.step < len(ends_s):
        at_s = ends_s[fault.step]
    else:  # the step in which the run stopped should have ended
        at_s = ends_s[-1] + case.program.usual_step_s
    visible_s = _visible_s(case, made) if "stall" in fault.kinds else None
    return replace(fault, symptom_s=at_s + case.how.lag_s, visible_s=visible_s)


def _visible_s(case: Case, made: Recording) -> float:
    """Return when work that hangs is told to have taken twice its longest, slow starts aside."""
    stuck, how = made.open[0], case.how
    begun_s = made.step_ends_s[case.program.warm_up]
    longest_s = max(
        one.end_s - one.begin_s
        for one in made.timed
        if (one.who.role, one.phase) == (stuck.who.role, stuck.phase) and one.begin_s >= begun_s
    )
    exports = int((stuck.since_s + _FAR * longest_s) / how.every_s) + 1
    return exports * how.every_s + how.lag_s


def _look_times(case: Case, truth: Truth, made: Recording) -> list[float]:
    chance = random.Random(f"looks-{case.seed}")
    every_s = DiagnoseSettings().every_s
    phase_s = chance.uniform(0, 1) * every_s
    if truth.is_healthy:
        return [phase_s + n * every_s for n in range(int(made.ends_s / every_s))]
    symptom_s = truth.faults[0].symptom_s or 0.0
    looks = int(min(_WATCHED_S, made.ends_s - symptom_s) / every_s)
    return [0.9 * symptom_s, *(symptom_s + phase_s + n * every_s for n in range(looks))]


def _looks(
    case: Case, truth: Truth, made: Recording, diagnose: Diagnose
) -> tuple[Sequence[Look], int]:
    intake, looks = Intake(), list[Look]()
    run = _Run(intake, diagnose)
    times = deque(_look_times(case, truth, made))
    begin_ns = at_ns = 0
    is_found = False
    for at_ns, arrived in arrivals(case.program, case.how, case.effects, made):
        begin_ns = begin_ns or at_ns - int((case.how.every_s + case.how.lag_s) * _NS)
        while times and begin_ns + times[0] * _NS < at_ns:
            at_s = times.popleft()
            intake.go_on(begin_ns + int(at_s * _NS))
            if is_found or not run.has_news():
                continue
            looks.append(run.look(at_s, begin_ns + int(at_s * _NS)))
            is_found = not truth.is_healthy and looks[-1].finds(truth)
        intake.take(at_ns, arrived)
    if made.is_over:
        at_ns += int(_AFTER_END_S * _NS)
        intake.take(at_ns, ())
    looks.append(run.look((at_ns - begin_ns) / _NS, at_ns, is_last=True))
    return looks, intake.refused


class _Run:
    """A run as the bridge's process looks at it: what is new is added to what it has read.

    Args:
        intake: Of the bridge.
        diagnose: The rules.
    """

    def __init__(self, intake: Intake, diagnose: Diagnose) -> None:
        self._intake = intake
        self._diagnose = diagnose
        self._history = GrowingHistory()
        self._read = 0

    def has_news(self) -> bool:
        return len(self._intake.records) > self._read

    def look(self, at_s: float, now_ns: int, *, is_last: bool = False) -> Look:
        for facts in self._intake.records[self._read :]:
            self._history.add(facts)
        self._read = len(self._intake.records)
        history = self._history.history()
        silent_s = max(0.0, (now_ns - history.newest_ns) / _NS)
        found = self._diagnose(history, passed=is_last, silent_s=silent_s)
        return Look.of(at_s, found, is_last=is_last)
