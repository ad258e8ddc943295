"""Hooks of a fault or of a deliberate change in the simulation; each does nothing by itself."""

from collections.abc import Sequence
from enum import StrEnum

from exams.first.events import Who
from exams.first.programs import Stage


class Measure(StrEnum):
    """Measurements of a learning run, whatever a program calls them."""

    REWARD = "reward"
    REWARD_STD = "reward_std"
    ENTROPY = "entropy"
    KL = "kl"
    LENGTH = "length"
    LOSS = "loss"
    GRAD = "grad"


class Death(StrEnum):
    """End of a worker before the run's."""

    KILLED = "killed"
    RAISED = "raised"
    REMOVED = "removed"
    RESTARTED = "restarted"


class Effect:
    def factor(self, who: Who, stage: Stage, step: int) -> float:
        """Factor of a time."""
        return 1.0

    def extra_s(self, who: Who, stage: Stage, step: int) -> float:
        """Seconds beside it."""
        return 0.0

    def tokens(self, step: int) -> float:
        """Factor of the tokens of a step, and of the times that grow with them."""
        return 1.0

    def samples(self, step: int) -> float:
        """Factor of the samples of a step."""
        return 1.0

    def is_present(self, who: Who, step: int) -> bool:
        """Whether a worker takes part."""
        return True

    def hangs(self, who: Who, stage: Stage, step: int) -> bool:
        """Whether it never comes out of this."""
        return False

    def is_killed(self) -> bool:
        """Whether a run that hangs is killed after a while."""
        return False

    def death(self, who: Who, step: int) -> Death | None:
        """How a worker ends in this step."""
        return None

    def value(self, measure: Measure, who: Who, step: int, usual: float) -> float:
        """Value instead of the usual one."""
        return usual

    def ahead_s(self, who: Who) -> float:
        """Seconds by which its clock is ahead."""
        return 0.0

    def gc_s(self, who: Who, step: int) -> float:
        """Seconds of garbage collection in a step, beside the usual."""
        return 0.0

    def throttled(self, who: Who, step: int) -> float:
        """Share of the time in which its device is throttled."""
        return 0.0

    def preemptions(self, who: Who, step: int) -> float:
        """Preempted requests in a step, beside the usual."""
        return 0.0

    def call_s(self, caller: Who, step: int) -> float:
        """Seconds that a call takes longer for its caller."""
        return 0.0

    def pulls(self, who: Who, step: int) -> bool:
        """Whether a maker takes up new weights."""
        return True

    def drops(self, step: int) -> float:
        """Share of items that the buffer drops."""
        return 0.0


class Effects:
    """All effects of a run together."""

    def __init__(self, effects: Sequence[Effect]) -> None:
        self.each = effects

    def factor(self, who: Who, stage: Stage, step: int) -> float:
        product = 1.0
        for effect in self.each:
            product *= effect.factor(who, stage, step)
        return product

    def extra_s(self, who: Who, stage: Stage, step: int) -> float:
        return sum(effect.extra_s(who, stage, step) for effect in self.each)

    def tokens(self, step: int) -> float:
        product = 1.0
        for effect in self.each:
            product *= effect.tokens(step)
        return product

    def samples(self, step: int) -> float:
        product = 1.0
        for effect in self.each:
            product *= effect.samples(step)
        return product

    def is_present(self, who: Who, step: int) -> bool:
        return all(effect.is_present(who, step) for effect in self.each)

    def hangs(self, who: Who, stage: Stage, step: int) -> bool:
        return any(effect.hangs(who, stage, step) for effect in self.each)

    def is_killed(self) -> bool:
        return any(effect.is_killed() for effect in self.each)

    def death(self, who: Who, step: int) -> Death | None:
        return next(filter(None, (effect.death(who, step) for effect in self.each)), None)

    def value(self, measure: Measure, who: Who, step: int, usual: float) -> float:
        for effect in self.each:
            usual = effect.value(measure, who, step, usual)
        return usual

    def ahead_s(self, who: Who) -> float:
        return sum(effect.ahead_s(who) for effect in self.each)

    def gc_s(self, who: Who, step: int) -> float:
        return sum(effect.gc_s(who, step) for effect in self.each)

    def throttled(self, who: Who, step: int) -> float:
        return max((effect.throttled(who, step) for effect in self.each), default=0.0)

    def preemptions(self, who: Who, step: int) -> float:
        return sum(effect.preemptions(who, step) for effect in self.each)

    def call_s(self, caller: Who, step: int) -> float:
        return sum(effect.call_s(caller, step) for effect in self.each)

    def pulls(self, who: Who, step: int) -> bool:
        return all(effect.pulls(who, step) for effect in self.each)

    def drops(self, step: int) -> float:
        return max((effect.drops(step) for effect in self.each), default=0.0)
