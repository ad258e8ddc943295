"""Troubles that a run can have, and what is right to say of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

CANNOT_TELL = "cannot tell"  # a verdict, right where the data cannot show more


class What(StrEnum):
    """Mechanism."""

    SLOW = "slow"  # a phase takes ``size`` times as long
    HANG = "hang"  # a phase never ends
    PAUSE = "pause"  # a phase is held up once, for ``size`` steps, and ends then
    FREEZE = "freeze"  # the same of the process, which reports nothing meanwhile
    KILL = "kill"  # the process is gone without a word
    RAISE = "raise"  # the process ends with an exception
    LOOP = "loop"  # the process dies and comes back, again and again
    HEAT = "heat"  # slow as SLOW, and the device says that it is throttled
    GC = "gc"  # pauses of the process, measured as collection time
    WIRE = "wire"  # calls to this role take ``size`` seconds longer on the way
    THRASH = "thrash"  # the KV cache is too small: preemptions, recomputation
    SKEW = "skew"  # the clock is ``size`` seconds wrong
    DEAF = "deaf"  # generators do not pull weights
    CRAMPED = "cramped"  # the buffer keeps ``size`` of its capacity
    DRY = "dry"  # prompts come late: generators idle
    AGEING = "ageing"  # samples wait in a longer queue before use
    NAN = "nan"
    REWARD_FALL = "reward_fall"
    REWARD_CONSTANT = "reward_constant"
    REWARD_JUMP = "reward_jump"
    ENTROPY = "entropy"
    KL = "kl"
    STEAL = "steal"  # a host's CPUs go to others: work on it takes ``size`` times as long
    LINK = "link"  # weights move ``size`` times more slowly between hosts
    UNEVEN = "uneven"  # a rank gets ``size`` times the tokens of the others
    GAP = "gap"  # the engines' log-probabilities are ``size`` times as far off the trainers'
    STAGES = "stages"  # ranks are two stages of a pipeline, one with ``size`` times the work
    NIC = "nic"  # weights move ``size`` times more slowly to and from all workers of one host
    FLAKY = "flaky"  # of calls of a tool, one in twelve takes ``size`` times as long
    LEAK = "leak"  # the process keeps a little more memory in each step
    DEAD = "dead"  # prompts become too hard: all answers to one have the same reward
    HACK = "hack"  # the reward is gained by a trick: held-out scores fall, answers repeat
    # No troubles: changes on purpose.
    BATCH = "batch"
    LENGTH = "length"
    LENGTH_RAMP = "length_ramp"
    LR = "lr"
    LEAVE = "leave"
    JOIN = "join"
    RESTART = "restart"
    TAIL = "tail"
    LONG_EVAL = "long_eval"
    REPLACED = "replaced"
    SEASON = "season"  # prompts become harder and easier in turns
    LEAP = "leap"  # the policy finds out how to solve more, and writes more for it
    SCALES = "scales"  # scorers leave and come back in turns, as load asks
    CURRICULUM = "curriculum"  # answers may be ``size`` times as long in each of three stages
    MICRO = "micro"  # gradients are gathered over twice the batches, each with a span
    ELSEWHERE = "elsewhere"  # evaluations are moved from the ranks to a process of their own
    SMALLER = "smaller"  # as RESTART, with a part ``size`` of the ranks
    BLIP = "blip"  # the loss is NaN in two steps, which are skipped
    ODD_EVAL = "odd_eval"  # one evaluation of all takes ``size`` times as long
    FILLS = "fills"  # a cache takes memory until it is full, which is less than there is
    SOLVED = "solved"  # most prompts are solved: all answers to one are right
    GAP_GROWS = "gap_grows"  # slowly, to ``size`` times, as the policy moves away


class Shape(StrEnum):
    """Course over the steps."""

    STEADY = "steady"
    THIRD = "third"  # every third step
    SOME = "some"  # one step in four, by chance
    RAMP = "ramp"  # grows to its size by the end
    PASSING = "passing"  # for a fifth of the run


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble.

    Attributes:
        index: Of one worker; None for all of the role. -1: drawn.
        size: Factor, seconds or share, see ``What``. 0: drawn, large enough for the noise.
        begins: Share of the run before it; 0 for from the first step on.
    """

    what: What
    role: str = "trainer"
    index: int | None = None
    phase: str = ""
    size: float = 0.0
    begins: float = 0.5
    shape: Shape = Shape.STEADY
    step: int = 0
    until: int = 1 << 60

    def meets(self, role: str, index: int, phase: str = "") -> bool:
        return (
            self.role == role
            and self.index in (None, index)
            and (not self.phase or not phase or self.phase == phase)
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What is right to say of a trouble.

    Attributes:
        kinds: Any of these kinds is right.
        role: Of the cause; empty if it is of none, or the data does not show it.
        index: Of the worker at fault; None if there is not one.
        step: When it begins; None if that is not judged.
    """

    kinds: frozenset[str]
    role: str = ""
    index: int | None = None
    step: int | None = None

    @property
    def worker(self) -> str | None:
        return None if self.index is None else f"{self.role}/{self.index}"


class Troubles:
    """The troubles of one run, asked for by the simulated workers."""

    def __init__(self, troubles: Sequence[Trouble], seed: str) -> None:
        self._all = tuple(troubles)
        self._seed = seed

    def of(self, what: What) -> list[Trouble]:
        return [one for one in self._all if one.what is what]

    def factor(self, role: str, index: int, phase: str, step: int, steps: int) -> float:
        """Return how many times as long a piece of work takes."""
        factor = 1.0
        for one in self._all:
            if one.what in (What.SLOW, What.HEAT) and one.meets(role, index, phase):
                factor *= 1 + (one.size - 1) * self.strength(one, step, steps)
        return factor

    def amount(self, what: What, role: str, index: int, step: int, steps: int) -> float:
        """Return the size of a trouble at a step; 0 if there is none."""
        return sum(
            one.size * self.strength(one, step, steps)
            for one in self.of(what)
            if one.meets(role, index)
        )

    def is_on(self, what: What, role: str, index: int, step: int, phase: str = "") -> bool:
        return any(
            one.meets(role, index, phase) and one.step <= step < one.until for one in self.of(what)
        )

    def strength(self, one: Trouble, step: int, steps: int) -> float:
        if not one.step <= step < one.until:
            return 0.0
        if one.shape is Shape.THIRD:
            return float((step - one.step) % 3 == 0)
        if one.shape is Shape.SOME:
            return float(random.Random(f"{self._seed} {one.what} {step}").random() < 0.25)
        if one.shape is Shape.RAMP:
            return min(1.0, (step - one.step) / max(1, 0.85 * (steps - one.step)))
        return 1.0


def at_steps(one: Trouble, steps: int) -> Trouble:
    """Return a trouble with the steps of this run."""
    step = round(one.begins * steps)
    until = step + max(12, steps // 5) if one.shape is Shape.PASSING else one.until
    return replace(one, step=step, until=until)
