"""Packs groups of samples as rectangles, and stages them in arrays that represent a device.

There is no accelerator here. The staging arrays are allocated once, like those of a device, and
each batch is copied into them: a real copy, of real size, from memory to memory.
"""

from collections.abc import Sequence

import numpy as np

from otel_rl.demo.control.messages import Group
from otel_rl.demo.learning.grpo import Batch, group_advantages
from otel_rl.demo.model import tokenizer

__all__ = ["Staging", "pack"]


def pack(groups: Sequence[Group], *, length: int) -> Batch:
    """Lay samples out as rows, padded on the right, with each token's advantage.

    Args:
        groups: At least one sample.
        length: Of the rows.
    """
    rows = sum(len(group.rewards) for group in groups)
    batch = Batch(
        tokens=np.full((rows, length), tokenizer.PAD, np.int64),
        mask=np.zeros((rows, length - 1), np.float32),
        behaviour=np.zeros((rows, length - 1), np.float32),
        advantages=np.zeros((rows, length - 1), np.float32),
    )
    row = 0
    for group in groups:
        prompt = group.completions.prompt_tokens
        for tokens, log_probabilities, advantage in zip(
            group.completions.tokens,
            group.completions.log_probabilities,
            group_advantages(np.array(group.rewards, np.float32)),
            strict=True,
        ):
            end = len(prompt) + len(tokens)
            batch.tokens[row, :end] = (*prompt, *tokens)
            # Position i of the rectangles refers to the choice of token i + 1.
            chosen = slice(len(prompt) - 1, end - 1)
            batch.mask[row, chosen] = 1.0
            batch.behaviour[row, chosen] = log_probabilities
            batch.advantages[row, chosen] = advantage
            row += 1
    return batch


class Staging:
    """Arrays on the "device", allocated once."""

    def __init__(self, *, rows: int, length: int) -> None:
        self._batch = Batch(
            tokens=np.zeros((rows, length), np.int64),
            mask=np.zeros((rows, length - 1), np.float32),
            behaviour=np.zeros((rows, length - 1), np.float32),
            advantages=np.zeros((rows, length - 1), np.float32),
        )

    def load(self, batch: Batch) -> Batch:
        """Copy a batch in; it is valid until the next call."""
        np.copyto(self._batch.tokens, batch.tokens)
        np.copyto(self._batch.mask, batch.mask)
        np.copyto(self._batch.behaviour, batch.behaviour)
        np.copyto(self._batch.advantages, batch.advantages)
        return self._batch
