"""Adam over one flat vector, with a clipped gradient norm."""

import numpy as np

from otel_rl.demo.model.parameters import Floats

__all__ = ["Adam"]

DECAY_MEAN = 0.9
DECAY_SQUARE = 0.95  # shorter than the usual 0.999: a run has only a hundred steps
EPSILON = 1e-8


class Adam:
    """Moments of one optimiser. Equal on every rank, because the gradients are."""

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
