"""Runs drawn from a seed: names, topology, sizes, pace, noise and how they are instrumented.

Unlike ``worlds``, nothing of a run is fixed but its mechanism. In a lockstep run, a step is the
slowest maker, then the slowest scorer, then the slowest learner. In a run with a queue, makers and
scorers work ahead, and learners wait only if these are slower.

Styles: spans with a critical path; phases, measured without spans; metrics, nothing but the time of
a step and one measurement of each worker in each step.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, StepFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.records import WorkerFailure

_NS = 1_000_000_000
_MAKERS = (("sampler", "unroll"), ("player", "generate_text"), ("gen", "decode"))
_SCORERS = (("critic_svc", "judge_batch"), ("verifier", "verify"), ("rm", "score_items"))
_LEARNERS = (("ppo", "backprop_update"), ("policy_opt", "train_epoch"), ("tuner", "optimizer_step"))


class Style(StrEnum):
    """How a run is instrumented."""

    SPANS = "spans"
    PHASES = "phases"
    METRICS = "metrics"


class Part(NamedTuple):
    """Role with one phase of work.

    Attributes:
        role: The role.
        phase: Its phase.
        size: Number of workers.
        usual_s: Usual time of one phase.
    """

    role: str
    phase: str
    size: int
    usual_s: float


@dataclass
class Drawn:
    """A run.

    Attributes:
        chance: Of everything random from here on.
        parts: Makers, scorers, learners.
        steps: Number of them.
        has_queue: Whether makers work ahead.
        style: Of the instrumentation.
        noise: Sigma of the logarithm of every time.
        warm_up: Number of slow first steps.
        checkpoint_every: Steps between two checkpoints.
        slower: (part, worker's index, step) to a factor.
        extra_s: Step to seconds that a checkpoint takes longer than usual.
        gone: (worker, step from which on it does nothing).
        counted: Step to a counter's value, of the scorers; negative before it exists.
        hung_s: Seconds of reports without work after the last step.
        status: Of the run at its end.
        failures: Told at the end.
    """

    chance: random.Random
    parts: Sequence[Part]
    steps: int
    has_queue: bool
    style: Style
    noise: float
    warm_up: int
    checkpoint_every: int
    slower: Callable[[int, int, int], float] = lambda part, index, step: 1.0
    extra_s: Callable[[int], float] = lambda step: 0.0
    gone: tuple[str, int] | None = None
    hung_s: float = 0.0
    status: str = "complete"
    failures: Sequence[WorkerFailure] = ()
    counted: Callable[[int], float] | None = None
    _facts: list[Facts] = field(default_factory=list)

    @property
    def usual_s(self) -> float:
        """Usual duration of a step."""
        times = [part.usual_s for part in self.parts]
        return max(times) if self.has_queue else sum(times)

    def history(self) -> RunHistory:
        """As it is read from a journal."""
        now_ns = 1_000 * _NS
        for step in range(self.steps):
            now_ns = self._step(step, now_ns)
        last, status = self.steps - 1, "running" if self.hung_s else self.status
        beats = max(1, int(self.hung_s))
        for _ in range(beats):
            now_ns += max(1, int(self.hung_s / beats * _NS)) if self.hung_s else _NS
            alive = {
                "host/load": [
                    WorkerFacts(f"{part.role}/{index}", None, 1, self.chance.random(), 0)
                    for part in self.parts
                    for index in range(part.size)
                ]
            }
            self._facts.append(
                Facts(now_ns, last, workers=alive, failures=self.failures, status=status)
            )
        return RunHistory(Facts.decode(one.encode()) for one in self._facts)

    def _step(self, step: int, now_ns: int) -> int:
        took: dict[tuple[int, int], float] = {}
        for place, part in enumerate(self.parts):
            for index in range(part.size):
                gone, since = self.gone or ("", 0)
                if gone == f"{part.role}/{index}" and step >= since:
                    continue
                noise = math.exp(self.chance.gauss(0, self.noise))
                warm = 6.0 if step < self.warm_up else 1.0
                took[place, index] = part.usual_s * noise * warm * self.slower(place, index, step)
        slowest = {
            place: max((s, i) for (p, i), s in took.items() if p == place)
            for place in {place for place, _ in took}
        }
        is_saved = step > 0 and step % self.checkpoint_every == 0
        saving_s = (0.8 * self.usual_s + self.extra_s(step)) if is_saved else 0.0
        learner = len(self.parts) - 1
        path: list[tuple[str, str, str, float]] = []
        if self.has_queue:
            place = max(slowest, key=lambda place: slowest[place][0])
            chain = [place]
        else:
            chain = sorted(slowest)
        for place in chain:
            seconds, index = slowest[place]
            part = self.parts[place]
            path.append((part.role, part.phase, f"{part.role}/{index}", seconds))
        root = self.parts[learner]
        if is_saved:
            path.append((root.role, "save_state", f"{root.role}/0", saving_s))
        duration_s = sum(seconds for *_, seconds in path)
        now_ns += int(duration_s * _NS)
        self._tell(step, now_ns, took, path, saving_s)
        return now_ns

    def _tell(
        self,
        step: int,
        now_ns: int,
        took: dict[tuple[int, int], float],
        path: Sequence[tuple[str, str, str, float]],
        saving_s: float,
    ) -> None:
        root = self.parts[-1]
        duration_s = sum(seconds for *_, seconds in path)
        row = {
            f"{root.role}/iteration/duration": duration_s,
            f"{root.role}/reward/mean": 0.2 + 0.3 * step / self.steps + self.chance.gauss(0, 0.02),
        }
        workers: dict[str, list[WorkerFacts]] = {}
        spans: list[SpanFacts] = []
        done = [
            (self.parts[place].role, self.parts[place].phase, index, seconds)
            for (place, index), seconds in took.items()
        ]
        if saving_s:
            done.append((root.role, "save_state", 0, saving_s))
        for role, phase, index, seconds in done:
            worker = f"{role}/{index}"
            workers.setdefault(f"{role}/done", []).append(WorkerFacts(worker, step, 1, 1.0, 0))
            if self.style is Style.SPANS:
                spans.append(SpanFacts(step, role, phase, worker, False, 1, seconds, seconds, 0))
            elif self.style is Style.PHASES:
                key = f"phase/{role}/{phase}"
                workers.setdefault(key, []).append(WorkerFacts(worker, step, 1, seconds, 0))
        if self.counted is not None and (count := self.counted(step)) >= 0:
            role = self.parts[1].role
            workers[f"{role}/num_preemptions"] = [WorkerFacts(f"{role}/0", None, 1, count, 0)]
        explained = (
            [StepFacts(step, now_ns, path, [], [], f"{step:032x}")]
            if self.style is Style.SPANS
            else []
        )
        rows = [RowFacts(step, now_ns, row)]
        self._facts.append(Facts(now_ns, step, rows, explained, workers, spans, status="running"))


def drawn(seed: int, style: Style | None = None) -> Drawn:
    """Draw a healthy run."""
    chance = random.Random(seed)
    pace_s = 10 ** chance.uniform(-0.3, 1.5)
    parts = [
        Part(*chance.choice(_MAKERS), chance.randint(3, 6), pace_s * chance.uniform(0.4, 1)),
        Part(*chance.choice(_SCORERS), chance.randint(3, 4), pace_s * chance.uniform(0.3, 0.8)),
        Part(*chance.choice(_LEARNERS), chance.randint(3, 8), pace_s * chance.uniform(0.5, 1)),
    ]
    return Drawn(
        chance,
        parts,
        chance.randint(50, 120),
        chance.random() < 0.5,
        style or chance.choice([*Style]),
        chance.uniform(0.03, 0.2),
        chance.randint(0, 4),
        chance.randint(9, 30),
    )
