"""Record of the run so far, for the progress line and for the result."""

import time
from pathlib import Path

import numpy as np

from otel_rl.demo.control.messages import Level, StepDone
from otel_rl.demo.progress import Status
from otel_rl.demo.result import DemoResult
from otel_rl.demo.scheduling.replicas import Replicas
from otel_rl.demo.settings import DemoSettings

__all__ = ["RunRecord"]


class RunRecord:
    """Accumulates reports. One thread.

    Attributes:
        level: Latest level of the replay buffer.
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
        """The step in progress, from 1."""
        return len(self._steps) + 1

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far."""
        return self._tokens

    @property
    def is_complete(self) -> bool:
        """True after the last step."""
        return len(self._steps) >= self._settings.steps

    def all_joined(self) -> None:
        """Start the clock of the training."""
        self._begun_s = self._last_step_s = time.monotonic()

    def since_last_step_s(self) -> float:
        """Return the seconds since the last step."""
        return time.monotonic() - self._last_step_s

    def step_done(self, done: StepDone) -> None:
        """Record an update of the trainers."""
        self._steps.append(done)
        self._last_step_s = time.monotonic()

    def request_finished(self, tokens: int) -> None:
        """Record a prompt with all its completions."""
        self._requests += 1
        self._tokens += tokens

    def status(self, *, alive: int) -> Status | None:
        """Return the status for the progress line; None before the first step.

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
            buffered=self.level.size * self._settings.group_size,
            buffer_limit=self._settings.buffer_groups * self._settings.group_size,
            alive=alive,
            expected=len(self._settings.members),
        )

    def result(self, *, reason: str, logs: Path, replicas: Replicas) -> DemoResult:
        """Return the result.

        Args:
            reason: Reason of an early end; empty if complete.
            logs: Directory with the logs of every process.
            replicas: Failures and recoveries of the generators.
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
            evicted=self.level.evicted * self._settings.group_size,
            failures=replicas.failures,
            recoveries_s=tuple(replicas.recoveries_s),
            duration_s=self._last_step_s - self._begun_s,
        )
