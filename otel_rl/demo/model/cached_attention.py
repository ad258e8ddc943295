"""Attention over cached keys and values, which are computed once per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_rl.demo.model.kv_blocks import BlockPool
from otel_rl.demo.model.transformer import rms_norm, softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_rl.demo.model.parameters import Block, Floats, Parameters, Shape

__all__ = ["KvCache", "Sequences"]


class KvCache:
    """Keys and values of a limited number of tokens, in blocks that sequences share.

    Attributes:
        pool: Allocates the blocks.
    """

    def __init__(self, shape: Shape, *, limit_tokens: int, block_tokens: int) -> None:
        self.pool = BlockPool(blocks=limit_tokens // block_tokens, block_tokens=block_tokens)
        room = (shape.layers, self.pool.limit_tokens, shape.heads, shape.head_width)
        self._keys = np.zeros(room, np.float32)
        self._values = np.zeros(room, np.float32)

    def extend(
        self,
        parameters: Parameters,
        tokens: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
    ) -> Floats:
        """Run new tokens of several sequences, and cache their keys and values.

        Args:
            parameters: The policy; the same one that filled the cache so far.
            tokens: (rows, new) token ids.
            start: (rows,) number of cached tokens of each sequence.
            slots: (rows, length) cache position of each token of a sequence.

        Returns:
            Logits after the last new token, (rows, vocabulary).
        """
        places = start[:, None] + np.arange(tokens.shape[1])
        new_slots = np.take_along_axis(slots, places, axis=1)
        slots = slots[:, : int(places.max()) + 1]
        visible = np.arange(slots.shape[1]) <= places[:, :, None]
        stream = parameters.tokens[tokens] + parameters.positions[places]
        for layer, block in enumerate(parameters.blocks):
            stream = self._attend(layer, block, stream, new_slots, slots, visible)
            mlp_input, _ = rms_norm(stream, block.mlp_gain)
            stream = stream + np.maximum(mlp_input @ block.mlp_in, 0) @ block.mlp_out
        final_input, _ = rms_norm(stream[:, -1], parameters.final_gain)
        logits: Floats = final_input @ parameters.head
        return logits

    def _attend(
        self,
        layer: int,
        block: Block,
        stream: Floats,
        new_slots: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        visible: npt.NDArray[np.bool_],
    ) -> Floats:
        rows, new, width = stream.shape
        heads, head_width = self._keys.shape[2:]
        attention_input, _ = rms_norm(stream, block.attention_gain)
        projected = (attention_input @ block.query_key_value).reshape(
            rows, new, 3, heads, head_width
        )
        self._keys[layer, new_slots] = projected[:, :, 1]
        self._values[layer, new_slots] = projected[:, :, 2]
        queries = projected[:, :, 0].transpose(0, 2, 1, 3)
        keys = self._keys[layer, slots].transpose(0, 2, 3, 1)
        values = self._values[layer, slots].transpose(0, 2, 1, 3)
        scores = queries @ keys * head_width**-0.5
        attention = softmax(np.where(visible[:, None], scores, np.float32(-1e9)))
        mixed = (attention @ values).transpose(0, 2, 1, 3).reshape(rows, new, width)
        left: Floats = stream + mixed @ block.attention_out
        return left


class Sequences:
    """Sequences with one prompt that grow in parallel in the cache: the samples of one group.

    The first row computes the prompt and publishes it; the others find it in the cache. A row's
    allocation grows with it, because its length is not known in advance.

    Attributes:
        logits: After the prompt, (rows, vocabulary); valid after :meth:`prefill`.
    """

    logits: Floats

    def __init__(self, cache: KvCache, prompt: Sequence[int], *, rows: int, room: int) -> None:
        """Store the parameters; nothing is reserved yet.

        Args:
            cache: Cache of the keys and values.
            prompt: Token ids.
            rows: Number of samples.
            room: Longest sequence, prompt and completion together.
        """
        self._cache = cache
        self._prompt = list(prompt)
        self._rows = rows
        self._room = room
        self._blocks: list[list[int]] = []

    @staticmethod
    def fits(cache: KvCache, prompt: Sequence[int], *, rows: int) -> bool:
        """Report whether the prompt of so many rows fits now. Later it may not."""
        pool = cache.pool
        shared = (len(prompt) - 1) // pool.block_tokens
        own = pool.blocks_for(len(prompt)) - shared
        return shared + rows * own <= pool.available

    def prefill(self, parameters: Parameters) -> None:
        """Reserve blocks for the prompt and compute its uncached part.

        Raises:
            NoFreeBlock: The cache is too full; check :meth:`fits` first.
        """
        logits = [self._prefill_rows(parameters, 1)]
        if self._rows > 1:
            logits.append(self._prefill_rows(parameters, self._rows - 1))
        self.logits = np.concatenate(logits)

    def grow(self, rows: Sequence[int], tokens: int) -> bool:
        """Allocate blocks for rows of so many tokens.

        Returns:
            True if a row got a block, so that :meth:`slots` changed.

        Raises:
            NoFreeBlock: The cache is full; some rows may have got theirs.
        """
        pool, grown = self._cache.pool, False
        for row in rows:
            while len(self._blocks[row]) < pool.blocks_for(tokens):
                self._blocks[row].append(pool.allocate())
                grown = True
        return grown

    def slots(self) -> npt.NDArray[np.int64]:
        """Return each token's cache position, (rows, room); arbitrary if unallocated."""
        return self._slots_of(self._blocks or [[]] * self._rows)

    def release(self) -> None:
        """Release all blocks."""
        for blocks in self._blocks:
            self._cache.pool.release(blocks)
        self._blocks.clear()

    def _prefill_rows(self, parameters: Parameters, rows: int) -> Floats:
        """Prefill equal prompts: they find an equal prefix, so the rows form one rectangle."""
        pool = self._cache.pool
        added = []
        for _ in range(rows):
            blocks = pool.acquire(self._prompt)
            cached = len(blocks) * pool.block_tokens
            missing = pool.blocks_for(len(self._prompt)) - len(blocks)
            blocks += [pool.allocate() for _ in range(missing)]
            added.append(blocks)
        self._blocks += added
        tokens = np.tile(np.array(self._prompt[cached:], np.int64), (rows, 1))
        start = np.full(rows, cached, np.int64)
        logits = self._cache.extend(parameters, tokens, start, self._slots_of(added))
        for blocks in added:
            for place in range(len(self._prompt) // pool.block_tokens):
                pool.publish(blocks[place], self._prompt[: (place + 1) * pool.block_tokens])
        return logits

    def _slots_of(self, blocks: list[list[int]]) -> npt.NDArray[np.int64]:
        size = self._cache.pool.block_tokens
        first = np.zeros((len(blocks), self._cache.pool.blocks_for(self._room)), np.int64)
        for row, owned in enumerate(blocks):
            first[row, : len(owned)] = owned
        table = first[:, :, None] * size + np.arange(size)
        return table.reshape(len(blocks), -1)[:, : self._room]
