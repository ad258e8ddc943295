"""Asynchronous system: generators, scorers, a buffer, trainers in DP x PP, weights sent."""

from collections import deque
from dataclasses import dataclass

from bench.second_exam.systems import policy
from bench.second_exam.systems.devices import report_device
from bench.second_exam.systems.kernel import Barrier, Signal, Store, Work
from bench.second_exam.systems.world import Point, Span, Worker, World
from bench.second_exam.trouble import What

__all__ = ["start"]

_GROUPS = 2  # of a generator, each step
_SAMPLES = 8  # of a group


@dataclass
class _Group:
    step: int
    version: int
    made: Span
    tokens: int
    scored: Signal
    came_s: float = 0.0


class _Pipeline:
    def __init__(self, world: World) -> None:
        self.world, self.program = world, world.program
        self.kernel = world.kernel
        self.makers = self.program.sizes["generator"]
        self.scorers = self.program.sizes["reward"]
        self.to_score = [Store(self.kernel) for _ in range(self.scorers)]
        self.held: deque[_Group] = deque()
        self.wanted: Signal | None = None
        self.room: Signal = Signal()
        self.in_flight = 0
        self.version = self.pushed_s = 0
        self.buffer = Worker(world, "replay_buffer", 0)
        self.ranks = [Worker(world, "trainer", n) for n in range(self.program.sizes["trainer"])]
        troubles = world.troubles
        queued = bool(troubles.of(What.CRAMPED) or troubles.of(What.AGEING))
        self.make_share = 0.55 if queued else 0.97
        self.barrier = Barrier(self.kernel, len(self.ranks))
        self.alive: list[Worker] = [self.buffer, *self.ranks]

    def batch(self) -> int:
        return round(self.makers * _GROUPS * self.world.batch(self.world.step))

    def limit(self) -> int:
        """Return how many groups may wait or be in flight: the bound of staleness."""
        ageing = [o for o in self.world.troubles.of(What.AGEING) if self.world.step >= o.step]
        return self.batch() * (6 if ageing else 2)

    def begin(self) -> None:
        joins = [one.index for one in self.world.troubles.of(What.JOIN)]
        for index in range(self.makers):
            if index not in joins:
                self.add_maker(index)
        for index in range(self.scorers):
            worker = Worker(self.world, "reward", index)
            self.alive.append(worker)
            self.kernel.spawn(self._score(worker))
        for rank in self.ranks:
            self.kernel.spawn(self._train(rank))

    def add_maker(self, index: int, life: int = 0) -> None:
        worker = Worker(self.world, "generator", index, life)
        self.alive.append(worker)
        self.kernel.spawn(self._make(worker))

    # Generators.

    def _make(self, worker: Worker) -> Work[None]:
        version, told = 0, self.world.step
        while True:
            step = self.world.step
            if step != told:
                worker.step_is_over(told, self.kernel.now, has_loop=False)
                worker.value("version", version, told)
                report_device(worker, told)
                told = step
            if self._leaves(worker, step):
                return
            if version < self.version and not self._is_deaf(worker, step):
                yield from worker.work("weight_pull", 0.03 * self.program.step_s, step)
                version = self.version
            yield from self._prompt(worker, step)
            yield from self._group(worker, step, version)

    def _prompt(self, worker: Worker, step: int) -> Work[None]:
        dry = [one for one in self.world.troubles.of(What.DRY) if step >= one.step]
        if dry:
            begin_s = self.kernel.now
            yield self.world.noisy(0.6 * self.program.step_s)
            worker.phase("idle", begin_s, step)
        while len(self.held) + self.in_flight >= self.limit():
            yield from worker.wait("idle", self.room, step)

    def _group(self, worker: Worker, step: int, version: int) -> Work[None]:
        seconds = self.make_share * self.program.step_s / _GROUPS * self.world.length(step)
        thrash = self._thrash(worker, step)
        begin_s = self.kernel.now
        self.in_flight += 1
        made = yield from worker.work("generate", seconds * (1 + thrash), step)
        noise = self.world.chance.gauss(1, 0.05)
        tokens = round(900 * _SAMPLES * self.world.length(step) * noise)
        worker.count("made_tokens", tokens)
        for _ in range(2):
            worker.spread("request_s", (self.kernel.now - begin_s) * 0.7)
        worker.count("samples", _SAMPLES)
        used = 0.5 + 0.1 * self.world.chance.random() + (0.39 if thrash else 0)
        worker.value("kv", used, None)
        worker.count("preemptions", round(40 * thrash * self.world.chance.random()))
        group = _Group(step, version, made, tokens, Signal())
        late_s = self.world.troubles.amount(What.WIRE, "reward", 0, step, self.program.steps)
        self.kernel.spawn(self._send(worker, group, late_s * self.program.step_s))

    def _send(self, worker: Worker, group: _Group, late_s: float) -> Work[None]:
        begin_s = self.kernel.now
        yield 0.001 + late_s
        group.came_s = self.kernel.now
        free = min(self.to_score, key=lambda store: len(store.things))
        idle = [s for s in self.to_score if len(s.things) == len(free.things)]
        self.world.chance.choice(idle).put(group)
        yield group.scored
        seconds = self.kernel.now - begin_s
        attributes = {"rpc.method": "Score"}
        worker.record(Point("spread", "rpc.client.call.duration", seconds, None, attributes))

    def _thrash(self, worker: Worker, step: int) -> float:
        steps = self.program.steps
        return self.world.troubles.amount(What.THRASH, "generator", worker.index, step, steps)

    def _is_deaf(self, worker: Worker, step: int) -> bool:
        return self.world.troubles.is_on(What.DEAF, "generator", worker.index, step)

    def _leaves(self, worker: Worker, step: int) -> bool:
        troubles = self.world.troubles
        if troubles.is_on(What.LEAVE, "generator", worker.index, step):
            worker.leave()
            return True
        replaced = troubles.is_on(What.REPLACED, "generator", worker.index, step)
        if replaced and worker.life == 0:
            worker.die()
            self.kernel.spawn(self._replace(worker.index), 2.5 * self.program.step_s)
            return True
        return False

    def _replace(self, index: int) -> Work[None]:
        self.add_maker(index, 1)
        yield 0.0

    # Scorers and the buffer.

    def _score(self, worker: Worker) -> Work[None]:
        inbox = self.to_score[worker.index]
        mean_s = 0.5 * self.program.step_s * self.scorers / (self.makers * _GROUPS)
        told = 0
        while True:
            group: _Group = yield inbox.take()
            step, begin_s = self.world.step, self.kernel.now
            if step != told:
                worker.step_is_over(told, begin_s, has_loop=False)
                told = step
            yield from worker.work("reward", mean_s, step, parent=group.made)
            seconds = self.kernel.now - begin_s
            worker.spread("reward_s", seconds)
            attributes = {"rpc.method": "Score"}
            served_s = self.kernel.now - group.came_s
            point = Point("spread", "rpc.server.call.duration", served_s, None, attributes)
            worker.record(point)
            self._keep(group)

    def _keep(self, group: _Group) -> None:
        self.kernel.fire(group.scored)
        self.in_flight -= 1
        self.buffer.count("written", _SAMPLES)
        self.held.append(group)
        cramped = self.world.troubles.amount(
            What.CRAMPED, "replay_buffer", 0, self.world.step, self.program.steps
        )
        full = self.batch() * 4 * (cramped or 1)
        evicted = 0
        while len(self.held) > full:
            self.held.popleft()
            evicted += _SAMPLES
        self.buffer.count("evicted", evicted)
        self.buffer.level("held", len(self.held) * _SAMPLES)
        if self.wanted is not None and len(self.held) >= self.batch():
            wanted, self.wanted = self.wanted, None
            self.kernel.fire(wanted)
        self._has_room()

    def _has_room(self) -> None:
        room, self.room = self.room, Signal()
        self.kernel.fire(room)

    # Trainers.

    def _train(self, rank: Worker) -> Work[None]:
        for step in range(self.program.steps):
            begin_s = self.kernel.now
            if rank.index == 0:
                self.world.step = step
            groups = yield from self._take(rank, step)
            yield from self._update(rank, step, groups)
            yield from self._save(rank, step)
            policy.report(rank, step, all_ranks=self.program.telemetry.is_ours)
            if rank.index == 0 and groups:
                ages = [self.version - group.version for group in groups]
                rank.value("age", sum(ages) / len(ages), step)
            report_device(rank, step)
            rank.step_is_over(step, begin_s, has_loop=True)
            if rank.index == 0:
                self.world.step_ends.append((step, self.kernel.now))
        yield self.barrier.arrive()
        if rank.index == 0:
            self.kernel.spawn(self._over())

    def _take(self, rank: Worker, step: int) -> Work[list[_Group]]:
        begin_s = self.kernel.now
        groups: list[_Group] = []
        rank.begun("collector_wait", step)
        if rank.index == 0:
            if len(self.held) < self.batch():
                self.wanted = Signal()
                yield self.wanted
            groups = [self.held.popleft() for _ in range(min(len(self.held), self.batch()))]
            self.buffer.count("read", len(groups) * _SAMPLES)
            self._has_room()
        yield self.barrier.arrive()
        rank.phase("collector_wait", begin_s, step)
        return groups

    def _update(self, rank: Worker, step: int, groups: list[_Group]) -> Work[None]:
        step_s = self.program.step_s
        seconds = (0.9 if self.make_share < 0.9 else 0.7) * step_s
        seconds *= self.world.batch(step) * self.world.length(step)
        links = tuple(group.made.ids[:2] for group in groups[:32])
        begin_s = self.kernel.now
        named = self.program.telemetry.names_waits
        yield from rank.work("train", seconds, step, links=links, names=named)
        if named:
            yield from rank.wait("rank_barrier", self.barrier.arrive(), step)
            yield from rank.work("param_sync", 0.03 * step_s, step)
        else:
            yield self.barrier.arrive()
            rank.phase("train", begin_s, step, links=links)
        if step % self.program.pushes == self.program.pushes - 1:
            if rank.index == 0:
                yield from rank.work("weight_push", 0.06 * step_s, step)
                self.version = step + 1
            yield from rank.wait("weight_sync", self.barrier.arrive(), step)

    def _save(self, rank: Worker, step: int) -> Work[None]:
        program = self.program
        for phase, every, share in (
            ("evaluation", program.evaluates, 0.8),
            ("checkpoint", program.saves, 0.3),
        ):
            if every and step % every == every - 1:
                yield from rank.work(phase, share * program.step_s, step)
                yield self.barrier.arrive()
        joins = self.world.troubles.of(What.JOIN)
        if rank.index == 0 and joins and step == joins[0].step:
            self.add_maker(joins[0].index or 0)

    def _over(self) -> Work[None]:
        if self.world.troubles.of(What.TAIL):
            yield 15 * self.program.step_s
        for worker in self.alive:
            worker.leave()
        self.world.ends_s = self.kernel.now


def start(world: World) -> None:
    """Start the processes of a run."""
    _Pipeline(world).begin()
