"""Made-up runs as facts: no real one, so that no rule fits one program only.

A team with names of its own: actors roll out, judges score, learners learn. Times are log-normal;
a run learns, so its rewards rise and its entropy falls, and the machine has slow moments.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from otel_rl.diagnose.history.records import (
    Facts,
    RowFacts,
    SpanFacts,
    StepFacts,
    WorkerFacts,
)
from otel_rl.diagnose.history.run_history import RunHistory

_NS = 1_000_000_000

# (role, phase) to seconds of one, and how many of them a worker does in a step.
_WORK = {
    ("actor", "rollout"): (0.4, 2),
    ("judge", "score"): (0.05, 4),
    ("learner", "forward"): (0.3, 1),
    ("learner", "backward"): (0.5, 1),
    ("learner", "push_weights"): (0.06, 1),
}
_WAITS = {("learner", "fetch_samples"): 0.05, ("learner", "allreduce"): 0.02}


@dataclass
class World:
    """A run, and what goes wrong in it.

    Attributes:
        seed: Of everything random.
        steps: How many.
        sizes: Workers of each role.
        noise: Sigma of the logarithm of every time.
        slower: (role, phase, worker index, step) to the factor by which it is slower.
        values: (name, step) to a value of the learners that takes the place of the usual one.
        odd: (name, learner index, step) that are NaN.
        lost: Step to the workers lost in it.
        ahead_s: Worker to how far its clock is ahead.
        counters: (key, worker, step) to what was counted, beside the usual.
        pulls: (worker, step) to whether an actor takes up new weights, if it has a span for it.
    """

    seed: int = 0
    steps: int = 80
    sizes: dict[str, int] = field(default_factory=lambda: {"actor": 4, "judge": 2, "learner": 2})
    noise: float = 0.25
    slower: Callable[[str, str, int, int], float] = lambda role, phase, index, step: 1.0
    values: Callable[[str, int, float], float] = lambda name, step, usual: usual
    odd: Callable[[str, int, int], bool] = lambda name, index, step: False
    lost: dict[int, Sequence[str]] = field(default_factory=dict)
    ahead_s: dict[str, float] = field(default_factory=dict)
    counters: Callable[[str, str, int, float], float] = lambda key, worker, step, usual: usual
    pulls: Callable[[str, int], bool] | None = None

    def facts(self) -> list[Facts]:
        chance = random.Random(self.seed)
        made = []
        time_ns = 1_000 * _NS
        load = 1.0
        for step in range(self.steps):
            load = math.exp(0.9 * math.log(load) + chance.gauss(0, 0.08))
            spans, took = self._spans(step, load, chance)
            path = self._path(took)
            duration_s = sum(s for *_, s in path)
            time_ns += int(duration_s * _NS)
            explained = StepFacts(step, time_ns, path, took, [], f"{step:032x}")
            made.append(
                Facts(
                    time_ns,
                    step,
                    [RowFacts(step, time_ns, self._row(step, duration_s, chance))],
                    [explained],
                    self._workers(step, chance),
                    spans,
                    [
                        (worker, 0.05 + chance.expovariate(5) - self.ahead_s.get(worker, 0.0))
                        for worker in self._everybody()
                    ],
                    list(self.lost.get(step, ())),
                )
            )
        return made

    def history(self) -> RunHistory:
        """As it is read from a journal."""
        return RunHistory(Facts.decode(one.encode()) for one in self.facts())

    def _everybody(self) -> list[str]:
        return [f"{role}/{index}" for role, size in self.sizes.items() for index in range(size)]

    def _spans(
        self, step: int, load: float, chance: random.Random
    ) -> tuple[list[SpanFacts], list[tuple[str, str, str, float]]]:
        spans, took = [], []
        for (role, phase), (seconds, count) in _WORK.items():
            for index in range(self.sizes[role]):
                usual = seconds * load * math.exp(chance.gauss(0, self.noise))
                one = usual * self.slower(role, phase, index, step)
                worker = f"{role}/{index}"
                spans.append(
                    SpanFacts(step, role, phase, worker, False, count, one * count, one, 0)
                )
                took.append((role, phase, worker, one * count))
        for index in range(self.sizes["actor"] if self.pulls else 0):
            worker = f"actor/{index}"
            if self.pulls and self.pulls(worker, step):
                one = 0.02 * load * math.exp(chance.gauss(0, self.noise))
                spans.append(SpanFacts(step, "actor", "pull_weights", worker, True, 1, one, one, 0))
        by = dict.fromkeys(self.sizes, 0.0)
        for role, _, _, seconds in took:
            if role != "learner":
                by[role] = max(by[role], seconds)
        learners: dict[str, float] = {}
        for role, _, worker, seconds in took:
            if role == "learner":
                learners[worker] = learners.get(worker, 0.0) + seconds
        slowest = max(learners.values())
        late = max(0.0, max(by["actor"], by["judge"]) - slowest)
        for worker, seconds in learners.items():
            for phase, usual in (("fetch_samples", late), ("allreduce", slowest - seconds)):
                wait = usual + _WAITS["learner", phase] * math.exp(chance.gauss(0, self.noise))
                spans.append(SpanFacts(step, "learner", phase, worker, True, 1, wait, wait, 0))
        return spans, took

    def _path(self, took: list[tuple[str, str, str, float]]) -> list[tuple[str, str, str, float]]:
        whole: dict[str, float] = {}
        for _, _, worker, seconds in took:
            whole[worker] = whole.get(worker, 0.0) + seconds
        longest = max(whole, key=lambda worker: whole[worker])
        return [one for one in took if one[2] == longest]

    def _row(self, step: int, duration_s: float, chance: random.Random) -> dict[str, float]:
        part = step / self.steps
        usual = {
            "learner/reward/mean": 0.1 + 0.6 * part + chance.gauss(0, 0.02),
            "learner/reward/std": 0.2 + chance.gauss(0, 0.01),
            "learner/policy/entropy": 2.5 * math.exp(-1.5 * part) + chance.gauss(0, 0.03),
            "learner/policy/kl": 0.1 + 1.5 * part + chance.gauss(0, 0.03),
            "learner/response_length": 200 - 30 * part + chance.gauss(0, 3),
            "learner/sample/age/versions/mean": 2 + chance.gauss(0, 0.3),
            "learner/iteration/duration": duration_s,
        }
        return {key: self.values(key, step, value) for key, value in usual.items()}

    def _workers(self, step: int, chance: random.Random) -> dict[str, list[WorkerFacts]]:
        found: dict[str, list[WorkerFacts]] = {}
        for index in range(self.sizes["learner"]):
            worker = f"learner/{index}"
            for name in ("grad_norm", "loss"):
                is_odd = self.odd(name, index, step)
                one = WorkerFacts(
                    worker, step, 0 if is_odd else 1, chance.gauss(1, 0.1), int(is_odd)
                )
                found.setdefault(f"learner/{name}", []).append(one)
            found.setdefault("learner/policy/version", []).append(
                WorkerFacts(worker, step, 1, self.counters("version", worker, step, step), 0)
            )
        for index in range(self.sizes["actor"]):
            worker = f"actor/{index}"
            lag = chance.choice((0, 1, 1, 2))
            for key, usual in (
                ("policy/version", float(max(0, step - lag))),
                ("num_preemptions", float(chance.random() < 0.05)),
                ("gc/time", chance.expovariate(200)),
            ):
                value = self.counters(key, worker, step, usual)
                found.setdefault(f"actor/{key}", []).append(WorkerFacts(worker, None, 1, value, 0))
        value = self.counters("evictions", "buffer/0", step, chance.expovariate(1))
        found["buffer/evictions"] = [WorkerFacts("buffer/0", None, 1, value, 0)]
        return found


def healthy(seed: int) -> World:
    """A run of some size, noise and length with which nothing is wrong."""
    chance = random.Random(seed)
    sizes = {"actor": chance.randint(1, 8), "judge": chance.randint(1, 3)}
    sizes["learner"] = chance.randint(1, 4)
    return World(seed, chance.randint(20, 150), sizes, chance.uniform(0.05, 0.4))
