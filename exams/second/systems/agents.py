"""System of agents: a controller, environments with tools, inference engines, trainers."""

import math
from dataclasses import dataclass, field

from exams.second.systems import policy
from exams.second.systems.devices import report_device
from exams.second.systems.kernel import Barrier, Signal, Store, Task, Work
from exams.second.systems.world import Span, Worker, World
from exams.second.trouble import What

_EPISODES = 2  # of an environment worker, each step
_SLOTS = 3  # requests that an engine runs at once
_TOOLS = (("tool_search", 0.5), ("tool_python", 0.35), ("tool_browser", 0.15))


@dataclass(eq=False)
class _Request:
    step: int
    caller: Span
    tokens: int
    seconds: float
    answered: Signal = field(default_factory=Signal)


class _Engine:
    def __init__(self, worker: Worker, world: World) -> None:
        self.worker, self.world = worker, world
        self.inbox = Store(world.kernel)
        self.running: list[_Request] = []
        self.tasks: list[Task] = []
        self.told = 0

    def load(self) -> int:
        return len(self.inbox.things) + len(self.running)

    def serve(self) -> Work[None]:
        world, worker = self.world, self.worker
        while True:
            request: _Request = yield self.inbox.take()
            begin_s = world.kernel.now
            self.running.append(request)
            if world.step != self.told:
                worker.step_is_over(self.told, begin_s, has_loop=False)
                worker.value("version", self.told, self.told)
                report_device(worker, self.told)
                self.told = world.step
            thrash = world.troubles.amount(
                What.THRASH, worker.role, worker.index, request.step, world.program.steps
            )
            seconds = request.seconds * (1 + 0.1 * (len(self.running) - 1)) * (1 + thrash)
            yield from worker.work("generate", seconds, request.step, parent=request.caller)
            self.running.remove(request)
            worker.count("made_tokens", request.tokens)
            worker.spread("request_s", world.kernel.now - begin_s)
            worker.value("kv", 0.3 + 0.1 * len(self.running) + (0.35 if thrash else 0), None)
            worker.count("preemptions", round(8 * thrash * world.chance.random()))
            world.kernel.fire(request.answered)


class _Farm:
    def __init__(self, world: World) -> None:
        self.world, self.program, self.kernel = world, world.program, world.kernel
        sizes = self.program.sizes
        self.controller = Worker(world, "orchestrator", 0)
        self.envs = [Worker(world, "env", n) for n in range(sizes["env"])]
        self.ranks = [Worker(world, "trainer", n) for n in range(sizes["trainer"])]
        self.engines = [
            _Engine(Worker(world, "generator", n), world) for n in range(sizes["generator"])
        ]
        self.episodes = Store(self.kernel)
        self.left = 0
        self.collected, self.batch, self.trained = Signal(), Signal(), Signal()
        self.barrier = Barrier(self.kernel, len(self.ranks))
        load = len(self.envs) / (len(self.engines) * _SLOTS)
        self.call_s = 0.07 * self.program.step_s / max(1.0, load)
        self.tool_s = 0.035 * self.program.step_s

    def begin(self) -> None:
        for env in self.envs:
            self.kernel.spawn(self._env(env))
        for engine in self.engines:
            engine.tasks = [self.kernel.spawn(engine.serve()) for _ in range(_SLOTS)]
        for rank in self.ranks:
            self.kernel.spawn(self._train(rank))
        self.kernel.spawn(self._control())

    def _control(self) -> Work[None]:
        for step in range(self.program.steps):
            self.world.step, begin_s = step, self.kernel.now
            self._rescue(step)
            self.left = round(len(self.envs) * _EPISODES * self.world.batch(step))
            for _ in range(self.left):
                self.episodes.put(step)
            self.collected, self.trained = Signal(), Signal()
            rollouts = self.controller.begun("collector_wait", step)
            yield self.collected
            self.controller.phase("collector_wait", begin_s, step, begun=rollouts)
            at_s, trained = self.kernel.now, self.trained
            self.kernel.fire(self.batch)
            yield trained
            self.controller.phase("train_wait", at_s, step)
            self.controller.step_is_over(step, begin_s, has_loop=True)
            self.world.step_ends.append((step, self.kernel.now))
        if self.world.troubles.of(What.TAIL):
            yield 15 * self.program.step_s
        for worker in (self.controller, *self.envs, *self.ranks, *(e.worker for e in self.engines)):
            worker.leave()
        self.world.ends_s = self.kernel.now

    def _rescue(self, step: int) -> None:
        """Take a killed engine out of the router's list and send its requests elsewhere."""
        troubles = self.world.troubles
        for engine in list(self.engines):
            killed = troubles.is_on(What.KILL, "generator", engine.worker.index, step)
            if killed and len(self.engines) > 1:
                engine.worker.die()
                self.engines.remove(engine)

    def _env(self, env: Worker) -> Work[None]:
        told = 0
        while True:
            step: int = yield self.episodes.take()
            if step != told:
                env.step_is_over(told, self.kernel.now, has_loop=False)
                told = step
            turns = 2 + int(3 * self.world.chance.random())
            for _ in range(turns):
                yield from self._ask(env, step)
                yield from self._tool(env, step)
            env.count("samples", 1)
            self.left -= 1
            if self.left == 0:
                self.kernel.fire(self.collected)

    def _ask(self, env: Worker, step: int) -> Work[None]:
        begin_s = self.kernel.now
        caller = env.begun("llm_wait", step)
        # Of engines with equally many requests any is next: none is left without work.
        least = min(map(_Engine.load, self.engines))
        engine = self.world.chance.choice([e for e in self.engines if e.load() == least])
        if self.world.chance.random() < 0.5:  # the session's engine has its prefix
            engine = self.engines[env.index % len(self.engines)]
        size = self.world.length(step) * math.exp(self.world.chance.gauss(-0.08, 0.4))
        request = _Request(step, caller, round(300 * size), self.call_s * size)
        engine.inbox.put(request)
        yield request.answered
        env.phase("llm_wait", begin_s, step, begun=caller)

    def _tool(self, env: Worker, step: int) -> Work[None]:
        draw, tool = self.world.chance.random(), "tool_browser"
        for name, share in _TOOLS:
            draw -= share
            if draw < 0:
                tool = name
                break
        hangs = self.world.troubles.of(What.HANG)
        if any(one.phase.startswith("tool") for one in hangs if one.meets("env", env.index)):
            tool = "tool_python"
        begin_s = self.kernel.now
        seconds = self.tool_s * math.exp(self.world.chance.gauss(-0.18, 0.6))
        for one in self.world.troubles.of(What.FLAKY):
            if tool == one.phase and step >= one.step and self.world.chance.random() < 1 / 12:
                seconds *= one.size
        yield from env.work(tool, seconds, step)
        attributes = {"tool": tool.removeprefix("tool_")}
        env.spread("rl.env.step.duration", self.kernel.now - begin_s, attributes)

    def _train(self, rank: Worker) -> Work[None]:
        for step in range(self.program.steps):
            begin_s = self.kernel.now
            yield from rank.wait("collector_wait", self.batch, step)
            yield from self._update(rank, step)
            policy.report(rank, step, all_ranks=self.program.telemetry.is_ours)
            report_device(rank, step)
            rank.step_is_over(step, begin_s, has_loop=True)
            yield self.barrier.arrive()
            if rank.index == 0:
                self.batch = Signal()
                self.kernel.fire(self.trained)
            yield self.barrier.arrive()

    def _update(self, rank: Worker, step: int) -> Work[None]:
        program = self.program
        seconds = 0.3 * program.step_s * self.world.batch(step) * self.world.length(step)
        begin_s, named = self.kernel.now, program.telemetry.names_waits
        yield from rank.work("train", seconds, step, names=named)
        if named:
            yield from rank.wait("rank_barrier", self.barrier.arrive(), step)
        else:
            yield self.barrier.arrive()
            rank.phase("train", begin_s, step)
        yield from rank.work("weight_sync", 0.08 * program.step_s, step)
        yield self.barrier.arrive()
        for phase, every, share in (
            ("evaluation", program.evaluates, 0.6),
            ("checkpoint", program.saves, 0.3),
        ):
            if every and step % every == every - 1:
                yield from rank.work(phase, share * program.step_s, step)
                yield self.barrier.arrive()


def start(world: World) -> None:
    """Start the processes of a run."""
    _Farm(world).begin()
