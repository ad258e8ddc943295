"""A program under exam: its sizes, times, noise, names and SDK, drawn from a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class System(StrEnum):
    """Kind of RL system."""

    LOCKSTEP = "lockstep"
    ASYNC = "async"
    AGENTS = "agents"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The program's way to report.

    Attributes:
        is_ours: Reports as otel_rl's worker: exact gauges, heartbeats, ends, ages of phases.
        spans: Has spans.
        metrics: Has metrics.
        names: Vocabulary of its metrics and spans; ``rl`` is the conventions'.
        is_delta: Counters and histograms are deltas, and a gauge's point is sent once.
        every_s: Seconds between exports.
        marks_all: Each span has the step, not roots alone.
        names_waits: Collectives have phases of their own, instead of being within the work.
    """

    is_ours: bool
    spans: bool
    metrics: bool
    names: str
    is_delta: bool
    every_s: float
    marks_all: bool
    names_waits: bool


@dataclass(frozen=True, slots=True)
class Program:
    """Everything about a run except its troubles.

    Attributes:
        sizes: Workers by role.
        steps: Of the whole run.
        step_s: Usual seconds of a step.
        noise: Standard deviation of a piece of work's logarithm.
        tail: Share of pieces of work that take much longer by chance.
        growth: Growth of the answers over the run, 0 for none.
        warmup: How much longer the first step takes.
        evaluates, saves: Every so many steps; 0 for never.
        pushes: Weights are sent every so many steps.
        first_step, stride: The number that the program gives to step 0, and to each next one.
        stages: Pipeline stages of the trainers of an asynchronous system.
        has_surplus: Generators of an asynchronous system could make twice what is trained.
        has_controller: One more process calls the ranks of a lockstep system, part by part.
    """

    system: System
    telemetry: Telemetry
    sizes: Mapping[str, int]
    steps: int
    step_s: float
    noise: float
    tail: float
    growth: float
    warmup: float
    evaluates: int
    saves: int
    pushes: int
    stages: int
    seed: str
    first_step: int = 0
    stride: int = 1
    has_surplus: bool = False
    has_controller: bool = False

    def told(self, step: int) -> int:
        """Return the number that the program gives to a step."""
        return self.first_step + self.stride * step

    @property
    def workers(self) -> int:
        return sum(self.sizes.values())


def drawn(chance: random.Random, system: System, needs: frozenset[str], seed: str) -> Program:
    """Draw a program that has what a scenario needs to be visible at all.

    Args:
        needs: Of ``ours``, ``stock`` (another SDK), ``spans``, ``metrics``, ``untraced`` (metrics
            alone), ``controller`` (calls the ranks), ``waits`` (collectives have phases of their
            own), ``many`` (at least four workers of each role), ``quiet`` (noise up to 4 %),
            ``saves``, ``evaluates``, ``jumps`` (numbers of steps count updates, from a checkpoint
            on), ``surplus`` (generators have twice the capacity that is needed), ``short`` (steps
            of a fraction of a second).
    """
    step_s = 0.5 * 240 ** chance.random()
    if "short" in needs:
        step_s = 0.2 + 0.005 * step_s
    sizes = _sizes(chance, system, 4 if "many" in needs else 2)
    noise = 0.01 * (4 if "quiet" in needs else 15) ** chance.random()
    return Program(
        system=system,
        telemetry=_telemetry(chance, needs, step_s),
        sizes=sizes,
        steps=chance.randint(60, 80),
        step_s=step_s,
        noise=noise,
        tail=chance.choice([0.0, 0.005, 0.02]),
        growth=chance.choice([0.0, 0.0, 0.3]),
        warmup=chance.uniform(1, 6),
        evaluates=chance.choice([8, 10] if "evaluates" in needs else [0, 0, 10, 20]),
        saves=chance.choice([8, 10, 15]) if "saves" in needs else chance.choice([0, 10, 25]),
        pushes=chance.choice([1, 1, 2, 4]) if system is System.ASYNC else 1,
        stages=chance.choice([1, 2]),
        seed=seed,
        first_step=4_000 if "jumps" in needs else 0,
        stride=16 if "jumps" in needs else 1,
        has_surplus="surplus" in needs,
        has_controller="controller" in needs,
    )


def _sizes(chance: random.Random, system: System, least: int) -> dict[str, int]:
    if system is System.LOCKSTEP:
        return {
            "trainer": chance.randint(max(3, least), 12),
            "reward": chance.randint(least, 3 + least),
        }
    if system is System.ASYNC:
        return {
            "generator": chance.randint(max(3, least), 12),
            "reward": chance.randint(least, 3 + least),
            "trainer": 2 * chance.randint(least // 2, 4),
            "replay_buffer": 1,
        }
    return {
        "orchestrator": 1,
        "env": chance.randint(max(4, least), 12),
        "generator": chance.randint(least, 8),
        "trainer": chance.randint(least, 8),
    }


def _telemetry(chance: random.Random, needs: frozenset[str], step_s: float) -> Telemetry:
    is_ours = "ours" in needs or (chance.random() < 0.4 and "stock" not in needs)
    kind = chance.choice(["both", "both", "metrics", "spans"])
    has_spans = is_ours or "spans" in needs or (kind != "metrics" and "untraced" not in needs)
    has_metrics = is_ours or not has_spans or "metrics" in needs or kind != "spans"
    fastest = 1.0 if is_ours else chance.choice([1.0, 5.0, 10.0])
    is_delta = is_ours or chance.random() < 0.85
    return Telemetry(
        is_ours=is_ours,
        spans=has_spans,
        metrics=has_metrics,
        names="rl" if is_ours else chance.choice(["rl", "verl", "slime", "plain"]),
        is_delta=is_delta,
        every_s=max(fastest, step_s / 4) if is_delta else max(10.0, 1.5 * step_s),
        marks_all=is_ours or chance.random() < 0.7,
        names_waits=is_ours or "waits" in needs or chance.random() < 0.5,
    )
