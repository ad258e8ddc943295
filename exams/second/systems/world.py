"""What all systems share: workers that do noisy, troubled work and record it."""

import math
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from exams.second.program import Program
from exams.second.sdk.encode import host_of
from exams.second.sdk.names import WAITS, phase_metric, span_name, value_name
from exams.second.systems.kernel import Kernel, Signal, Work
from exams.second.trouble import Trouble, Troubles, What

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    kind: Literal["gauge", "count", "level", "spread"]
    name: str
    value: float
    step: int | None = None
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span; times in seconds of the simulation."""

    name: str
    begin_s: float
    end_s: float
    ids: tuple[int, int, int]  # trace, span, parent span or 0
    step: int | None = None
    attributes: Attributes = field(default_factory=dict)
    links: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something about the process: its start and end, its phases, a time in which it is frozen."""

    name: str
    phase: str = ""
    step: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a process recorded."""

    at_s: float
    role: str
    index: int
    life: int
    what: Point | Span | Event


class World:
    """A run in the making.

    Attributes:
        step: The newest step that the trainers work at.
        step_ends: End of each finished step, in seconds.
        ends_s: The simulation stops then.
        is_stuck: Somebody hangs or is dead, and the run is watched for a while after.
    """

    def __init__(self, program: Program, troubles: Troubles) -> None:
        self.program, self.troubles = program, troubles
        self.kernel = Kernel()
        self.chance = random.Random(f"world {program.seed}")
        self.records: list[Record] = []
        self.step = 0
        self.step_ends: list[tuple[int, float]] = []
        self.ends_s = math.inf
        self.is_stuck = False

    def stop_soon(self) -> None:
        """Let the run go on for as long as a hang needs to be visible."""
        usual_s = self.program.step_s
        self.is_stuck = True
        self.ends_s = min(self.ends_s, self.kernel.now + max(25 * usual_s, 240.0))

    def length(self, step: int) -> float:
        """Return the relative length of answers at a step."""
        program = self.program
        length = 1 + program.growth * step / program.steps
        for one in self.troubles.of(What.LENGTH):
            length *= one.size if step >= one.step else 1
        for one in self.troubles.of(What.LENGTH_RAMP):
            length *= 1 + (one.size - 1) * step / program.steps
        for one in self.troubles.of(What.CURRICULUM):
            length *= one.size ** (4 * step // program.steps)
        for one in self.troubles.of(What.LEAP):
            length *= 1 + 0.8 * max(0.0, min(1.0, (step - one.step) / 10))
        return length

    def stolen(self, role: str, index: int, step: int) -> Trouble | None:
        """Return the trouble of a worker's host whose CPUs others have at a step."""
        for one in self.troubles.of(What.STEAL):
            is_there = host_of(one.role, one.index or 0) == host_of(role, index)
            if is_there and self.troubles.strength(one, step, self.program.steps):
                return one
        return None

    def share_of(self, role: str, index: int, step: int) -> float:
        """Return a worker's part of the work of a step, relative to an equal one."""
        more = self.troubles.amount(What.UNEVEN, role, index, step, self.program.steps)
        return more or 1.0

    def far_from(self, role: str, index: int, step: int) -> float:
        """Return how many times as long weights move to and from a worker's host."""
        for one in self.troubles.of(What.NIC):
            if host_of(one.role, one.index or 0) == host_of(role, index) and step >= one.step:
                return one.size
        return 1.0

    def batch(self, step: int) -> float:
        """Return the samples of a step, relative to the first."""
        on = [one.size for one in self.troubles.of(What.BATCH) if step >= one.step]
        return math.prod(on) * self.micro(step)

    def micro(self, step: int) -> int:
        """Return the batches over which gradients are gathered."""
        return 1 + sum(step >= one.step for one in self.troubles.of(What.MICRO))

    def noisy(self, seconds: float, step: int = 1 << 30) -> float:
        program = self.program
        seconds *= math.exp(self.chance.gauss(0, program.noise) - program.noise**2 / 2)
        if self.chance.random() < program.tail:
            seconds *= min(6.0, self.chance.paretovariate(1.5))
        return seconds * (program.warmup if step == 0 else 1)


class Worker:
    """A process.

    Args:
        world: Its run.
        role: Its role.
        index: Among the workers of the role.
    """

    def __init__(self, world: World, role: str, index: int, life: int = 0) -> None:
        self.world, self.role, self.index, self.life = world, role, index, life
        self._sums: dict[str, float] = defaultdict(float)
        self._root = self._ids(0)
        self.is_gone = False
        self._deaths = 0
        self._was_held_up = False
        self.record(Event("start"))

    def record(self, what: Point | Span | Event) -> None:
        if what.step is not None and self.world.program.stride > 1:
            what = replace(what, step=self.world.program.told(what.step))
        if not self.is_gone:
            record = Record(self.world.kernel.now, self.role, self.index, self.life, what)
            self.world.records.append(record)

    def work(self, phase: str, seconds: float, step: int, *, parent: Span | None = None,
             links: tuple[tuple[int, int], ...] = (), until: Signal | None = None,
             names: bool = True) -> Work[Span]:  # fmt: skip
        """Do a piece of work, then wait for ``until``, all of it in the phase.

        Args:
            names: The piece is recorded; else the caller records a phase around several.
        """
        yield from self._live(phase, step)
        begin_s = self.world.kernel.now
        self.record(Event("open", phase, step))
        if self.world.troubles.is_on(What.HANG, self.role, self.index, step, phase):
            self.world.stop_soon()
            yield Signal()
        yield from self._held_up(phase, step)
        yield self._seconds(phase, seconds, step)
        if until is not None:
            yield until
        return self.phase(phase, begin_s, step, parent=parent, links=links, names=names)

    def wait(self, phase: str, signal: Signal, step: int) -> Work[object]:
        """Wait in a phase of its own, if there is anything to wait for."""
        if signal.is_set:
            return signal.value
        begin_s = self.world.kernel.now
        self.record(Event("open", phase, step))
        value = yield signal
        self.phase(phase, begin_s, step)
        return value

    def begun(self, phase: str, step: int) -> Span:
        """Open a phase that calls others; its ids are their parent."""
        self.record(Event("open", phase, step))
        now = self.world.kernel.now
        return Span("", now, now, self._ids(self._root[1], self._root[0]), step)

    def phase(self, phase: str, begin_s: float, step: int, *, parent: Span | None = None,
              links: tuple[tuple[int, int], ...] = (), names: bool = True,
              begun: Span | None = None) -> Span:  # fmt: skip
        """Record a phase that ends now."""
        now = self.world.kernel.now
        telemetry = self.world.program.telemetry
        self.record(Event("close", phase, step))
        ids = self._ids(self._root[1], self._root[0])
        if begun is not None:
            ids = begun.ids
        elif parent is not None:
            ids = (parent.ids[0], ids[1], parent.ids[1])
        attributes: dict[str, str | int | float] = {}
        if telemetry.names == "rl":
            attributes["rl.phase"] = phase
            if phase in WAITS:
                attributes["rl.phase_class"] = "wait"
        is_inner = self.role in ("trainer", "orchestrator") and parent is None
        marked = step if telemetry.marks_all or not is_inner else None
        name = span_name(telemetry.names, phase)
        span = Span(name, begin_s, now, ids, marked, attributes, links)
        self._sums[phase] += (now - begin_s) if names else 0.0
        if names and telemetry.spans:
            self.record(span)
        return span

    def step_is_over(self, step: int, begin_s: float, *, has_loop: bool) -> None:
        """Report the step's sums, and its span, of a worker with a loop of steps."""
        telemetry = self.world.program.telemetry
        now = self.world.kernel.now
        if has_loop:
            if telemetry.spans:
                name = span_name(telemetry.names, "step")
                self.record(Span(name, begin_s, now, (self._root[0], self._root[1], 0), step))
            self._sums["step"] = now - begin_s
        if telemetry.metrics:
            for phase, seconds in self._sums.items():
                self._timing(phase, seconds, step)
        self._sums.clear()
        self._root = self._ids(0)

    def value(self, value: str, amount: float, step: int | None) -> None:
        """Report a gauge under the program's name."""
        self._measure("gauge", value, amount, step)

    def count(self, value: str, amount: float) -> None:
        self._measure("count", value, amount, None)

    def level(self, value: str, amount: float) -> None:
        self._measure("level", value, amount, None)

    def spread(self, value: str, amount: float, attributes: Attributes | None = None) -> None:
        self._measure("spread", value, amount, None, attributes)

    def die(self, error: str = "", step: int | None = None) -> None:
        """Be gone: without a word, or with the error that an SDK reports at exit."""
        if error:
            self.record(Event("end", step=step, error=error))
        self.record(Event("gone"))
        self.is_gone = True

    def leave(self) -> None:
        """End cleanly."""
        self.record(Event("end"))
        self.record(Event("gone"))
        self.is_gone = True

    def _live(self, phase: str, step: int) -> Work[None]:
        troubles = self.world.troubles
        for what, error in ((What.KILL, ""), (What.RAISE, "RuntimeError")):
            if troubles.is_on(what, self.role, self.index, step, phase) and not self.is_gone:
                self.die(error, step)
                if self.role == "trainer":
                    self.world.stop_soon()
                yield Signal()
        on = [one for one in troubles.of(What.LOOP) if one.meets(self.role, self.index)]
        if on and self._deaths < 5 and step >= on[0].step + 3 * self._deaths:
            self._deaths += 1
            yield from self._restart(1.2 * self.world.program.step_s)

    def _held_up(self, phase: str, step: int) -> Work[None]:
        for what in (What.PAUSE, What.FREEZE):
            for one in self.world.troubles.of(what):
                is_it = one.meets(self.role, self.index, phase) and step >= one.step
                if not is_it or self._was_held_up:
                    continue
                self._was_held_up = True
                is_frozen = what is What.FREEZE
                if is_frozen:
                    self.record(Event("freeze"))
                yield one.size * self.world.program.step_s
                if is_frozen:
                    self.record(Event("thaw"))

    def _restart(self, after_s: float) -> Work[None]:
        self.record(Event("gone"))
        self.is_gone = True  # what others do in its name meanwhile is not recorded
        yield after_s
        self.life += 1
        self.is_gone = False
        self.record(Event("start"))

    def _seconds(self, phase: str, seconds: float, step: int) -> float:
        world, steps = self.world, self.world.program.steps
        seconds = world.noisy(seconds, step)
        stolen = world.stolen(self.role, self.index, min(step, world.step))
        seconds *= stolen.size if stolen is not None else 1.0
        if phase == "weight_sync":
            seconds *= world.troubles.amount(What.LINK, self.role, self.index, step, steps) or 1.0
        if phase in ("weight_sync", "weight_push", "weight_pull", "param_sync"):
            seconds *= world.far_from(self.role, self.index, step)
        if phase == "train":
            seconds *= world.share_of(self.role, self.index, step)
        seconds *= world.troubles.factor(self.role, self.index, phase, step, steps)
        pause = world.troubles.amount(What.GC, self.role, self.index, step, steps)
        if pause and phase in ("train", "generate"):
            self.record(Point("count", "rl.worker.gc.time", pause * seconds))
            seconds *= 1 + pause
        elif world.program.telemetry.is_ours and phase in ("train", "generate"):
            self.record(Point("count", "rl.worker.gc.time", 0.002 * seconds))
        return seconds

    def _timing(self, phase: str, seconds: float, step: int) -> None:
        names = self.world.program.telemetry.names
        attributes: dict[str, str | int | float] = {}
        if names == "rl" and phase != "step":
            attributes["rl.phase"] = phase
            if phase in WAITS:
                attributes["rl.phase_class"] = "wait"
        self.record(Point("gauge", phase_metric(names, phase), seconds, step, attributes))

    def _measure(self, kind: Literal["gauge", "count", "level", "spread"], value: str,
                 amount: float, step: int | None,
                 attributes: Attributes | None = None) -> None:  # fmt: skip
        telemetry = self.world.program.telemetry
        if telemetry.metrics:
            name = value_name(telemetry.names, value)
            self.record(Point(kind, name, amount, step, attributes or {}))

    def _ids(self, parent: int, trace: int = 0) -> tuple[int, int, int]:
        chance = self.world.chance
        return (trace or chance.getrandbits(127) | 1, chance.getrandbits(63) | 1, parent)
