import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from otel_rl.demo.kv_cache import BlockPool, NoFreeBlock
from tests.slow import examples


def fill(pool: BlockPool, prompt: tuple[int, ...]) -> list[int]:
    """What a sequence does: find what is cached, allocate the rest, publish the full blocks."""
    blocks = pool.acquire(prompt)
    while len(blocks) < pool.blocks_for(len(prompt)):
        blocks.append(pool.allocate())
    for place in range(len(prompt) // pool.block_tokens):
        pool.publish(blocks[place], prompt[: (place + 1) * pool.block_tokens])
    return blocks


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(blocks=4, block_tokens=2)
    old, new = (1, 1, 9), (2, 2, 9)
    pool.release(fill(pool, old))
    pool.release(fill(pool, new))
    pool.release(fill(pool, (3, 3, 3, 3, 3, 3)))  # takes the two free blocks and one more
    assert pool.acquire(old) == []
    assert len(pool.acquire(new)) == 1


def test_a_referenced_block_is_never_evicted() -> None:
    pool = BlockPool(blocks=2, block_tokens=2)
    held = fill(pool, (1, 1, 2, 2))
    with pytest.raises(NoFreeBlock):
        pool.allocate()
    pool.release(held)
    assert pool.allocate() in held


def test_a_block_is_only_reused_after_all_the_tokens_before_it() -> None:
    pool = BlockPool(blocks=8, block_tokens=2)
    fill(pool, (1, 1, 5, 5))
    fill(pool, (2, 2))
    assert len(pool.acquire((2, 2, 5, 5, 9))) == 1


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    pool = BlockPool(blocks=8, block_tokens=2)
    fill(pool, (1, 1, 2, 2))
    assert len(pool.acquire((1, 1, 2, 2))) == 1


class PoolMachine(RuleBasedStateMachine):
    """No block is lost and none has two owners, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(blocks=6, block_tokens=2)
        self.held: list[tuple[tuple[int, ...], list[int]]] = []

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple))
    def begin(self, prompt: tuple[int, ...]) -> None:
        if self.pool.blocks_for(len(prompt)) <= self.pool.available:
            self.held.append((prompt, fill(self.pool, prompt)))

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 100))
    def end(self, place: int) -> None:
        _, blocks = self.held.pop(place % len(self.held))
        self.pool.release(blocks)

    @rule()
    def change_weights(self) -> None:
        self.pool.forget()

    @invariant()
    def room_adds_up(self) -> None:
        referenced = {block for _, blocks in self.held for block in blocks}
        assert self.pool.available + len(referenced) == 6
        assert self.pool.used_tokens == 2 * len(referenced)

    @invariant()
    def a_shared_block_has_one_prefix(self) -> None:
        content: dict[int, tuple[int, ...]] = {}
        for prompt, blocks in self.held:
            for place, block in enumerate(blocks):
                end = min(len(prompt), 2 * (place + 1))
                assert content.setdefault(block, prompt[:end]) == prompt[:end]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
