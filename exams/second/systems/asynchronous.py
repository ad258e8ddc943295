"""Asynchronous system: generators, scorers, a buffer, trainers, weights sent now and then."""

from exams.second.systems import policy
from exams.second.systems.buffer import GROUPS, Buffer, Group
from exams.second.systems.devices import report_device
from exams.second.systems.kernel import Barrier, Store, Work
from exams.second.systems.makers import Makers
from exams.second.systems.world import Point, Worker, World
from exams.second.trouble import What


class _Pipeline:
    def __init__(self, world: World) -> None:
        self.world, self.program, self.kernel = world, world.program, world.kernel
        self.buffer = Buffer(world)
        self.inboxes = [Store(self.kernel) for _ in range(self.program.sizes["reward"])]
        troubles = world.troubles
        self.is_queued = bool(troubles.of(What.CRAMPED) or troubles.of(What.AGEING))
        share = 0.55 if self.is_queued else 0.45 if self.program.has_surplus else 0.97
        self.makers = Makers(world, self.buffer, self.inboxes, share)
        self.ranks = [Worker(world, "trainer", n) for n in range(self.program.sizes["trainer"])]
        self.scorers = [Worker(world, "reward", n) for n in range(len(self.inboxes))]
        self.barrier = Barrier(self.kernel, len(self.ranks))

    def begin(self) -> None:
        joins = [one.index for one in self.world.troubles.of(What.JOIN)]
        for index in range(self.program.sizes["generator"]):
            if index not in joins:
                self.makers.add(index)
        for scorer in self.scorers:
            self.kernel.spawn(self._score(scorer))
        for rank in self.ranks:
            self.kernel.spawn(self._train(rank))

    def _score(self, worker: Worker) -> Work[None]:
        makers = self.program.sizes["generator"] * GROUPS
        inbox = self.inboxes[worker.index]
        mean_s = 0.5 * self.program.step_s * len(self.inboxes) / makers
        told = 0
        while True:
            group: Group | None = yield inbox.take()
            if group is None:
                worker.leave()
                return
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
            self.buffer.keep(group)

    def _scale(self, step: int) -> None:
        """Remove or add scorers, as an autoscaler that sees the load go up and down."""
        if not any(step >= one.step for one in self.world.troubles.of(What.SCALES)):
            return
        size = self.program.sizes["reward"]
        wanted = size if step // 8 % 2 else max(1, size // 2)
        while len(self.inboxes) > wanted:
            self.inboxes.pop().put(None)
        for index in range(len(self.inboxes), wanted):
            scorer = Worker(self.world, "reward", index, self.scorers[index].life + 1)
            self.scorers[index] = scorer
            self.inboxes.append(Store(self.kernel))
            self.kernel.spawn(self._score(scorer))

    def _train(self, rank: Worker) -> Work[None]:
        for step in range(self.program.steps):
            begin_s = self.kernel.now
            if rank.index == 0:
                self.world.step = step
            if rank.index == 0:
                self._scale(step)
            groups = yield from self._take(rank, step)
            yield from self._update(rank, step, groups)
            yield from self._save(rank, step)
            policy.report(rank, step, all_ranks=self.program.telemetry.is_ours)
            if rank.index == 0 and groups:
                ages = [self.buffer.version - group.version for group in groups]
                rank.value("age", sum(ages) / len(ages), step)
            report_device(rank, step)
            rank.step_is_over(step, begin_s, has_loop=True)
            if rank.index == 0:
                self.world.step_ends.append((step, self.kernel.now))
        yield self.barrier.arrive()
        if rank.index == 0:
            self.kernel.spawn(self._over())

    def _take(self, rank: Worker, step: int) -> Work[list[Group]]:
        begin_s = self.kernel.now
        groups: list[Group] = []
        rank.begun("collector_wait", step)
        if rank.index == 0:
            yield self.buffer.enough()
            groups = self.buffer.take()
        yield self.barrier.arrive()
        rank.phase("collector_wait", begin_s, step)
        return groups

    def _update(self, rank: Worker, step: int, groups: list[Group]) -> Work[None]:
        step_s = self.program.step_s
        seconds = (0.9 if self.is_queued else 0.7) * step_s
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
                self.buffer.version = step + 1
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
            self.makers.add(joins[0].index or 0)

    def _over(self) -> Work[None]:
        if self.world.troubles.of(What.TAIL):
            yield 15 * self.program.step_s
        for worker in (self.buffer.worker, *self.ranks, *self.scorers, *self.makers.alive):
            worker.leave()
        self.world.ends_s = self.kernel.now


def start(world: World) -> None:
    """Start the processes of a run."""
    _Pipeline(world).begin()
