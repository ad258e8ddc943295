"""Policy: a small decoder transformer in numpy, with a hand-written gradient.

Its parameters are one flat vector with named views: pushing weights, averaging gradients over ranks
and an Adam step are each one operation on one array, while the transformer reads its matrices by
name.

One pre-norm block, causal attention, learned positions, RMS norms without bias. Sequences are
padded on the right: causal attention never looks ahead, so padding cannot affect the positions
before it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating]
"""float32 in the demo; the gradient check runs the same code in float64."""

MLP_EXPANSION = 4  # the usual ratio of a transformer's hidden layer to its width
INIT_SCALE = 0.08


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that define the layout of the parameter vector.

    Attributes:
        positions: Longest sequence, prompt and completion together.
        width: Size of the residual stream; a multiple of ``heads``.
    """

    vocabulary: int
    positions: int
    width: int
    heads: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def flops_per_token(self) -> int:
        """Return the operations of training on a token: a multiplication and an addition are two.

        Forward and backward passes together cost three forward passes, over half of the positions.
        """
        matrices = 2 * self.width * self.width * (4 + 2 * MLP_EXPANSION)
        attention = 2 * 2 * (self.positions // 2) * self.width
        return 3 * (matrices + attention + 2 * self.width * self.vocabulary)


class Parameters:
    """Weights of one policy, or a gradient with respect to them.

    Attributes:
        flat: All values. Shared with the views, which have the names of ``_sizes``.
    """

    tokens: Floats
    positions: Floats
    attention_gain: Floats
    query_key_value: Floats
    attention_out: Floats
    mlp_gain: Floats
    mlp_in: Floats
    mlp_out: Floats
    final_gain: Floats
    head: Floats

    def __init__(self, shape: Shape, flat: Floats) -> None:
        self.shape = shape
        self.flat = flat
        offset = 0
        for name, size_ in _sizes(shape).items():
            setattr(self, name, flat[offset : offset + prod(size_)].reshape(size_))
            offset += prod(size_)

    @classmethod
    def random(cls, shape: Shape, rng: np.random.Generator) -> "Parameters":
        """Make small normal matrices, and gains of one."""
        flat = rng.normal(0.0, INIT_SCALE, size(shape)).astype(np.float32)
        parameters = cls(shape, flat)
        for gain in (parameters.attention_gain, parameters.mlp_gain, parameters.final_gain):
            gain[:] = 1.0
        return parameters

    @classmethod
    def from_bytes(cls, shape: Shape, raw: bytes) -> "Parameters":
        """Make a writable copy of the result of :meth:`to_bytes`."""
        return cls(shape, np.frombuffer(raw, dtype=np.float32).copy())

    def to_bytes(self) -> bytes:
        """Return the vector as float32 in the machine's byte order: all processes share it."""
        return self.flat.astype(np.float32, copy=False).tobytes()

    def zeros(self) -> "Parameters":
        return Parameters(self.shape, np.zeros_like(self.flat))


def size(shape: Shape) -> int:
    return sum(map(prod, _sizes(shape).values()))


def _sizes(shape: Shape) -> Mapping[str, tuple[int, ...]]:
    width = shape.width
    return {
        "tokens": (shape.vocabulary, width),
        "positions": (shape.positions, width),
        "attention_gain": (width,),
        "query_key_value": (width, 3 * width),
        "attention_out": (width, width),
        "mlp_gain": (width,),
        "mlp_in": (width, MLP_EXPANSION * width),
        "mlp_out": (MLP_EXPANSION * width, width),
        "final_gain": (width,),
        "head": (width, shape.vocabulary),
    }


NORM_EPSILON = 1e-5


Backward: TypeAlias = Callable[[Floats], Parameters]
"""Returns the gradient of every parameter for the gradient of a loss by the logits."""


def forward(parameters: Parameters, tokens: npt.NDArray[np.int64]) -> tuple[Floats, Backward]:
    """Compute the logits of the next token at every position.

    Args:
        parameters: The policy.
        tokens: (rows, length) token ids, padded on the right.

    Returns:
        Logits (rows, length, vocabulary), and their way back to the parameters.
    """
    rows, length = tokens.shape
    width, heads = parameters.shape.width, parameters.shape.heads
    scale = parameters.shape.head_width**-0.5
    entered: Floats = parameters.tokens[tokens] + parameters.positions[:length]
    attention_input, attention_scale = rms_norm(entered, parameters.attention_gain)
    projected = (attention_input @ parameters.query_key_value).reshape(
        rows, length, 3, heads, width // heads
    )
    queries, keys, values = (projected[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
    scores = queries @ keys.swapaxes(-1, -2) * scale
    scores = np.where(np.tri(length, dtype=bool), scores, scores.dtype.type(-1e9))
    attention = softmax(scores)
    mixed = (attention @ values).transpose(0, 2, 1, 3).reshape(rows, length, width)
    between = entered + mixed @ parameters.attention_out
    mlp_input, mlp_scale = rms_norm(between, parameters.mlp_gain)
    hidden = np.maximum(mlp_input @ parameters.mlp_in, 0)
    left = between + hidden @ parameters.mlp_out
    final_input, final_scale = rms_norm(left, parameters.final_gain)

    def backward(by_logits: Floats) -> Parameters:
        gradient = parameters.zeros()
        gradient.head[:] = _outer(final_input, by_logits)
        by_left = _norm_backward(
            by_logits @ parameters.head.T,
            left,
            final_scale,
            parameters.final_gain,
            gradient.final_gain,
        )
        gradient.mlp_out[:] = _outer(hidden, by_left)
        by_hidden = (by_left @ parameters.mlp_out.T) * (hidden > 0)
        gradient.mlp_in[:] = _outer(mlp_input, by_hidden)
        by_between = by_left + _norm_backward(
            by_hidden @ parameters.mlp_in.T,
            between,
            mlp_scale,
            parameters.mlp_gain,
            gradient.mlp_gain,
        )
        gradient.attention_out[:] = _outer(mixed, by_between)
        by_mixed = (by_between @ parameters.attention_out.T).reshape(rows, length, heads, -1)
        by_mixed = by_mixed.transpose(0, 2, 1, 3)
        by_values = attention.swapaxes(-1, -2) @ by_mixed
        by_attention = by_mixed @ values.swapaxes(-1, -2)
        centre = (by_attention * attention).sum(axis=-1, keepdims=True)
        by_scores = attention * (by_attention - centre) * scale
        by_queries = by_scores @ keys
        by_keys = by_scores.swapaxes(-1, -2) @ queries
        by_projected = np.stack([by_queries, by_keys, by_values], axis=2)
        by_projected = by_projected.transpose(0, 3, 2, 1, 4).reshape(rows, length, 3 * width)
        gradient.query_key_value[:] = _outer(attention_input, by_projected)
        by_entered = by_between + _norm_backward(
            by_projected @ parameters.query_key_value.T,
            entered,
            attention_scale,
            parameters.attention_gain,
            gradient.attention_gain,
        )
        gradient.positions[:length] = by_entered.sum(axis=0)
        np.add.at(gradient.tokens, tokens, by_entered)
        return gradient

    return final_input @ parameters.head, backward


def softmax(scores: Floats) -> Floats:
    """Compute probabilities along the last axis, without overflow."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalised: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return normalised


def rms_norm(stream: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """Scale the stream to unit root-mean-square times ``gain``; also returns the scale factor."""
    scale: Floats = 1.0 / np.sqrt((stream * stream).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return stream * scale * gain, scale


def _norm_backward(
    outcome: Floats, stream: Floats, scale: Floats, gain: Floats, gain_gradient: Floats
) -> Floats:
    """Compute the gradient through :func:`rms_norm`; fills ``gain_gradient``."""
    normalised = stream * scale
    gain_gradient[:] = (outcome * normalised).sum(axis=(0, 1))
    scaled = outcome * gain
    along = (scaled * normalised).mean(axis=-1, keepdims=True)
    entering: Floats = scale * (scaled - normalised * along)
    return entering


def _outer(inputs: Floats, outputs: Floats) -> Floats:
    """Compute the gradient of a matrix from ``inputs`` to ``outputs``, summed over positions."""
    return inputs.reshape(-1, inputs.shape[-1]).T @ outputs.reshape(-1, outputs.shape[-1])


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
