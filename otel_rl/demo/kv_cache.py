"""KV cache of the policy: keys and values are computed once per token, and kept in blocks.

A block holds the keys and values of a few neighbouring tokens. A full block is published under all
tokens up to its end, because its content depends on all of them. A published block without
references keeps its content until the space is needed: least recently used is evicted first.

    free -> referenced -> (published?) unreferenced, in LRU order -> evicted = free
                       -> (not published) free
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from otel_rl.demo.transformer import Block, Floats, Parameters, Shape, rms_norm, softmax

__all__ = ["BlockPool", "KvCache", "NoFreeBlock", "Sequences"]

Prefix = tuple[int, ...]


class NoFreeBlock(Exception):
    """No block is free: admit fewer sequences."""


class BlockPool:
    """Bookkeeping of a fixed number of blocks. One thread.

    Attributes:
        block_tokens: Tokens per block.
        queried_tokens: Prompt tokens looked up so far.
        hit_tokens: Of these, tokens found in the cache.
    """

    def __init__(self, *, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._blocks = blocks
        self._free = list(range(blocks))
        self._references = [0] * blocks
        self._prefix_of: dict[int, Prefix] = {}
        self._block_of: dict[Prefix, int] = {}
        self._unreferenced: OrderedDict[int, None] = OrderedDict()

    @property
    def limit_tokens(self) -> int:
        """Capacity in tokens."""
        return self._blocks * self.block_tokens

    @property
    def used_tokens(self) -> int:
        """Tokens in use by running sequences, without those kept for reuse."""
        return self.limit_tokens - self.available * self.block_tokens

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated now."""
        return len(self._free) + len(self._unreferenced)

    def shrink(self, blocks: int) -> None:
        """Remove this many blocks from the pool. No sequence may be running.

        Raises:
            NoFreeBlock: There are not so many free blocks.
        """
        taken = [self.allocate() for _ in range(blocks)]
        self._blocks -= len(taken)

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)

    def acquire(self, prompt: Sequence[int]) -> list[int]:
        """Reference the longest chain of published blocks that starts the prompt.

        The prompt's last token is always left out: its logits have to be computed.
        """
        found: list[int] = []
        for end in range(self.block_tokens, len(prompt), self.block_tokens):
            block = self._block_of.get(tuple(prompt[:end]))
            if block is None:
                break
            self._references[block] += 1
            self._unreferenced.pop(block, None)
            found.append(block)
        self.queried_tokens += len(prompt)
        self.hit_tokens += len(found) * self.block_tokens
        return found

    def allocate(self) -> int:
        """Reference a block with undefined content.

        Raises:
            NoFreeBlock: Release a sequence first.
        """
        if self._free:
            block = self._free.pop()
        elif self._unreferenced:
            block, _ = self._unreferenced.popitem(last=False)
            del self._block_of[self._prefix_of.pop(block)]
        else:
            raise NoFreeBlock
        self._references[block] = 1
        return block

    def publish(self, block: int, prefix: Sequence[int]) -> None:
        """Publish a full block for prompts that start with ``prefix``.

        If another block already has the same prefix, that one stays published.
        """
        key = tuple(prefix)
        if key not in self._block_of and block not in self._prefix_of:
            self._block_of[key] = block
            self._prefix_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Release references. The end of a chain is evicted before its start."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._prefix_of:
                    self._unreferenced[block] = None
                else:
                    self._free.append(block)

    def forget(self) -> None:
        """Unpublish everything: after a weight change every kept key and value is invalid."""
        self._block_of.clear()
        self._prefix_of.clear()
        self._free.extend(self._unreferenced)
        self._unreferenced.clear()


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
