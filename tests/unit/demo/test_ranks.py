import secrets
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from otel_rl.demo.grpo import Ranks
from otel_rl.demo.rpc import KEY_VARIABLE, listen


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """Three ranks over real loopback connections."""
    monkeypatch.setenv(KEY_VARIABLE, secrets.token_hex(16))
    listener, address = listen()
    with ThreadPoolExecutor(3) as pool, listener:
        gathering = pool.submit(Ranks.gather, listener, count=3)
        joining = [pool.submit(Ranks.join, address) for _ in range(2)]
        return [gathering.result(60), *(each.result(60) for each in joining)]


def test_every_rank_gets_the_same_mean(ranks: list[Ranks]) -> None:
    values = [np.full(4, value, np.float32) for value in (1.0, 2.0, 6.0)]
    with ThreadPoolExecutor(3) as pool:
        means = list(pool.map(lambda rank, value: rank.average(value), ranks, values))
    for mean in means:
        np.testing.assert_array_equal(mean, np.full(4, 3.0, np.float32))


def test_what_rank_0_decides_all_do(ranks: list[Ranks]) -> None:
    with ThreadPoolExecutor(3) as pool:
        decisions = list(
            pool.map(lambda rank, go: rank.agree(go_on=go), ranks, [False, True, True])
        )
    assert decisions == [False, False, False]


def test_nobody_passes_a_barrier_before_the_last_has_come(ranks: list[Ranks]) -> None:
    with ThreadPoolExecutor(2) as pool:
        early = [pool.submit(rank.barrier) for rank in ranks[:2]]
        assert not any(each.done() for each in early)
        ranks[2].barrier()
        for each in early:
            each.result(60)
