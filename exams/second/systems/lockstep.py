"""Synchronous, colocated system: all ranks roll out, score, train and synchronise in lockstep."""

from dataclasses import dataclass

from exams.second.systems import policy
from exams.second.systems.devices import report_device
from exams.second.systems.kernel import Barrier, Signal, Store, Task, Work
from exams.second.systems.world import Point, Span, Worker, World
from exams.second.trouble import What

_CALLS = 4  # of a rank to the scorers, each step
_RESTART_S = 40.0


@dataclass
class _Call:
    step: int
    caller: Span
    answered: Signal
    came_s: float
    done_s: float = 0.0


class _Ranks:
    def __init__(self, world: World) -> None:
        self.world, self.program = world, world.program
        kernel = world.kernel
        self.size = world.program.sizes["trainer"]
        self.barrier = Barrier(kernel, self.size)
        scorers = world.program.sizes["reward"]
        self.inboxes: list[Store] = []
        share = self.program.step_s * scorers / (self.size * _CALLS)
        self.score_s = 0.12 * share
        self.grown = 1.0  # work of a rank, if there are fewer
        self.tasks: list[Task] = []
        self.alive: list[Worker] = []
        self.controller: Worker | None = None
        self.called: dict[str, float] = {}  # begin of what the controller waits for

    def begin(self, first: int, last: int, life: int) -> None:
        self.alive = [Worker(self.world, "trainer", n, life) for n in range(self.size)]
        size = self.program.sizes["reward"]
        self.inboxes = [Store(self.world.kernel) for _ in range(size)]
        scorers = [Worker(self.world, "reward", n, life) for n in range(size)]
        for rank in self.alive:
            self.world.kernel.spawn(self._rank(rank, first, last))
        for task in self.tasks:
            task.kill()
        self.tasks = [self.world.kernel.spawn(self._scorer(worker)) for worker in scorers]
        self.alive += scorers
        if self.program.has_controller:
            self.controller = Worker(self.world, "controller", 0, life)
            self.calls = Barrier(self.world.kernel, self.size)
            self.alive.append(self.controller)

    def _rank(self, rank: Worker, first: int, last: int) -> Work[None]:
        for step in range(first, last):
            begin_s = self.world.kernel.now
            if rank.index == 0:
                self.world.step = step
            yield from self._step(rank, step)
            rank.step_is_over(step, begin_s, has_loop=True)
            if rank.index == 0:
                if self.controller is not None:
                    self.controller.step_is_over(step, begin_s, has_loop=True)
                self.world.step_ends.append((step, self.world.kernel.now))
        yield self.barrier.arrive()
        if rank.index == 0:
            self.world.kernel.spawn(self._over(last, rank.life))

    def _step(self, rank: Worker, step: int) -> Work[None]:
        step_s, world = self.program.step_s, self.world
        work = world.batch(step) * world.length(step) * self.grown
        yield from rank.work("load", 0.01 * step_s, step)
        generate = rank.work("generate", 0.45 * step_s * work, step)
        yield from self._called(rank, "generate", step, generate)
        yield from self._called(rank, "reward", step, self._score(rank, step))
        reference = rank.work("reference", 0.07 * step_s * work, step)
        yield from self._called(rank, "reference", step, reference)
        yield from rank.wait("rank_barrier", self.barrier.arrive(), step)
        train = self._train(rank, step, 0.25 * step_s * work * self._part_of_stage(rank, step))
        yield from self._called(rank, "train", step, train)
        sync = rank.work("weight_sync", 0.06 * step_s, step)
        yield from self._called(rank, "weight_sync", step, sync)
        yield self.barrier.arrive()
        yield from self._now_and_then(rank, step)
        policy.report(rank, step, all_ranks=self.program.telemetry.is_ours)
        report_device(rank, step)

    def _called(self, rank: Worker, phase: str, step: int, part: Work[object]) -> Work[None]:
        """Let a rank do its part; a controller calls all of them, and waits for the last one."""
        if self.controller is None:
            yield from part
            return
        if phase not in self.called:
            self.called[phase] = self.world.kernel.now
            self.controller.begun(phase, step)
        yield from part
        yield self.calls.arrive()
        if rank.index == 0:
            self.controller.phase(phase, self.called.pop(phase), step)

    def _part_of_stage(self, rank: Worker, step: int) -> float:
        """Return a rank's part of the work, if ranks are stages, and report its stage."""
        part = 1.0
        for one in self.world.troubles.of(What.STAGES):
            stage = 2 * rank.index // self.size
            rank.record(Point("gauge", "pp_rank", stage, step))
            part *= one.size if stage else 1.0
        return part

    def _train(self, rank: Worker, step: int, seconds: float) -> Work[None]:
        if self.program.telemetry.names_waits:
            pieces = self.world.micro(step)
            for _ in range(pieces):
                yield from rank.work("train", seconds / pieces, step)
            yield from rank.wait("rank_barrier", self.barrier.arrive(), step)
        else:
            begin_s = self.world.kernel.now
            yield from rank.work("train", seconds, step, names=False)
            yield self.barrier.arrive()
            rank.phase("train", begin_s, step)

    def _now_and_then(self, rank: Worker, step: int) -> Work[None]:
        program = self.program
        if program.evaluates and step % program.evaluates == program.evaluates - 1:
            if any(step >= one.step for one in self.world.troubles.of(What.ELSEWHERE)):
                self._evaluate_elsewhere(rank, step)
                return
            sizes = [one.size for one in self.world.troubles.of(What.LONG_EVAL)]
            grown = 1 + sum(size - 1 for size in sizes) * step / program.steps
            grown *= self._odd(step)
            yield from rank.work("evaluation", 0.8 * program.step_s * grown, step)
            yield self.barrier.arrive()
        if program.saves and step % program.saves == program.saves - 1:
            yield from rank.work("checkpoint", 0.3 * program.step_s, step)
            yield self.barrier.arrive()

    def _odd(self, step: int) -> float:
        for one in self.world.troubles.of(What.ODD_EVAL):
            if one.step <= step < one.step + self.program.evaluates:
                return one.size
        return 1.0

    def _evaluate_elsewhere(self, rank: Worker, step: int) -> None:
        if rank.index == 0:
            evaluator = Worker(self.world, "evaluator", 0)
            self.alive.append(evaluator)
            seconds = 3.0 * self.program.step_s
            self.world.kernel.spawn(evaluator.work("evaluation", seconds, step))

    def _score(self, rank: Worker, step: int) -> Work[None]:
        world, begin_s = self.world, self.world.kernel.now
        caller = rank.begun("reward_wait", step)
        late_s = world.troubles.amount(What.WIRE, "reward", 0, step, self.program.steps)
        late_s *= self.program.step_s
        calls = []
        for number in range(_CALLS):
            call = _Call(step, caller, Signal(), begin_s)
            calls.append(call)
            self.inboxes[(rank.index + number) % len(self.inboxes)].put(call)
        for call in calls:
            yield call.answered
        if late_s:
            yield late_s
        for call in calls:
            seconds = call.done_s - begin_s + late_s
            rank.record(Point("spread", "rpc.client.call.duration", seconds,
                              attributes={"rpc.method": "Score"}))  # fmt: skip
        rank.phase("reward_wait", begin_s, step, begun=caller)

    def _scorer(self, worker: Worker) -> Work[None]:
        inbox, kernel = self.inboxes[worker.index], self.world.kernel
        while True:
            call: _Call = yield inbox.take()
            begin_s = kernel.now
            seconds = self.score_s * self.world.batch(call.step)
            yield from worker.work("reward", seconds, call.step, parent=call.caller)
            worker.spread("reward_s", kernel.now - begin_s)
            worker.count("samples", 16 * self.world.batch(call.step))
            worker.record(Point("spread", "rpc.server.call.duration", kernel.now - call.came_s,
                                attributes={"rpc.method": "Score"}))  # fmt: skip
            call.done_s = kernel.now
            kernel.fire(call.answered)

    def _over(self, last: int, life: int) -> Work[None]:
        if last < self.program.steps:
            for worker in self.alive:
                worker.leave()
            yield _RESTART_S
            for one in self.world.troubles.of(What.SMALLER):
                size = max(2, round(one.size * self.size))
                self.grown, self.size = self.size / size, size
                self.barrier = Barrier(self.world.kernel, size)
            self.begin(last - 4, self.program.steps, life + 1)
            return
        if self.world.troubles.of(What.TAIL):
            yield 15 * self.program.step_s
        for worker in self.alive:
            worker.leave()
        self.world.ends_s = self.world.kernel.now


def start(world: World) -> None:
    """Start the processes of a run."""
    restarts = [*world.troubles.of(What.RESTART), *world.troubles.of(What.SMALLER)]
    last = restarts[0].step if restarts else world.program.steps
    _Ranks(world).begin(0, last, 0)
