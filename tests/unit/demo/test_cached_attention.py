from collections.abc import Sequence

import numpy as np
import pytest

from otel_rl.demo.decoding import CacheFull, DecodeBatch, Job, KvCache
from otel_rl.demo.transformer import Parameters, Shape, forward, softmax

SHAPE = Shape(vocabulary=11, positions=16, width=16, heads=4)
END = 2
PROMPT = (1, 5, 6, 7, 8, 9, 10, 3, 4, 5)


@pytest.fixture
def policy() -> Parameters:
    drawn = Parameters.random(SHAPE, np.random.default_rng(0))
    return Parameters(SHAPE, drawn.flat * 5)


@pytest.fixture
def cache() -> KvCache:
    return KvCache(256)


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


def test_a_group_shares_its_prompt(cache: KvCache, policy: Parameters) -> None:
    decode(cache, policy, job(samples=4))
    assert cache.queried_tokens == 4 * len(PROMPT)
    assert cache.hit_tokens == 3 * 8  # whole blocks of four


def test_all_room_comes_back(cache: KvCache, policy: Parameters) -> None:
    decode(cache, policy, job(), job(PROMPT[:5]))
    assert cache.used_tokens == 0


def test_a_job_that_does_not_fit_says_so(policy: Parameters) -> None:
    small = KvCache(len(PROMPT) - 1)
    assert not small.has_room(len(PROMPT))
    with pytest.raises(CacheFull):
        DecodeBatch(small, policy, END, np.random.default_rng(1)).add(job(samples=4))


def test_a_full_cache_throws_out_the_last_job_and_computes_the_first_as_ever(
    policy: Parameters,
) -> None:
    small = KvCache(30)
    jobs = [job(samples=3), job((1, 3, 3, 8, 8, 9, 4, 5, 6), samples=3)]
    batch = decode(small, policy, *jobs)
    assert batch.preempted == {1}
    assert_equal_to_full_forward(policy, batch, jobs[:1])
    again = decode(small, policy, jobs[1])
    assert again.preempted == set()
    assert_equal_to_full_forward(policy, again, jobs[1:])
    assert small.used_tokens == 0


def test_every_completion_ends_with_the_mark_or_at_the_limit(
    cache: KvCache, policy: Parameters
) -> None:
    for tokens in decode(cache, policy, job(samples=12)).completions(0):
        assert END not in tokens[:-1]
        assert tokens[-1] == END or len(tokens) == 6
