from collections.abc import Sequence

import numpy as np
import pytest

from otel_rl.demo.decoding import DecodeBatch, Job
from otel_rl.demo.kv_cache import KvCache, NoFreeBlock, Sequences
from otel_rl.demo.transformer import Parameters, Shape, forward, softmax

SHAPE = Shape(vocabulary=11, positions=16, width=16, heads=4, layers=2)
END = 2
PROMPT = (1, 5, 6, 7, 8, 9, 10, 3, 4, 5)


@pytest.fixture
def policy() -> Parameters:
    drawn = Parameters.random(SHAPE, np.random.default_rng(0))
    return Parameters(SHAPE, drawn.flat * 5)


@pytest.fixture
def cache() -> KvCache:
    return KvCache(SHAPE, limit_tokens=256, block_tokens=4)


def decode(cache: KvCache, policy: Parameters, *jobs: Job) -> DecodeBatch:
    batch = DecodeBatch(cache, policy, END, np.random.default_rng(1))
    for job in jobs:
        batch.add(job)
    batch.run()
    batch.release()
    return batch


def job(prompt: Sequence[int] = PROMPT, samples: int = 4) -> Job:
    return Job(prompt, samples=samples, max_tokens=6, temperature=1.0, top_p=1.0)


def full_log_probabilities(
    policy: Parameters, prompt: Sequence[int], tokens: Sequence[int]
) -> list[float]:
    """What the policy without any cache says of a completion."""
    whole = np.array([[*prompt, *tokens]])
    probabilities = softmax(forward(policy, whole)[0][0])
    start = len(prompt) - 1
    return [float(np.log(probabilities[start + i, token])) for i, token in enumerate(tokens)]


def assert_equal_to_full_forward(
    policy: Parameters, batch: DecodeBatch, jobs: Sequence[Job]
) -> None:
    for place, each in enumerate(jobs):
        for tokens, cached in zip(
            batch.completions(place), batch.log_probabilities(place), strict=True
        ):
            full = full_log_probabilities(policy, each.prompt, tokens)
            np.testing.assert_allclose(cached, full, atol=1e-4)


def test_generation_with_the_cache_equals_the_full_forward_pass(
    cache: KvCache, policy: Parameters
) -> None:
    jobs = [job(), job(PROMPT[:7], samples=2), job((1, 3, 3))]
    assert_equal_to_full_forward(policy, decode(cache, policy, *jobs), jobs)


def test_a_reused_prefix_gives_what_a_computed_one_gives(
    cache: KvCache, policy: Parameters
) -> None:
    decode(cache, policy, job())
    before = cache.pool.hit_tokens
    again = [job((*PROMPT[:8], 9, 9))]
    batch = decode(cache, policy, *again)
    assert cache.pool.hit_tokens - before == 4 * 8
    assert_equal_to_full_forward(policy, batch, again)


def test_a_group_computes_its_prompt_once(cache: KvCache, policy: Parameters) -> None:
    decode(cache, policy, job(samples=4))
    assert cache.pool.queried_tokens == 4 * len(PROMPT)
    assert cache.pool.hit_tokens == 3 * 8  # the last, partial block of four is never shared


def test_new_weights_never_meet_old_keys(cache: KvCache, policy: Parameters) -> None:
    decode(cache, policy, job())
    cache.pool.forget()
    newer = Parameters(SHAPE, policy.flat * 0.5)
    jobs = [job()]
    assert_equal_to_full_forward(newer, decode(cache, newer, *jobs), jobs)


def test_a_cache_under_pressure_evicts_and_still_computes_the_same(policy: Parameters) -> None:
    small = KvCache(SHAPE, limit_tokens=16, block_tokens=4)
    for digit in (3, 4, 5, 3, 4):
        jobs = [job((1, digit, digit, 9, 8, 7, 6, 5), samples=1)]
        assert jobs[0].fits(small)
        assert_equal_to_full_forward(policy, decode(small, policy, *jobs), jobs)


def test_all_room_comes_back(cache: KvCache, policy: Parameters) -> None:
    decode(cache, policy, job(), job(PROMPT[:5]))
    assert cache.pool.used_tokens == 0


def test_a_job_that_does_not_fit_says_so(policy: Parameters) -> None:
    small = KvCache(SHAPE, limit_tokens=20, block_tokens=4)
    assert not job(samples=4).fits(small)
    with pytest.raises(NoFreeBlock):
        Sequences(small, PROMPT, rows=4, room=16).prefill(policy)


def test_a_full_cache_throws_out_the_last_job_and_computes_the_first_as_ever(
    policy: Parameters,
) -> None:
    small = KvCache(SHAPE, limit_tokens=52, block_tokens=4)
    jobs = [job(samples=3), job((1, 3, 3, 8, 8, 9, 4, 5, 6), samples=3)]
    batch = decode(small, policy, *jobs)
    assert batch.preempted == {1}
    assert_equal_to_full_forward(policy, batch, jobs[:1])
    again = decode(small, policy, jobs[1])
    assert again.preempted == set()
    assert_equal_to_full_forward(policy, again, jobs[1:])
    assert small.pool.used_tokens == 0


def test_a_cache_can_lose_room_for_good(cache: KvCache, policy: Parameters) -> None:
    cache.pool.shrink(50)
    assert cache.pool.limit_tokens == 56
    assert cache.pool.used_tokens == 0
    jobs = [job()]
    assert_equal_to_full_forward(policy, decode(cache, policy, *jobs), jobs)


def test_every_completion_ends_with_the_mark_or_at_the_limit(
    cache: KvCache, policy: Parameters
) -> None:
    for tokens in decode(cache, policy, job(samples=12)).completions(0):
        assert END not in tokens[:-1]
        assert tokens[-1] == END or len(tokens) == 6
