"""What the orchestrator has seen of the run so far, for the progress line and for the result."""

import time
from pathlib import Path

import numpy as np

from otel_rl.demo.messages import Level, StepDone
from otel_rl.demo.progress import Status
from otel_rl.demo.replicas import Replicas
from otel_rl.demo.result import DemoResult
from otel_rl.demo.settings import DemoSettings

__all__ = ["RunRecord"]


class RunRecord:
    """Adds up. One thread.

    Attributes:
        level: Of the replay buffer, as last heard.
    """

    def __init__(self, settings: DemoSettings) -> None:
        self.level = Level(0, 0)
        self._settings = settings
        self._steps: list[StepDone] = []
        self._tokens = 0
        self._requests = 0
        self._begun_s = self._last_step_s = time.monotonic()

    @property
    def step(self) -> int:
        """The step that is being made, from 1."""
        return len(self._steps) + 1

    @property
    def is_complete(self) -> bool:
        """Whether the last step is done."""
        return len(self._steps) >= self._settings.steps

    def everybody_is_here(self) -> None:
        """Training begins now."""
        self._begun_s = self._last_step_s = time.monotonic()

    def since_last_step_s(self) -> float:
        """Seconds without a step."""
        return time.monotonic() - self._last_step_s

    def step_done(self, done: StepDone) -> None:
        """The trainers have made an update."""
        self._steps.append(done)
        self._last_step_s = time.monotonic()

    def request_finished(self, tokens: int) -> None:
        """A prompt has all its completions."""
        self._requests += 1
        self._tokens += tokens

    def status(self, *, alive: int) -> Status | None:
        """For the progress line; None before the first step.

        Args:
            alive: Living processes.
        """
        if not self._steps:
            return None
        last = self._steps[-1]
        return Status(
            step=last.step,
            steps=self._settings.steps,
            reward=last.reward,
            tokens=self._tokens,
            staleness=last.staleness,
            buffered=self.level.size,
            buffer_limit=self._settings.buffer_groups,
            alive=alive,
            expected=len(self._settings.members),
        )

    def result(self, *, reason: str, logs: Path, replicas: Replicas) -> DemoResult:
        """For the end.

        Args:
            reason: Why the run did not reach it; empty if it did.
            logs: Directory with what every process wrote.
            replicas: What became of the generators.
        """
        staleness = [step.staleness for step in self._steps]
        return DemoResult(
            reason=reason,
            logs=logs,
            steps=len(self._steps),
            rewards=tuple(step.reward for step in self._steps),
            staleness=float(np.mean(staleness)) if staleness else None,
            tokens=self._tokens,
            requests=self._requests,
            rerouted=replicas.rerouted,
            evicted=self.level.evicted,
            failures=replicas.failures,
            recoveries_s=tuple(replicas.recoveries_s),
            duration_s=self._last_step_s - self._begun_s,
        )
