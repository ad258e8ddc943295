"""Runs that are simulated sample by sample: prompts, groups, rewards, and what fails.

A prompt has a difficulty, the policy a skill that grows; a sample is right with a probability of
both. What a step reports of it are the shares that a worker computes, and errors of calls.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.semconv import names
from otel_rl.semconv.outcomes import Outcome
from otel_rl.worker.api.learning import batch_figures
from tests.unit.diagnose.made import made

OfStep = Callable[[int], float]


@dataclass
class Lesson:
    """A run.

    Attributes:
        seed: Of its samples.
        steps: Number of them.
        prompts: In a batch.
        samples: To a prompt.
        skill: Of the policy, in units of difficulty.
        spread: Of the difficulty of prompts.
        harder: What is added to the difficulty in a step.
        fails: Share of samples whose environment fails.
        is_told: Whether the program tells outcomes.
        is_scored: Whether one that tells none scores its samples: nobody knows that any failed.
        is_masked: Whether failed samples are masked or made again.
        own_errors: Share of calls that fail by what the policy asks for.
        same: Share of groups whose answers all get one reward.
        mixed: Most steps that a sample waits until it is trained on.
        length: Of an answer, by step.
        has_groups: Whether the shares of groups are told.
        reason: Of failures.
        total: Number of them so far.
        masked: Number of samples so far that were masked and told so.
        scored: Number of samples so far that were scored without an outcome.
    """

    seed: int
    steps: int
    prompts: int
    samples: int
    skill: OfStep
    spread: float
    harder: OfStep = lambda step: 0.0
    fails: OfStep = lambda step: 0.0
    is_told: bool = True
    is_scored: bool = False
    is_masked: bool = False
    own_errors: OfStep = lambda step: 0.0
    same: OfStep = lambda step: 0.0
    mixed: int = 0
    length: OfStep = lambda step: 200.0
    has_groups: bool = True
    reason: str = "session_reset"
    total: int = 0
    masked: int = 0
    scored: int = 0

    def history(self) -> RunHistory:
        """As it is read from a journal."""
        chance = random.Random(self.seed)
        by_step = [self._step(chance, step) for step in range(self.steps)]
        keys = sorted({key for of in by_step for key in of})
        history = made(self.steps)
        for step, of in enumerate(by_step):
            for key in keys:
                if key in of:
                    history.rows[key].add(step, float(step), of[key])
        return history

    def _step(self, chance: random.Random, step: int) -> dict[str, float]:
        drawn: list[tuple[str | None, float | None, Outcome | None]] = []
        calls = errors = failed = 0
        for prompt in range(self.prompts):
            made_at = max(0, step - chance.randint(0, self.mixed))
            hard = chance.gauss(self.harder(made_at), self.spread)
            right = 1 / (1 + math.exp(hard - self.skill(made_at)))
            shared = chance.random() < self.same(made_at)
            one = float(chance.random() < right)
            for _ in range(self.samples):
                is_bad = chance.random() < self.fails(made_at)
                calls += 1
                errors += is_bad or chance.random() < self.own_errors(made_at)
                if is_bad and self.is_masked:
                    drawn.append((str(prompt), 0.0, Outcome.MASKED))
                    continue
                failed += is_bad
                reward = one if shared else float(chance.random() < right)
                end = Outcome.ENVIRONMENT_FAILED if is_bad else Outcome.TRAINED
                drawn.append((str(prompt), 0.0 if is_bad else reward, end))
        rewards = [reward or 0.0 for _, reward, end in drawn if end is not Outcome.MASKED]
        found = {
            "trainer/reward/mean": sum(rewards) / max(1, len(rewards)),
            "trainer/episode/length": self.length(step) * math.exp(chance.gauss(0, 0.03)),
        }
        if self.has_groups:
            for name, value in batch_figures(drawn):
                found[f"trainer/{name.removeprefix('rl.').replace('.', '/')}"] = value
        if self.is_told:
            assert names.RL_SAMPLE_POISONED == "rl.sample.poisoned"
            found["env/sample/poisoned"] = failed / len(drawn)
            self.total += failed
            if self.total:
                key = f"env/sample/outcomes/swe/environment_failed/{self.reason}"
                found[key] = float(self.total)
            masked = sum(end is Outcome.MASKED for _, _, end in drawn)
            self.masked += masked
            if self.masked:
                found["env/sample/outcomes/swe/masked"] = float(self.masked)
        else:
            found["env/tools/failure_frequency"] = errors / calls
        if self.is_scored and not self.is_told:
            self.scored += len(drawn)
            found["env/sample/poisoned"] = 0.0
            found["env/sample/outcomes/swe/trained"] = float(self.scored)
            found["env/sample/outcomes/swe/trained/per_step"] = float(len(drawn))
        return found


def lesson(seed: int) -> Lesson:
    """Draw a run in which nothing is wrong."""
    chance = random.Random(f"lesson {seed}")
    steps = chance.randint(60, 160)
    low, gain = chance.uniform(-1.2, 0.5), chance.uniform(0.3, 2.0)
    pace = chance.uniform(0.3, 1.5) * steps
    return Lesson(
        seed=seed,
        steps=steps,
        prompts=chance.choice((8, 16, 32, 64)),
        samples=chance.choice((4, 8, 16)),
        skill=lambda step: low + gain * (1 - math.exp(-step / pace)),
        spread=chance.uniform(0.5, 2.0),
        mixed=chance.choice((0, 0, 1, 4)),
    )
