"""Costs of the exam's slowdowns: as told, and as the simulator has them without the fault."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from exams.first.case import Case, draw
from exams.first.effects import Effects
from exams.first.events import Recording
from exams.first.faults import Slower
from exams.first.intake import Intake
from exams.first.play import play
from exams.first.requests import arrivals
from otel_rl.diagnose.costs import cost_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory


@dataclass(frozen=True)
class Told:
    """Cost of a slowdown.

    Attributes:
        number: Of the case.
        name: Of the fault.
        place: Topology and style.
        true_s: Time by which a step takes longer, in the mean of its steps.
        step_s: Time of a step with it.
        said_s: The same time as told; None if none was.
    """

    number: int
    name: str
    place: str
    true_s: float
    step_s: float
    said_s: float | None

    @property
    def error(self) -> float | None:
        """Return the error in parts of a step; None if nothing was told."""
        return None if self.said_s is None else (self.said_s - self.true_s) / self.step_s

    def __str__(self) -> str:
        said = "nothing" if self.said_s is None else f"{self.said_s:.3g} s ({self.error:+.1%})"
        return (
            f"{self.number:>4} {self.name:<28} {self.place:<26} step {self.step_s:6.3g} s, of it "
            f"{self.true_s:6.3g} s; told {said}"
        )


def costs(seed: int, cases: int) -> Iterator[Told]:
    """Yield the costs of as many cases with a single slowdown."""
    number = found = 0
    while found < cases:
        case = draw(seed, number)
        number += 1
        if len(case.effects.each) == 1 and isinstance(case.effects.each[0], Slower):
            found += 1
            yield told_of(case)


def told_of(case: Case) -> Told:
    """Play a case with and without its slowdown."""
    fault = case.effects.each[0]
    assert isinstance(fault, Slower)
    made, without = (
        play(case.program, effects, has_end_reports=case.how.is_ours)
        for effects in (case.effects, Effects([]))
    )
    steps = range(max(1, fault.since), min(fault.until, len(made.step_ends_s)))
    step_s, without_s = (_mean_step_s(one, steps) for one in (made, without))
    history = RunHistory(_records(case, made))
    lost_s = None
    causes = diagnose(history, passed=True).causes
    for cause in causes[:1]:
        cost = cost_of(history, cause, is_only=len(causes) == 1)
        lost_s = None if cost is None else cost.lost_s / len(steps)
    return Told(
        case.number,
        case.truth.faults[0].name,
        f"{case.program.topology}, {case.how.style}",
        step_s - without_s,
        step_s,
        lost_s,
    )


def _mean_step_s(made: Recording, steps: range) -> float:
    ends_s = made.step_ends_s
    return fmean(ends_s[step] - ends_s[step - 1] for step in steps)


def _records(case: Case, made: Recording) -> list[Facts]:
    intake = Intake()
    for at_ns, arrived in arrivals(case.program, case.how, case.effects, made):
        intake.take(at_ns, arrived)
    return intake.records
