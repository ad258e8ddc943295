"""Model parameters as one flat vector with named views.

Pushing weights, averaging gradients over ranks and an Adam step are each one operation on one
array, while the transformer reads its matrices by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Block", "Floats", "Parameters", "Shape"]

Floats: TypeAlias = npt.NDArray[np.floating]
"""float32 in the demo; the gradient check runs the same code in float64."""

MLP_EXPANSION = 4  # the usual ratio of a transformer's hidden layer to its width
INIT_SCALE = 0.08


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that define the layout of the parameter vector.

    Attributes:
        vocabulary: Number of tokens.
        positions: Longest sequence, prompt and completion together.
        width: Size of the residual stream; a multiple of ``heads``.
        heads: Attention heads per layer.
        layers: Transformer blocks.
    """

    vocabulary: int
    positions: int
    width: int
    heads: int
    layers: int

    @property
    def head_width(self) -> int:
        """Size of one head's queries, keys and values."""
        return self.width // self.heads

    def flops_per_token(self, context: int) -> int:
        """Multiply-adds, counted as two, of one token's forward pass over ``context`` tokens."""
        per_layer = 2 * self.width * self.width * (4 + 2 * MLP_EXPANSION)
        attention = 2 * 2 * context * self.width
        return self.layers * (per_layer + attention) + 2 * self.width * self.vocabulary


@dataclass(frozen=True, slots=True)
class Block:
    """Matrices of one transformer block."""

    attention_gain: Floats
    query_key_value: Floats
    attention_out: Floats
    mlp_gain: Floats
    mlp_in: Floats
    mlp_out: Floats


class Parameters:
    """Weights of one policy, or a gradient with respect to them.

    Attributes:
        shape: Sizes.
        flat: All values. Shared with the views.
    """

    def __init__(self, shape: Shape, flat: Floats) -> None:
        self.shape = shape
        self.flat = flat
        sizes = iter(_shapes(shape))
        offset = 0

        def take() -> Floats:
            nonlocal offset
            size = next(sizes)
            view = flat[offset : offset + prod(size)].reshape(size)
            offset += prod(size)
            return view

        self.tokens = take()
        self.positions = take()
        self.blocks = tuple(
            Block(take(), take(), take(), take(), take(), take()) for _ in range(shape.layers)
        )
        self.final_gain = take()
        self.head = take()

    @classmethod
    def random(cls, shape: Shape, rng: np.random.Generator) -> Parameters:
        """Make small normal matrices, and gains of one."""
        flat = rng.normal(0.0, INIT_SCALE, size(shape)).astype(np.float32)
        parameters = cls(shape, flat)
        for block in parameters.blocks:
            block.attention_gain[:] = 1.0
            block.mlp_gain[:] = 1.0
        parameters.final_gain[:] = 1.0
        return parameters

    @classmethod
    def from_bytes(cls, shape: Shape, raw: bytes) -> Parameters:
        """Make a writable copy of the result of :meth:`to_bytes`."""
        return cls(shape, np.frombuffer(raw, dtype=np.float32).copy())

    def to_bytes(self) -> bytes:
        """Return the vector as float32 in the machine's byte order: all processes share it."""
        return self.flat.astype(np.float32, copy=False).tobytes()

    def zeros(self) -> Parameters:
        """Make an empty gradient of the same type."""
        return Parameters(self.shape, np.zeros_like(self.flat))


def size(shape: Shape) -> int:
    """Number of parameters."""
    return sum(prod(each) for each in _shapes(shape))


def _shapes(shape: Shape) -> Iterator[tuple[int, ...]]:
    width = shape.width
    yield (shape.vocabulary, width)
    yield (shape.positions, width)
    for _ in range(shape.layers):
        yield (width,)
        yield (width, 3 * width)
        yield (width, width)
        yield (width,)
        yield (width, MLP_EXPANSION * width)
        yield (MLP_EXPANSION * width, width)
    yield (width,)
    yield (width, shape.vocabulary)
