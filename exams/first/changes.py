"""Deliberate changes of a healthy run."""

import random
from dataclasses import dataclass, replace

from exams.first.effects import Death, Effect
from exams.first.events import Who
from exams.first.programs import Program, Topology, evaluations


@dataclass(frozen=True)
class LargerBatch(Effect):
    """Batch multiplied from a step on: as many more samples and tokens."""

    since: int
    by: float

    def tokens(self, step: int) -> float:
        return self.by if step >= self.since else 1.0

    def samples(self, step: int) -> float:
        return self.tokens(step)


@dataclass(frozen=True)
class GrowingLengths(Effect):
    """Answers that become longer, step by step."""

    steps: int
    by: float

    def tokens(self, step: int) -> float:
        return 1.0 + (self.by - 1.0) * step / self.steps


@dataclass(frozen=True)
class LateJoiner(Effect):
    """Worker that joins the run later, or leaves it with a report."""

    who: Who
    since: int

    def is_present(self, who: Who, step: int) -> bool:
        return who != self.who or step >= self.since


@dataclass(frozen=True)
class Removal(Effect):
    """Workers that leave the run on purpose."""

    leaving: frozenset[Who]
    at: int

    def death(self, who: Who, step: int) -> Death | None:
        return Death.REMOVED if who in self.leaving and step == self.at else None

    def is_present(self, who: Who, step: int) -> bool:
        return who not in self.leaving or step <= self.at


_NAMES = ("nothing", "batch", "lengths", "resize", "joiner", "removal", "evaluation", "nothing")


def drawn(
    chance: random.Random, program: Program, *, has_end_reports: bool
) -> tuple[Program, list[Effect], tuple[str, ...]]:
    """Draw one deliberate change, or none.

    Returns:
        The program, perhaps with an evaluation; effects; their names.
    """
    name = chance.choice(_NAMES)
    at = chance.randint(program.steps // 3, 2 * program.steps // 3)
    if name == "batch":
        by = chance.choice((0.5, 1.5, 2.0, 2.0, 3.0))
        return program, [LargerBatch(at, by)], (f"batch x{by:g}",)
    if name == "lengths":
        by = chance.uniform(1.3, 2.5)
        return program, [GrowingLengths(program.steps, by)], (f"lengths x{by:.1f}",)
    if name == "evaluation":
        stages = (*program.stages, evaluations(chance, program))
        return replace(program, stages=stages), [], ("evaluation",)
    makers = program.workers(program.maker)
    if name == "nothing" or program.topology is Topology.COLOCATED or len(makers) < 2:
        return program, [], ()
    if name == "joiner" or not has_end_reports:
        return program, [LateJoiner(makers[-1], at)], ("late joiner",)
    if name == "removal":
        return program, [Removal(frozenset(makers[-1:]), at)], ("removal",)
    half = makers[len(makers) - len(makers) // 2 :]
    if chance.random() < 0.5:
        return program, [Removal(frozenset(half), at)], ("resize, fewer",)
    return program, [LateJoiner(who, at) for who in half], ("resize, more",)
