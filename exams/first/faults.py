"""Faults drawn for a program. Each is an effect in the simulation and an answer for the judge."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exams.first.effects import Death, Effect, Measure
from exams.first.events import Who
from exams.first.programs import Job, Program, Stage, Topology
from exams.first.truth import Fault

Drawn = tuple[Effect, Fault]

_SLOW = {
    Job.GENERATION: "slow_generation",
    Job.ENVIRONMENT: "slow_tool",
    Job.REWARD: "slow_reward",
    Job.LOADING: "slow_data",
    Job.TRAINING: "slow_training",
    Job.SYNC: "slow_sync",
    Job.CHECKPOINT: "slow_phase",
}
_OWN_WORK = {Job.GENERATION, Job.ENVIRONMENT, Job.REWARD, Job.TRAINING}


@dataclass(frozen=True)
class Slower(Effect):
    """Work that takes longer: of one worker or of a role; lasting, for a while, in some steps.

    Makers of a queue begin no work in some steps: of every few, and of rare ones, pieces of work
    count, else there may be none that is slower.
    """

    stage: Stage
    by: float
    since: int
    who: Who | None = None
    until: int = 10**9
    every: int = 1
    rare: float = 1.0
    seed: int = 0
    done: Counter[Who] = field(default_factory=Counter, compare=False)

    def is_on(self, piece: int) -> bool:
        """Return whether a piece of work is slow, counted from the onset."""
        if piece % self.every:
            return False
        return not piece or random.Random(f"{self.seed}-{piece}").random() < self.rare

    def factor(self, who: Who, stage: Stage, step: int) -> float:
        is_it = stage.phase == self.stage.phase and stage.role == self.stage.role
        if not is_it or self.who not in {None, who} or not self.since <= step < self.until:
            return 1.0
        self.done[who] += 1
        return self.by if self.is_on(self.done[who] - 1) else 1.0


@dataclass(frozen=True)
class Hang(Effect):
    who: Who
    stage: Stage
    at: int
    killed: bool = False

    def is_killed(self) -> bool:
        return self.killed

    def hangs(self, who: Who, stage: Stage, step: int) -> bool:
        return who == self.who and stage.phase == self.stage.phase and step >= self.at


@dataclass(frozen=True)
class Deaths(Effect):
    who: Who
    at: frozenset[int]
    how: Death

    def death(self, who: Who, step: int) -> Death | None:
        return self.how if who == self.who and step in self.at else None


@dataclass(frozen=True)
class Nan(Effect):
    who: Who
    since: int
    spreads_after: int

    def value(self, measure: Measure, who: Who, step: int, usual: float) -> float:
        if measure not in {Measure.LOSS, Measure.GRAD, Measure.ENTROPY, Measure.KL}:
            return usual
        has_it = step >= self.since + (0 if who == self.who else self.spreads_after)
        return math.nan if has_it else usual


@dataclass(frozen=True)
class Learning(Effect):
    """Measure that goes wrong: jumps to a value, or moves there within some steps."""

    measure: Measure
    to: float
    since: int
    within: int = 1
    is_factor: bool = False
    flat: bool = False

    def value(self, measure: Measure, who: Who, step: int, usual: float) -> float:
        if step < self.since:
            return usual
        if self.flat and measure is Measure.REWARD_STD:
            return 0.0
        if measure is not self.measure:
            return usual
        part = min(1.0, (step - self.since + 1) / self.within)
        to = usual * self.to if self.is_factor else self.to
        return usual + part * (to - usual)


@dataclass(frozen=True)
class SkewedClock(Effect):
    who: Who
    by_s: float

    def ahead_s(self, who: Who) -> float:
        return self.by_s if who == self.who else 0.0


@dataclass(frozen=True)
class Collector(Effect):
    """Garbage collection of one worker."""

    who: Who
    seconds: float
    since: int

    def gc_s(self, who: Who, step: int) -> float:
        return self.seconds if who == self.who and step >= self.since else 0.0


@dataclass(frozen=True)
class Throttled(Slower):
    def throttled(self, who: Who, step: int) -> float:
        return 0.8 if who == self.who and step >= self.since else 0.0


@dataclass(frozen=True)
class Thrash(Slower):
    def preemptions(self, who: Who, step: int) -> float:
        return 12.0 if self.who in {None, who} and step >= self.since else 0.0


@dataclass(frozen=True)
class SlowNetwork(Effect):
    seconds: float
    since: int

    def call_s(self, caller: Who, step: int) -> float:
        return self.seconds if step >= self.since else 0.0


@dataclass(frozen=True)
class Stale(Effect):
    who: Who | None
    since: int

    def pulls(self, who: Who, step: int) -> bool:
        return step < self.since or self.who not in {None, who}


@dataclass(frozen=True)
class Dropping(Effect):
    share: float
    since: int

    def drops(self, step: int) -> float:
        return self.share if step >= self.since else 0.0


class _Draw:
    """Draws faults of one program, with one generator."""

    def __init__(self, chance: random.Random, program: Program, *, measures_machine: bool) -> None:
        self.chance = chance
        self.program = program
        self.measures_machine = measures_machine
        self.since = 0
        self.is_early = False

    def _stage(self, jobs: set[Job], fewest: int = 1) -> Stage | None:
        found = [
            stage
            for stage in self.program.stages
            if stage.job in jobs and self.program.sizes[stage.role] >= fewest
        ]
        return self.chance.choice(found) if found else None

    def _one(self, role: str) -> Who:
        return Who(role, self.chance.randrange(self.program.sizes[role]))

    def _by(self, low: float, high: float) -> float:
        """Draw a factor that stands out of the noise."""
        low = max(low, 1.15 + 4 * self.program.noise)
        return float(low * (max(high, 1.3 * low) / low) ** self.chance.random())

    def slow_worker(self) -> Drawn | None:
        stage = self._stage(_OWN_WORK, 2)
        if stage is None:
            return None
        who, by = self._one(stage.role), self._by(1.2, 4)
        kinds = frozenset({"straggler", _SLOW[stage.job]})
        return Slower(stage, by, self.since, who), Fault(
            "slow worker", kinds, self.since, stage.role, str(who), in_words=f"x{by:.2f}"
        )

    def slow_role(self) -> Drawn | None:
        stage = self._stage({*_OWN_WORK, Job.LOADING, Job.SYNC})
        if stage is None:
            return None
        small = stage.job in {Job.LOADING, Job.SYNC}
        by = self._by(4, 12) if small else self._by(1.2, 3.5)
        kinds = {_SLOW[stage.job]}
        if stage.job is Job.LOADING:
            kinds |= {"starvation", "slow_training"}
        return Slower(stage, by, self.since), Fault(
            "slow role", frozenset(kinds), self.since, stage.role, in_words=f"x{by:.2f} {stage.job}"
        )

    def passing(self) -> Drawn | None:
        stage = self._stage(_OWN_WORK)
        if stage is None:
            return None
        one = self.chance.random() < 0.5 and self.program.sizes[stage.role] > 1
        who = self._one(stage.role) if one else None
        by, until = self._by(1.8, 5), self.since + self.chance.randint(10, 18)
        kinds = {_SLOW[stage.job]} | ({"straggler"} if who else set())
        return Slower(stage, by, self.since, who, until), Fault(
            "passing, worker" if who else "passing, role",
            frozenset(kinds),
            self.since,
            stage.role,
            str(who) if who else None,
            in_words=f"x{by:.2f} until {until}",
        )

    def every_few(self) -> Drawn | None:
        stage = self._stage(_OWN_WORK, 3)
        if stage is None:
            return None
        who, by, every = self._one(stage.role), self._by(2, 5), self.chance.choice((2, 3, 3, 4))
        kinds = frozenset({"straggler", _SLOW[stage.job]})
        return Slower(stage, by, self.since, who, every=every), Fault(
            "every few steps",
            kinds,
            self.since,
            stage.role,
            str(who),
            in_words=f"x{by:.2f} every {every}",
        )

    def long_tail(self) -> Drawn | None:
        stage = self._stage(_OWN_WORK, 3)
        if stage is None:
            return None
        who, by, rare = self._one(stage.role), self._by(4, 12), self.chance.uniform(0.08, 0.2)
        effect = Slower(stage, by, self.since, who, rare=rare, seed=self.program.seed)
        pieces = self.program.steps - self.since
        if self.program.topology is Topology.QUEUE and stage.role != self.program.learner:
            pieces //= 3  # of each of the makers, at least
        if sum(map(effect.is_on, range(pieces))) < 4:
            return None
        kinds = frozenset({"straggler", _SLOW[stage.job]})
        return effect, Fault(
            "long tail",
            kinds,
            self.since,
            stage.role,
            str(who),
            in_words=f"x{by:.1f} in {rare:.0%}",
        )

    def slow_checkpoint(self) -> Drawn | None:
        stage = self._stage({Job.CHECKPOINT})
        if stage is None:
            return None
        since = self.since + (-self.since) % stage.every
        if since + stage.every >= self.program.steps:
            return None
        by = self._by(5, 12)
        return Slower(stage, by, since), Fault(
            "slow checkpoint",
            frozenset({"slow_phase"}),
            since,
            stage.role,
            in_words=f"x{by:.1f} every {stage.every}",
        )

    def hang(self) -> Drawn | None:
        jobs = {Job.TRAINING} if self.program.topology is Topology.QUEUE else _OWN_WORK
        stage = self._stage(jobs)
        if stage is None or (stage.job is Job.REWARD and self.program.calls):
            return None
        who = self._one(stage.role)
        # Of a generator of its own: other draws of a case stay as they are.
        killed = random.Random(f"{who} {self.since} {self.program.steps}").random() < _KILLED
        words = f"{stage.job}, killed" if killed else stage.job
        return Hang(who, stage, self.since, killed), Fault(
            "hang", frozenset({"stall"}), self.since, stage.role, str(who), in_words=words
        )

    def crash(self) -> Drawn | None:
        stage = self._stage(_OWN_WORK)
        if stage is None:
            return None
        who, how = self._one(stage.role), self.chance.choice((Death.KILLED, Death.RAISED))
        return Deaths(who, frozenset({self.since}), how), Fault(
            "crash", frozenset({"crash"}), self.since, stage.role, str(who), in_words=how
        )

    def crash_loop(self) -> Drawn | None:
        if self.program.topology is not Topology.QUEUE:
            return None
        who = self._one(self.program.maker)
        every = self.chance.randint(3, 5)
        at = frozenset(self.since + n * every for n in range(self.chance.randint(3, 5)))
        if max(at) >= self.program.steps - 4:
            return None
        kinds = frozenset({"crash_loop", "crash"})
        return Deaths(who, at, Death.RESTARTED), Fault(
            "crash loop", kinds, self.since, who.role, str(who), in_words=f"{len(at)} times"
        )

    def nan(self) -> Drawn | None:
        who = self._one(self.program.learner)
        spreads = self.chance.randint(2, 6)
        is_first = self.program.sizes[who.role] > 1
        return Nan(who, self.since, spreads), Fault(
            "nan", frozenset({"nan"}), self.since, who.role, str(who) if is_first else None
        )

    def reward(self) -> Drawn | None:
        to = self.chance.choice((0.0, 1.0, 5.0, -1.0))
        kinds = frozenset({"reward_bug", "reward_drop"} if to <= 0 else {"reward_bug"})
        effect = Learning(Measure.REWARD, to, self.since, flat=True)
        return effect, Fault("wrong reward", kinds, self.since, in_words=f"constant {to:g}")

    def entropy(self) -> Drawn | None:
        within = self.chance.randint(4, 15)
        if self.is_early:  # complete before another fault may end the run
            within = min(within, 8)
        effect = Learning(Measure.ENTROPY, 0.03, self.since, within, is_factor=True)
        kinds = frozenset({"entropy_collapse"})
        return effect, Fault("entropy collapse", kinds, self.since, in_words=f"in {within} steps")

    def clock(self) -> Drawn | None:
        who = self._one(self.chance.choice([*self.program.sizes]))
        by_s = self.chance.choice((-1, 1)) * 10 ** self.chance.uniform(0.8, 2.4)
        return SkewedClock(who, by_s), Fault(
            "clock", frozenset({"clock_skew"}), None, who.role, str(who), in_words=f"{by_s:+.0f} s"
        )

    def collector(self) -> Drawn | None:
        stage = self._stage(_OWN_WORK)
        if stage is None or not self.measures_machine:
            return None
        who, seconds = self._one(stage.role), stage.usual_s * self.chance.uniform(0.6, 2)
        return Collector(who, seconds, self.since), Fault(
            "garbage collection",
            frozenset({"gc_pauses"}),
            self.since,
            who.role,
            str(who),
            in_words=f"{seconds:.1f} s",
        )

    def throttled(self) -> Drawn | None:
        stage = self._stage({Job.GENERATION, Job.TRAINING})
        roles = {self.program.maker, self.program.learner}
        if stage is None or not self.measures_machine or stage.role not in roles:
            return None
        who, by = self._one(stage.role), self._by(1.5, 3)
        return Throttled(stage, by, self.since, who), Fault(
            "throttled",
            frozenset({"throttled"}),
            self.since,
            who.role,
            str(who),
            in_words=f"x{by:.2f}",
        )

    def thrash(self) -> Drawn | None:
        stage = self.program.stage_of(Job.GENERATION)
        assert stage is not None
        by = self._by(1.4, 3)
        one = self.program.sizes[stage.role] > 1 and self.chance.random() < 0.5
        who = self._one(stage.role) if one else None
        return Thrash(stage, by, self.since, who), Fault(
            "kv cache",
            frozenset({"kv_thrash"}),
            self.since,
            stage.role,
            str(who) if who else None,
            in_words=f"x{by:.2f}",
        )

    def network(self) -> Drawn | None:
        if not self.program.calls:
            return None
        seconds = self.program.usual_step_s * self.chance.uniform(0.2, 1.0)
        return SlowNetwork(seconds, self.since), Fault(
            "network", frozenset({"network_delay"}), self.since, in_words=f"{seconds:.2f} s a call"
        )

    def stale(self) -> Drawn | None:
        if self.program.topology is not Topology.QUEUE:
            return None
        one = self.program.sizes[self.program.maker] > 1 and self.chance.random() < 0.6
        who = self._one(self.program.maker) if one else None
        kinds = {"stale_policy"} | (set() if who else {"staleness_growth"})
        return Stale(who, self.since), Fault(
            "stale policy",
            frozenset(kinds),
            self.since,
            self.program.maker,
            str(who) if who else None,
        )

    def eviction(self) -> Drawn | None:
        if self.program.topology is not Topology.QUEUE:
            return None
        share = self.chance.uniform(0.3, 0.8)
        effect = Dropping(share, self.since)
        return effect, Fault(
            "eviction", frozenset({"eviction"}), self.since, in_words=f"{share:.0%}"
        )


_KILLED = 0.4  # of the runs that hang

# Where the entropy is not a number, its collapse is in no data.
_HIDDEN = {"nan", "entropy collapse"}
_ENDS = ("hang", "crash")
_FIRST = ("slow_worker", "slow_role", "every_few", "slow_checkpoint", "nan", "entropy")


def drawn(
    chance: random.Random, program: Program, *, measures_machine: bool, mixture: bool
) -> Sequence[Drawn]:
    """Draw one fault, or two that have nothing to do with each other.

    Args:
        chance: The generator.
        program: The program.
        measures_machine: Whether garbage collection and devices are measured.
        mixture: Whether to draw two.
    """
    draw = _Draw(chance, program, measures_machine=measures_machine)
    kinds: dict[str, Callable[[], Drawn | None]] = {
        "slow_worker": draw.slow_worker,
        "slow_role": draw.slow_role,
        "passing": draw.passing,
        "every_few": draw.every_few,
        "long_tail": draw.long_tail,
        "slow_checkpoint": draw.slow_checkpoint,
        "hang": draw.hang,
        "crash": draw.crash,
        "crash_loop": draw.crash_loop,
        "nan": draw.nan,
        "reward": draw.reward,
        "entropy": draw.entropy,
        "clock": draw.clock,
        "collector": draw.collector,
        "throttled": draw.throttled,
        "thrash": draw.thrash,
        "network": draw.network,
        "stale": draw.stale,
        "eviction": draw.eviction,
    }
    # Slow work, hangs and crashes are what is met most often.
    names = [*kinds, "slow_worker", "slow_role", "slow_worker", "slow_role", "hang", "crash"]
    steps = program.steps
    if not mixture:
        draw.since = chance.randint(int(0.35 * steps), int(0.6 * steps))
        return [_any(chance, kinds, names)]
    draw.since, draw.is_early = chance.randint(int(0.28 * steps), int(0.38 * steps)), True
    first = _any(chance, kinds, _FIRST)
    draw.since, draw.is_early = chance.randint(int(0.56 * steps), int(0.66 * steps)), False
    while True:
        other = _any(chance, kinds, (*_FIRST, *_ENDS))
        one, two = first[1], other[1]
        if {one.name, two.name} == _HIDDEN:
            continue
        if one.name != two.name and (one.role is None or one.role != two.role):
            return [first, other]
        if program.topology is Topology.COLOCATED and one.kinds.isdisjoint(two.kinds):
            return [first, other]


def _any(
    chance: random.Random, kinds: dict[str, Callable[[], Drawn | None]], names: Sequence[str]
) -> Drawn:
    while True:
        found = kinds[chance.choice(names)]()
        if found is not None:
            return found
