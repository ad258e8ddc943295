"""Computation of one trainer rank: loss, gradient, update. No telemetry, no other process."""

from dataclasses import dataclass

import numpy as np

from otel_rl.demo.learning.grpo import Batch, Objective, Outcome, loss_and_gradient
from otel_rl.demo.model import Floats, Parameters, backward, forward
from otel_rl.demo.settings import DemoSettings

__all__ = ["Adam", "Learner", "learning_rate"]

WARMUP_SHARE = 0.04
LAST_SHARE = 0.2

BACKWARD_COST = 3  # forward and backward together, in forward passes

DECAY_MEAN = 0.9
DECAY_SQUARE = 0.95  # shorter than the usual 0.999: a run has only a hundred steps
EPSILON = 1e-8


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


class Adam:
    """Adam over one flat vector, with a clipped gradient norm.

    Equal on every rank, because the gradients are.
    """

    def __init__(self, parameters: int) -> None:
        self._mean: Floats = np.zeros(parameters, np.float32)
        self._square: Floats = np.zeros(parameters, np.float32)
        self._steps = 0

    def step(self, weights: Floats, gradient: Floats, *, rate: float, max_norm: float) -> float:
        """Update ``weights`` in place.

        Args:
            weights: Flat parameter vector.
            gradient: Flat, not yet clipped.
            rate: Learning rate.
            max_norm: A gradient with a larger Euclidean norm is scaled down to it.

        Returns:
            The Euclidean norm of the change.
        """
        norm = float(np.linalg.norm(gradient))
        clipped = gradient * min(1.0, max_norm / (norm + EPSILON))
        self._steps += 1
        self._mean += (1 - DECAY_MEAN) * (clipped - self._mean)
        self._square += (1 - DECAY_SQUARE) * (clipped * clipped - self._square)
        mean = self._mean / (1 - DECAY_MEAN**self._steps)
        square = self._square / (1 - DECAY_SQUARE**self._steps)
        change = (rate * mean / (np.sqrt(square) + EPSILON)).astype(np.float32)
        weights -= change
        return float(np.linalg.norm(change))


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
