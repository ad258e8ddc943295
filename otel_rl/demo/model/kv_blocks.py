"""Allocation of the KV cache's blocks, with reuse of common prefixes.

A block holds the keys and values of a few neighbouring tokens. A full block is published under all
tokens up to its end, because its content depends on all of them. A published block without
references keeps its content until the space is needed: least recently used is evicted first.

    free -> referenced -> (published?) unreferenced, in LRU order -> evicted = free
                       -> (not published) free
"""

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BlockPool", "NoFreeBlock"]

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
