"""Plays a program with its effects: simulated clocks, nobody sleeps.

lockstep  a stage begins when the last worker of the stage before has ended
queue     makers work until the buffer is full; learners wait until it has enough
"""

import heapq
import math
import random
from collections import defaultdict

from exams.first.effects import Death, Effects, Measure
from exams.first.events import Call, Count, End, Open, Recording, Timed, Value, Who
from exams.first.programs import Job, Program, Stage, Topology

_STARTUP_S = 3.0
_HELD_STEPS = 25  # a run that hangs is observed for as long
_HELD_S = 90.0
_PACE_STEPS = 8
_MISSED_S = 60.0  # far longer than the lease of a worker


class _Stopped(Exception):
    """The run makes no further step."""


def play(program: Program, effects: Effects, *, has_end_reports: bool) -> Recording:
    """Return what happens."""
    kind = _Queue if program.topology is Topology.QUEUE else _Lockstep
    return kind(program, effects, has_end_reports=has_end_reports).run()


class _Play:
    def __init__(self, program: Program, effects: Effects, *, has_end_reports: bool) -> None:
        self.program = program
        self.effects = effects
        self.chance = random.Random(program.seed)
        self.made = Recording()
        self.now_s = 0.0
        self.load = 1.0
        self.gone: set[Who] = set()
        self.has_end_reports = has_end_reports
        self.aborts = self.chance.random() < 0.5

    def run(self) -> Recording:
        for who in self.program.workers():
            if self.effects.is_present(who, 0):
                self.made.begins[who] = [self.chance.uniform(0, 0.5)]
        self.now_s = _STARTUP_S * self.chance.uniform(0.3, 1)
        try:
            for step in range(self.program.steps):
                self._come_and_go(step)
                self.step(step)
                self.made.step_ends_s.append(self.now_s)
                self._measure(step)
        except _Stopped:
            return self._stopped()
        self.made.ends_s = self.now_s + 1.0
        for who in self.program.workers():
            if who in self.made.begins and who not in self.gone:
                self.made.ends.append(End(who, self.now_s + 0.2, self.has_end_reports))
        return self.made

    def step(self, step: int) -> None:
        raise NotImplementedError

    def alive(self, role: str, step: int) -> list[Who]:
        return [
            who
            for who in self.program.workers(role)
            if who not in self.gone and self.effects.is_present(who, step)
        ]

    def took_s(self, who: Who, stage: Stage, step: int) -> float:
        warm = 4.0 if step < self.program.warm_up else 1.0
        work = self.effects.tokens(step) if stage.scales else 1.0
        if stage.role == self.program.maker and self.program.topology is not Topology.QUEUE:
            usual, now = self.program.sizes[stage.role], len(self.alive(stage.role, step))
            work *= usual / max(1, now) if stage.scales else 1.0
        noise = math.exp(self.chance.gauss(0, self.program.noise))
        factor = self.effects.factor(who, stage, step)
        extra_s = self.effects.extra_s(who, stage, step) + self._gc(who, stage, step)
        return stage.usual_s * work * warm * noise * self.load * factor + extra_s

    def call(self, caller: Who, server: Who, at_s: float, answer_s: float, step: int) -> float:
        """Return what a call takes its caller."""
        net_s = 0.002 * math.exp(self.chance.gauss(0, 0.4)) + self.effects.call_s(caller, step)
        self.made.calls.append(Call(server, at_s + answer_s, is_server=True, took_s=answer_s))
        self.made.calls.append(
            Call(caller, at_s + answer_s + net_s, is_server=False, took_s=answer_s + net_s)
        )
        return answer_s + net_s

    def drift(self) -> None:
        self.load = math.exp(
            0.9 * math.log(self.load) + self.chance.gauss(0, 0.4 * self.program.drift)
        )

    def hangs(self, who: Who, stage: Stage, step: int, at_s: float) -> bool:
        """Note whether a worker hangs here. Its peers come to the end of their own part."""
        if not self.effects.hangs(who, stage, step):
            return False
        self.made.open.append(Open(who, stage.phase, at_s))
        return True

    def _gc(self, who: Who, stage: Stage, step: int) -> float:
        if stage.job not in {Job.GENERATION, Job.ENVIRONMENT, Job.REWARD, Job.TRAINING}:
            return 0.0
        return self.effects.gc_s(who, step)

    def _come_and_go(self, step: int) -> None:
        for who in self.program.workers():
            if who not in self.made.begins and self.effects.is_present(who, step):
                self.made.begins[who] = [self.now_s]
            if who in self.gone:
                continue
            match self.effects.death(who, step):
                case None:
                    pass
                case Death.REMOVED:
                    self.gone.add(who)
                    self.made.ends.append(End(who, self.now_s, has_report=True))
                case Death.RESTARTED:
                    self.made.ends.append(End(who, self.now_s, has_report=False))
                    again_s = self.now_s + self.chance.uniform(1, 4)
                    self.made.begins[who].append(again_s)
                    self.restarted(who, again_s)
                case Death.KILLED:
                    self.gone.add(who)
                    self.made.ends.append(End(who, self.now_s, has_report=False))
                    self.died(who, step)
                case Death.RAISED:
                    self.gone.add(who)
                    end = End(who, self.now_s, self.has_end_reports, "RuntimeError", step)
                    self.made.ends.append(end)
                    self.died(who, step)

    def restarted(self, who: Who, again_s: float) -> None:
        """Note a restart."""

    def died(self, who: Who, step: int) -> None:
        """Note a death: where workers wait for each other, the run makes no further step."""
        raise _Stopped

    def _stopped(self) -> Recording:
        """End the recording: the others wait, or are ended by their launcher after a while."""
        step = len(self.made.step_ends_s)
        # By its last steps: another fault may have made them longer.
        ends_s = self.made.step_ends_s[-_PACE_STEPS:]
        pace_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)
        held_s = max(_HELD_STEPS * pace_s * 0.6, _HELD_S)
        hung = {one.who for one in self.made.open}
        # A stock SDK reports no end: of workers that all stop within a second or two, no data
        # tells a crash from the end of the run, or who was first.
        is_abort = self.aborts and not hung and self.has_end_reports
        for who in self.made.begins:
            if who in self.gone or who in hung:
                continue
            role_waits = who.role == self.program.learner
            phase = self.program.waits[1 if hung and role_waits else 0]
            if role_waits:
                self.made.open.append(Open(who, phase, self.now_s))
            if is_abort:
                at_s = self.now_s + self.chance.uniform(1, 3)
                end = End(who, at_s, self.has_end_reports, "ConnectionError", step)
                self.made.ends.append(end)
        if is_abort:
            self.made.open.clear()
        self.made.is_over = False
        self.made.ends_s = self.now_s + held_s
        if hung and self.has_end_reports and self.effects.is_killed():
            self._kill(self.made.ends_s)
        return self.made

    def _kill(self, at_s: float) -> None:
        """End all workers without a report, and go on until the bridge has missed them."""
        for who in self.made.begins:
            if who not in self.gone:
                self.made.ends.append(End(who, at_s, has_report=False))
        self.made.ends_s = at_s + _MISSED_S

    def _measure(self, step: int) -> None:
        part = step / self.program.steps
        gauss = self.chance.gauss
        usual = {
            Measure.REWARD: 0.15 + 0.5 * part + gauss(0, 0.015),
            Measure.REWARD_STD: 0.2 + gauss(0, 0.01),
            Measure.ENTROPY: 1.8 - 0.5 * part + gauss(0, 0.03),
            Measure.KL: 0.02 + 0.05 * part + gauss(0, 0.003),
            Measure.LENGTH: self.effects.tokens(step)
            / self.effects.samples(step)
            * (self.program.tokens / self.program.samples)
            * math.exp(gauss(0, 0.02)),
            Measure.LOSS: 0.3 - 0.1 * part + gauss(0, 0.02),
            Measure.GRAD: 1.0 + gauss(0, 0.1),
        }
        for place, who in enumerate(self.alive(self.program.learner, step)):
            for measure, value in usual.items():
                is_of_rank = measure in {Measure.LOSS, Measure.GRAD}
                if place and not is_of_rank:  # the first rank has the others' mean
                    continue
                own = value + gauss(0, 0.01) if is_of_rank else value
                told = self.effects.value(measure, who, step, own)
                self.made.values.append(Value(who, self.now_s, measure, told, step))
            for name, value in (
                ()
                if place
                else (
                    ("version", float(step + 1)),
                    ("tokens", self.program.tokens * self.effects.tokens(step)),
                    ("samples", float(round(self.program.samples * self.effects.samples(step)))),
                )
            ):
                self.made.values.append(Value(who, self.now_s, name, value, step))
        for who in self.program.workers():
            if who in self.gone or who not in self.made.begins:
                continue
            gc_s = self.chance.expovariate(300) + self.effects.gc_s(who, step)
            self.made.counts.append(Count(who, self.now_s, "gc", gc_s))
            if who.role in {self.program.maker, self.program.learner}:
                share = self.effects.throttled(who, step)
                self.made.values.append(Value(who, self.now_s, "throttled", share, None))
            if who.role == self.program.maker:
                n = float(self.chance.random() < 0.05) + self.effects.preemptions(who, step)
                self.made.counts.append(Count(who, self.now_s, "preemptions", n))


class _Lockstep(_Play):
    def step(self, step: int) -> None:
        self.drift()
        begin_s = self.now_s
        learners = self.alive(self.program.learner, step)
        roots = {
            who: self.made.add(who, "step", begin_s, begin_s, step, is_step=True)
            for who in learners
        }
        busy: dict[Who, float] = defaultdict(lambda: begin_s)
        made: list[Timed] = []
        for stage in self.program.stages:
            if stage.every > 1 and (step == 0 or step % stage.every):
                continue
            workers = self.alive(stage.role, step)[: 1 if stage.only_first else None]
            if not workers:
                raise _Stopped
            made = self._stage(stage, step, workers, roots, busy, made)
        for who, root in roots.items():
            if busy[who] < self.now_s:
                wait = self.program.waits[1]
                self.made.add(who, wait, busy[who], self.now_s, step, parent=root, is_wait=True)
            root.end_s = self.now_s
            took = Value(who, self.now_s, "step_time", self.now_s - begin_s, step)
            self.made.values.append(took)

    def _stage(
        self,
        stage: Stage,
        step: int,
        workers: list[Who],
        roots: dict[Who, Timed],
        busy: dict[Who, float],
        before: list[Timed],
    ) -> list[Timed]:
        begin_s, done = self.now_s, []
        first = next(iter(roots.values()))
        servers = workers
        calls = stage.job is Job.REWARD and self.program.calls
        turns = self.alive(self.program.maker, step) if calls else workers
        for place, one in enumerate(turns):
            who = servers[(place + step) % len(servers)] if calls else one
            if self.hangs(who, stage, step, begin_s):
                continue
            took_s = self.took_s(who, stage, step)
            if calls:
                whole_s = self.call(one, who, begin_s, took_s, step)
                caller = self.made.add(
                    one, f"call_{stage.phase}", begin_s, begin_s + whole_s, step, parent=first
                )
                self.made.add(who, stage.phase, begin_s, begin_s + took_s, step, parent=caller)
                done.append(caller)
                continue
            parent = roots.get(who, first)
            if who in roots and busy[who] < begin_s:
                wait = self.program.waits[stage.job is not Job.GENERATION and stage.job is Job.SYNC]
                self.made.add(who, wait, busy[who], begin_s, step, parent=parent, is_wait=True)
            span = self.made.add(who, stage.phase, begin_s, begin_s + took_s, step, parent=parent)
            busy[who] = begin_s + took_s
            done.append(span)
        if stage.job is Job.TRAINING:
            for root in roots.values():
                root.links += [one.number for one in before if one.who not in roots][:32]
        self.now_s = max([begin_s, *(one.end_s for one in done)])
        if self.made.open:
            raise _Stopped
        return done if stage.job in {Job.GENERATION, Job.REWARD} else before


class _Queue(_Play):
    def __init__(self, program: Program, effects: Effects, *, has_end_reports: bool) -> None:
        super().__init__(program, effects, has_end_reports=has_end_reports)
        self.ready: list[tuple[float, Who, Timed, int]] = []  # items in progress
        self.buffer: list[tuple[Timed, int]] = []
        self.blocked: list[tuple[float, Who, Timed, int]] = []
        self.version: dict[Who, int] = defaultdict(int)
        self.numbers = 0
        self.current = 0

    def died(self, who: Who, step: int) -> None:
        if who.role != self.program.maker or not self.alive(self.program.maker, step):
            raise _Stopped
        self._forget(who)

    def restarted(self, who: Who, again_s: float) -> None:
        self._forget(who)
        if who.role == self.program.maker:
            self._produce(who, again_s, self.current)

    def step(self, step: int) -> None:
        self.drift()
        self.current = step
        busy = {who for _, who, *_ in (*self.ready, *self.blocked)}
        for who in self.alive(self.program.maker, step):
            if who not in busy:
                self._produce(who, self.now_s, step)
        for who in [who for who in busy if who in self.gone]:
            self._forget(who)
        begin_s, learners = self.now_s, self.alive(self.program.learner, step)
        need = max(1, round(self.program.need * self.effects.samples(step)))
        self._fill(need, step)
        items, self.buffer = self.buffer[:need], self.buffer[need:]
        self._unblock(step)
        self._count("reads", need)
        got_s, wait = self.now_s, self.program.waits[0]
        roots = [
            self.made.add(who, "step", begin_s, begin_s, step, is_step=True) for who in learners
        ]
        for who, root in zip(learners, roots, strict=True):
            root.links += [item.number for item, _ in items][:32]
            self.made.add(who, wait, begin_s, got_s, step, parent=root, is_wait=True)
        age = sum(step - version for _, version in items) / len(items)
        for who in learners:
            self.made.values.append(Value(who, got_s, "staleness", age, step))
        self._learn(step, learners, roots)
        for who, root in zip(learners, roots, strict=True):
            root.end_s = self.now_s
            took = Value(who, self.now_s, "step_time", self.now_s - begin_s, step)
            self.made.values.append(took)

    def _learn(self, step: int, learners: list[Who], roots: list[Timed]) -> None:
        for stage in self.program.stages:
            if stage.role != self.program.learner:
                continue
            if stage.every > 1 and (step == 0 or step % stage.every):
                continue
            begin_s = self.now_s
            ends = []
            workers = learners[: 1 if stage.only_first else None]
            for who, root in zip(workers, roots, strict=False):
                if self.hangs(who, stage, step, begin_s):
                    continue
                end_s = begin_s + self.took_s(who, stage, step)
                self.made.add(who, stage.phase, begin_s, end_s, step, parent=root)
                ends.append(end_s)
            self.now_s = max([begin_s, *ends])
            if self.made.open:
                raise _Stopped
            wait = self.program.waits[1]
            for who, root, end_s in zip(workers, roots, ends, strict=False):
                if end_s < self.now_s and stage.job is Job.TRAINING:
                    self.made.add(who, wait, end_s, self.now_s, step, parent=root, is_wait=True)

    def _produce(self, who: Who, at_s: float, step: int) -> None:
        """Begin an item."""
        pull = self.program.stage_of(Job.SYNC)
        if pull is not None and self.version[who] < step and self.effects.pulls(who, step):
            end_s = at_s + 0.3 * self.took_s(who, pull, step)
            self.made.add(who, f"pull_{pull.phase}", at_s, end_s, None, is_wait=True)
            at_s, self.version[who] = end_s, step
        self.made.values.append(Value(who, at_s, "version", float(self.version[who]), None))
        making, scoring = (self.program.stage_of(job) for job in (Job.GENERATION, Job.REWARD))
        assert making is not None
        assert scoring is not None
        made_s = at_s + self.took_s(who, making, step)
        item = self.made.add(who, making.phase, at_s, made_s, None)
        servers = self.alive(scoring.role, step)
        self.numbers += 1
        server = servers[self.numbers % len(servers)]
        answer_s = self.took_s(server, scoring, step)
        end_s = made_s + answer_s
        caller = item
        if self.program.calls:
            end_s = made_s + self.call(who, server, made_s, answer_s, step)
            caller = self.made.add(who, f"call_{scoring.phase}", made_s, end_s, None)
            caller.links.append(item.number)
        self.made.add(server, scoring.phase, made_s, made_s + answer_s, None, parent=caller)
        heapq.heappush(self.ready, (end_s, who, item, self.version[who]))

    def _fill(self, need: int, step: int) -> None:
        """Wait until the buffer has as many items."""
        while self.ready and (self.ready[0][0] <= self.now_s or len(self.buffer) < need):
            end_s, who, item, version = heapq.heappop(self.ready)
            if len(self.buffer) >= max(self.program.room, need):
                self.blocked.append((end_s, who, item, version))
                continue
            self._put(item, version, step)
            if len(self.buffer) >= need:
                self.now_s = max(self.now_s, end_s)
            self._produce(who, end_s, step)
        if len(self.buffer) < need:
            raise _Stopped

    def _unblock(self, step: int) -> None:
        blocked, self.blocked = self.blocked, []
        for since_s, who, item, version in blocked:
            if who in self.gone:
                continue
            self.made.add(who, "wait_for_room", since_s, self.now_s, None, is_wait=True)
            self._put(item, version, step)
            self._produce(who, self.now_s, step)

    def _put(self, item: Timed, version: int, step: int) -> None:
        self._count("writes", 1)
        if self.chance.random() < self.effects.drops(step):
            self._count("evictions", 1)
        else:
            self.buffer.append((item, version))

    def _count(self, name: str, increase: float) -> None:
        self.made.counts.append(Count(Who(self.program.buffer, 0), self.now_s, name, increase))

    def _forget(self, who: Who) -> None:
        self.ready = [one for one in self.ready if one[1] != who]
        heapq.heapify(self.ready)
        self.blocked = [one for one in self.blocked if one[1] != who]
