"""One case: draws a run and the truth about it, plays it to the bridge, looks, and judges."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from exams.first import programs, styles
from exams.first.effects import Effect, Effects
from exams.first.events import Recording, Value, Who
from exams.first.faults import Slower
from exams.first.intake import Intake
from exams.first.play import play
from exams.first.programs import Job, Program, Stage, Topology
from exams.first.requests import arrivals
from exams.first.styles import Instrumentation
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import GrowingHistory
from otel_rl.diagnose.result import Cause, Diagnosis, Observation

_LOOKS: Final = 4
_IN_STEP: Final = (Topology.LOCKSTEP, Topology.COLOCATED, Topology.ROLLOUTS)

# Names under which programs log what no program of the first exam has.
_NAMES: Final = {
    "truncated": ("rl.sample.truncated", "completions/clipped_ratio", "response_length/clip_ratio",
                  "truncated_ratio"),
    "no_signal": ("rl.group.no_signal", "frac_reward_zero_std", "zero_std_frac"),
    "running": ("rl.generator.requests.running", "num_requests_running", "num_running_reqs"),
    "waiting": ("rl.generator.queue.depth", "num_requests_waiting", "engine/queue_depth"),
    "slots": ("max_num_seqs", "slots", "engine/max_running_requests"),
    "mfu": ("rl.train.mfu", "perf/mfu", "train/mfu"),
}  # fmt: skip


@dataclass(frozen=True)
class Tail(Effect):
    """In each step another worker takes longer."""

    stage: Stage
    by: float
    workers: Sequence[Who]
    seed: int

    def factor(self, who: Who, stage: Stage, step: int) -> float:
        is_it = (stage.role, stage.phase) == (self.stage.role, self.stage.phase)
        last = random.Random(f"{self.seed}-{step}").choice(self.workers)
        return self.by if is_it and who == last else 1.0


class Truth(NamedTuple):
    """What is so. A role and phase of "" are any."""

    name: str
    kinds: frozenset[str]
    role: str = ""
    phase: str = ""
    worker: str | None = None


class Mark(NamedTuple):
    """Result of a case: of a healthy one (a negative number) right is a run without an alarm."""

    number: int
    name: str
    is_right: bool
    is_beyond: bool
    first_step: int
    about: str
    said: str

    def __str__(self) -> str:
        right = "right" if self.is_right else "WRONG"
        return f"{right} {self.number:>4} {self.name} ({self.about}): {self.said[:230]}"


class _Draw:
    def __init__(self, chance: random.Random, program: Program) -> None:
        self.chance, self.program = chance, program
        self.effects: list[Effect] = []
        own = [one for one in program.stages if one.role == program.learner]
        on_path = own if program.topology is Topology.QUEUE else [*program.stages]
        self.step_s = sum(one.usual_s / one.every for one in on_path)

    def stage(self, job: Job) -> Stage:
        """Return a stage of this job: one of an own name if the program has none."""
        found = self.program.stage_of(job)
        if found is None:
            words = {Job.LOADING: programs._LOADS, Job.CHECKPOINT: programs._SAVES}[job]  # noqa: SLF001
            pace_s, learner = self.step_s / 2, self.program.learner
            found = Stage(job, learner, self.chance.choice(words), 0.1 * pace_s,
                          scales=False, only_first=job is Job.CHECKPOINT)  # fmt: skip
            self.put([*self.program.stages, found])
        return found

    def put(self, stages: Sequence[Stage]) -> None:
        self.program = replace(self.program, stages=tuple(stages))

    def by(self, stage: Stage, low: float, high: float) -> float:
        """Draw how many times as long it takes, so that it is such a share of a step."""
        share = self.chance.uniform(low, high)
        rest_s = self.step_s - stage.usual_s / stage.every
        return max(1.0, share / (1 - share) * rest_s / (stage.usual_s / stage.every))

    def slow(self, job: Job, low: float, high: float, kinds: str) -> Truth:
        stage = self.stage(job)
        self.effects.append(Slower(stage, self.by(stage, low, high), 0))
        return Truth(f"slow {job}", frozenset(kinds.split()), stage.role, stage.phase)

    @property
    def busy(self) -> float:
        """Time of a queue's makers for a step of the learners, in such steps.

        It is 0.6 to 1.2 but for a single maker, which may be too slow for them: no healthy run.
        """
        if self.program.topology is not Topology.QUEUE:
            return 0.0
        making_s = sum(self.stage(one).usual_s for one in (Job.GENERATION, Job.REWARD))
        return self.program.need * making_s / (self.program.sizes[self.program.maker] * self.step_s)

    def starved(self, job: Job) -> Truth:
        """Make work of a queue's makers, or of their scorers, too slow for the learners."""
        slow = self.stage(job)
        making_s = sum(self.stage(one).usual_s for one in (Job.GENERATION, Job.REWARD))
        more_s = (self.chance.uniform(1.9, 4.0) / self.busy - 1) * making_s
        self.effects.append(Slower(slow, max(2.0, 1 + more_s / slow.usual_s), 0))
        kinds = frozenset({"waits_for_samples"})
        return Truth(f"too few workers for {job}, queue", kinds, slow.role, slow.phase)

    def checkpoint(self) -> Truth:
        often = replace(self.stage(Job.CHECKPOINT), every=self.chance.choice((1, 1, 2, 3)))
        self.put([often if one.job is Job.CHECKPOINT else one for one in self.program.stages])
        by = self.by(often, 0.42, 0.75)
        self.effects.append(Slower(often, by, 0))
        kinds = frozenset({"checkpoint_share"})
        return Truth("checkpoints too often", kinds, often.role, often.phase)

    def one(self, *, same: bool) -> Truth:
        """Make one worker of a role slow in all steps, or another one in each."""
        jobs = [Job.GENERATION, Job.TRAINING] if same else [Job.GENERATION]
        stages = [one for one in self.program.stages if one.job in jobs]
        stage = self.chance.choice([one for one in stages if self.program.sizes[one.role] > 1])
        by, workers = self.by(stage, 0.6, 0.85), self.program.workers(stage.role)
        by = max(by, 1.5 * self.step_s / stage.usual_s, 2.5)
        if not same:
            self.effects.append(Tail(stage, by, workers, self.program.seed))
            return Truth("tail of rollouts", frozenset({"tail"}), stage.role, stage.phase)
        who = self.chance.choice(workers)
        self.effects.append(Slower(stage, by, 0, who))
        kinds = frozenset({"tail", "straggler", "slow_generation", "slow_training"})
        return Truth("one slow rank", kinds, stage.role, stage.phase, str(who))


def _drawn(  # noqa: C901  # a table of cases
    chance: random.Random, number: int
) -> tuple[Program, Sequence[Effect], Truth | None, dict[str, float]]:
    """Return a program, what is wrong with it, the truth, and levels of what it logs beside."""
    uniform, bit = chance.uniform, chance.random
    slots = chance.choice((16, 64, 128, 256))
    running = slots * uniform(0.3, 0.95)
    levels = {
        "truncated": uniform(0, 0.3), "no_signal": uniform(0, 0.4), "mfu": uniform(0.05, 0.5),
        "running": running, "slots": slots, "waiting": 0.0,
    }  # fmt: skip
    levels = {name: value for name, value in levels.items() if bit() < 0.6}
    draw = number % 12 if number >= 0 else -1
    queue = draw in {0, 11} or (draw == 1 and bit() < 0.4) or (draw == -1 and bit() < 0.25)
    in_step = draw in {2, 5, 6, 7, 8} or draw == 1
    topology = Topology.QUEUE if queue else chance.choice(_IN_STEP) if in_step else None
    program = programs.drawn(chance, topology)
    while (draw in {5, 6} and program.sizes[program.maker] < 2) or _Draw(
        chance, program
    ).busy > 1.2:
        program = programs.drawn(chance, topology)
    # A buffer of many steps' samples is what the case of old samples has.
    room = max(program.need + 1, min(program.room, 2 * program.need))
    found = _Draw(chance, replace(program, room=room, steps=chance.randint(30, 45)))
    match draw:
        case 0:
            truth = found.starved(Job.GENERATION)
        case 1 if queue:
            truth = found.starved(Job.REWARD)
        case 1:
            truth = found.slow(Job.REWARD, 0.5, 0.8, "scoring_share")
        case 2:  # which no reference tells
            truth = found.slow(Job.GENERATION, 0.6, 0.85, "bound")
        case 3:
            truth = found.slow(Job.SYNC, 0.42, 0.75, "sync_share")
        case 4:
            truth = found.checkpoint()
        case 5 | 6:
            truth = found.one(same=draw == 5)
        case 7:
            truth = found.slow(Job.LOADING, 0.42, 0.75, "data_share")
        case 8:
            truth = found.slow(Job.GENERATION, 0.65, 0.85, "queued_requests")
            levels |= {"running": slots, "waiting": slots * uniform(1.5, 4)}
        case 9:
            truth = Truth("answers cut off", frozenset({"truncated_share"}))
            levels["truncated"] = uniform(0.57, 1.0)
        case 10:
            truth = Truth("dead groups", frozenset({"no_signal_share", "dead_groups"}))
            levels["no_signal"] = uniform(0.57, 0.97)
        case 11:
            truth = Truth("old samples", frozenset({"sample_age", "staleness_growth"}))
            levels["staleness"] = uniform(10, 40)
        case _:
            return found.program, (), None, levels
    return found.program, found.effects, truth, levels


def _log(
    chance: random.Random, made: Recording, program: Program, levels: dict[str, float]
) -> None:
    """Add to a recording what the program logs beside."""
    older = levels.pop("staleness", 0.0)
    made.values = [
        one._replace(value=one.value + older) if one.name == "staleness" else one
        for one in made.values
    ]
    whole = {"running", "waiting", "slots"}
    for step, end_s in enumerate(made.step_ends_s):
        for name, level in levels.items():
            role = program.maker if name in whole else program.learner
            for who in program.workers(role)[: None if name in whole else 1]:
                noise = 1.0 if name == "slots" else chance.gauss(1, 0.08)
                most = 1.0 if name not in whole else levels.get("slots", 1e9)
                value = level * noise if name == "waiting" else min(most, level * noise)
                # An engine knows no step.
                of_step = None if name in whole else step
                made.values.append(Value(who, end_s, name, max(0.0, value), of_step))


def examined(number: int, seed: int) -> Mark:
    """Draw a case, play it, look at it, and judge what is said."""
    chance = random.Random(f"absolute-{seed}-{number}")
    program, effects, truth, levels = _drawn(chance, number)
    how = styles.drawn(chance, program)
    names = {name: some[0] if program.conventional else chance.choice(some)
             for name, some in _NAMES.items()}  # fmt: skip
    how = replace(how, names=how.names | names)
    made = play(program, Effects(effects), has_end_reports=how.is_ours)
    _log(chance, made, program, levels)
    said = [*_looks(program, how, Effects(effects), made)]
    about = f"{program.topology}, {how.style}, {sum(program.sizes.values())} workers"
    last = said[-1][1]
    words = "; ".join([*(f"{one.kind} {one.worker}: {one.words}" for one in last.causes),
                       *(f"{'!' * one.is_beyond}{one.kind} {one.role}/{one.phase}: {one.words}"
                         for one in last.observations)])  # fmt: skip
    if truth is None:
        alarms = [found for _, found in said if found.causes or _beyond(found)]
        is_seen = any(_beyond(found) for found in alarms)
        told: Sequence[Cause | Observation] = (
            [*alarms[0].causes, *_beyond(alarms[0])] if alarms else []
        )
        words = "; ".join([*(str(one.kind) for one in told), words])
        return Mark(number, "healthy", not alarms, is_seen, 0, about, words)
    is_right, first = is_named(truth, last), -1
    for step, found in said[::-1]:
        if not is_named(truth, found):
            break
        first = step
    return Mark(number, truth.name, is_right, bool(last.causes or _beyond(last)), first, about,
                f"{truth.role}/{truth.phase} {truth.worker or ''} <- {words}")  # fmt: skip


def _beyond(found: Diagnosis) -> Sequence[Observation]:
    return [one for one in found.observations if one.is_beyond]


def is_named(truth: Truth, found: Diagnosis) -> bool:
    said: Sequence[Cause | Observation] = [*found.causes, *found.observations]
    first = next(iter(said), None)
    if first is None or first.kind not in truth.kinds:
        return False
    is_there = truth.role in {"", first.role} and truth.phase in {"", first.phase}
    return is_there and (truth.worker is None or first.worker == truth.worker)


def _looks(
    program: Program, how: Instrumentation, effects: Effects, made: Recording
) -> Sequence[tuple[int, Diagnosis]]:
    """Return what is said at some times of the run, with the newest step, and at its end."""
    intake, history, read, found = Intake(), GrowingHistory(), 0, list[tuple[int, Diagnosis]]()
    some = [*arrivals(program, how, effects, made)]
    at = {len(some) * n // _LOOKS for n in range(1, _LOOKS)}
    for place, (at_ns, arrived) in enumerate(some, 1):
        intake.take(at_ns, arrived)
        if place == len(some):
            intake.take(at_ns + 30 * 10**9, ())
        if place in at or place == len(some):
            for facts in intake.records[read:]:
                history.add(facts)
            read = len(intake.records)
            known = history.history()
            found.append((known.last, diagnose(known, passed=place == len(some))))
    return found
