"""Generators of an asynchronous system: make groups without waiting for the trainers."""

from exams.second.systems.buffer import GROUPS, SAMPLES, Buffer, Group
from exams.second.systems.devices import report_device
from exams.second.systems.kernel import Signal, Store, Work
from exams.second.systems.world import Point, Worker, World
from exams.second.trouble import What


class Makers:
    """All generators.

    Args:
        world: Their run.
        buffer: Of the run.
        scorers: Inboxes of the scorers.
        share: Of a step that a generator needs for its part of a batch.
    """

    def __init__(self, world: World, buffer: Buffer, scorers: list[Store], share: float) -> None:
        self._world, self._program, self._kernel = world, world.program, world.kernel
        self._buffer, self._scorers, self._share = buffer, scorers, share
        self.alive: list[Worker] = []

    def add(self, index: int, life: int = 0) -> None:
        worker = Worker(self._world, "generator", index, life)
        self.alive.append(worker)
        self._kernel.spawn(self._make(worker))

    def _make(self, worker: Worker) -> Work[None]:
        version, told = 0, self._world.step
        while True:
            step = self._world.step
            if step != told:
                worker.step_is_over(told, self._kernel.now, has_loop=False)
                worker.value("version", version, told)
                report_device(worker, told)
                told = step
            if self._leaves(worker, step):
                return
            if version < self._buffer.version and not self._is_deaf(worker, step):
                yield from worker.work("weight_pull", 0.03 * self._program.step_s, step)
                version = self._buffer.version
            yield from self._prompt(worker, step)
            yield from self._group(worker, step, version)

    def _prompt(self, worker: Worker, step: int) -> Work[None]:
        dry = [one for one in self._world.troubles.of(What.DRY) if step >= one.step]
        if dry:
            begin_s = self._kernel.now
            yield self._world.noisy(0.6 * self._program.step_s)
            worker.phase("idle", begin_s, step)
        while self._buffer.is_full:
            yield from worker.wait("idle", self._buffer.room, step)

    def _group(self, worker: Worker, step: int, version: int) -> Work[None]:
        seconds = self._share * self._program.step_s / GROUPS * self._world.length(step)
        thrash = self._thrash(worker, step)
        begin_s = self._kernel.now
        self._buffer.in_flight += 1
        made = yield from worker.work("generate", seconds * (1 + thrash), step)
        noise = self._world.chance.gauss(1, 0.05)
        tokens = round(900 * SAMPLES * self._world.length(step) * noise)
        worker.count("made_tokens", tokens)
        for _ in range(2):
            worker.spread("request_s", (self._kernel.now - begin_s) * 0.7)
        worker.count("samples", SAMPLES)
        used = 0.5 + 0.1 * self._world.chance.random() + (0.39 if thrash else 0)
        worker.value("kv", used, None)
        worker.count("preemptions", round(40 * thrash * self._world.chance.random()))
        group = Group(version, made, Signal())
        late_s = self._world.troubles.amount(What.WIRE, "reward", 0, step, self._program.steps)
        self._kernel.spawn(self._send(worker, group, late_s * self._program.step_s))

    def _send(self, worker: Worker, group: Group, late_s: float) -> Work[None]:
        begin_s = self._kernel.now
        yield 0.001 + late_s
        group.came_s = self._kernel.now
        free = min(self._scorers, key=lambda store: len(store.things))
        idle = [s for s in self._scorers if len(s.things) == len(free.things)]
        self._world.chance.choice(idle).put(group)
        yield group.scored
        seconds = self._kernel.now - begin_s
        attributes = {"rpc.method": "Score"}
        worker.record(Point("spread", "rpc.client.call.duration", seconds, None, attributes))

    def _thrash(self, worker: Worker, step: int) -> float:
        steps = self._program.steps
        return self._world.troubles.amount(What.THRASH, "generator", worker.index, step, steps)

    def _is_deaf(self, worker: Worker, step: int) -> bool:
        return self._world.troubles.is_on(What.DEAF, "generator", worker.index, step)

    def _leaves(self, worker: Worker, step: int) -> bool:
        troubles = self._world.troubles
        if troubles.is_on(What.LEAVE, "generator", worker.index, step):
            worker.leave()
            return True
        replaced = troubles.is_on(What.REPLACED, "generator", worker.index, step)
        if replaced and worker.life == 0:
            worker.die()
            self._kernel.spawn(self._replace(worker.index), 2.5 * self._program.step_s)
            return True
        return False

    def _replace(self, index: int) -> Work[None]:
        self.add(index, 1)
        yield 0.0
