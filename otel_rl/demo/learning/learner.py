"""Computation of one trainer rank: loss, gradient, update. No telemetry, no other process."""

from dataclasses import dataclass

import numpy as np

from otel_rl.demo.learning.grpo import Batch, Objective, Outcome, loss_and_gradient
from otel_rl.demo.model import Adam, Floats, Parameters, backward, forward
from otel_rl.demo.settings import DemoSettings

__all__ = ["Learner", "learning_rate"]

WARMUP_SHARE = 0.04
LAST_SHARE = 0.2

BACKWARD_COST = 3  # forward and backward together, in forward passes


@dataclass(frozen=True, slots=True)
class _Update:
    """Measurements of one optimiser step."""

    rate: float
    norm: float


def learning_rate(step: int, *, steps: int, peak: float) -> float:
    """Return the rate: linear warm-up to ``peak``, then linear decay to a fifth of it.

    Args:
        step: From 1 to ``steps``.
        steps: Of the run.
        peak: Highest rate.
    """
    warmup = max(1, round(steps * WARMUP_SHARE))
    if step <= warmup:
        return peak * step / warmup
    left = (steps - step) / max(1, steps - warmup)
    return peak * (LAST_SHARE + (1 - LAST_SHARE) * left)


class Learner:
    """Policy in training, with its frozen reference and its optimiser."""

    def __init__(self, settings: DemoSettings, checkpoint: bytes) -> None:
        self.policy = Parameters.from_bytes(settings.shape, checkpoint)
        self._reference = Parameters.from_bytes(settings.shape, checkpoint)
        self._adam = Adam(len(self.policy.flat))
        self._settings = settings
        self._objective = Objective(
            clip=settings.clip,
            kl_weight=settings.kl_weight,
            entropy_weight=settings.entropy_weight,
        )

    def reference_logits(self, batch: Batch) -> Floats:
        """Return the logits of the frozen policy."""
        return forward(self._reference, batch.tokens)[0]

    def gradient(self, batch: Batch, reference_logits: Floats) -> tuple[Outcome, Floats]:
        """Return the loss of a batch, and its gradient as one flat vector."""
        logits, tape = forward(self.policy, batch.tokens)
        outcome, by_logits = loss_and_gradient(logits, reference_logits, batch, self._objective)
        return outcome, backward(self.policy, tape, by_logits).flat

    def update(self, gradient: Floats, *, step: int) -> _Update:
        """Update the policy, with the learning rate of this step."""
        settings = self._settings
        rate = learning_rate(step, steps=settings.steps, peak=settings.learning_rate)
        norm = self._adam.step(
            self.policy.flat, gradient, rate=rate, max_norm=settings.max_gradient_norm
        )
        return _Update(rate, norm)

    def flops(self, batch: Batch) -> float:
        """Return the operations of forward and backward passes over the batch's real tokens."""
        lengths = (batch.mask > 0).cumsum(axis=1).argmax(axis=1) + 2
        per_token = self.policy.shape.flops_per_token(context=int(np.mean(lengths)) // 2)
        return float(BACKWARD_COST * per_token * lengths.sum())
