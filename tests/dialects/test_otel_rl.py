"""A worker of otel_rl, recorded, has what it counted in the rows of its steps (ADR 15).

Recorded with ``emitters/otel_rl_worker.py``.
"""

from collections.abc import Mapping, Sequence

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from tests.dialects.decoded import NOW_NS, decoded

STEPS, TOKENS, AGES, MANY = 6, 12_000, 5, 5_000  # as in the emitter
STILL = STEPS // 2

ByStep = Mapping[str, Mapping[int | None, float]]


def by_step(order: Sequence[int]) -> ByStep:
    """The columns of a run that gets the requests in an order."""
    requests, aligner = decoded("otel_rl"), Run(AlignSettings())
    for place in order:
        aligner.add(requests[place], received_ns=NOW_NS)
    found: dict[str, dict[int | None, float]] = {}
    for row in aligner.close(NOW_NS, everything=True):
        for key, value in row.values.items():
            found.setdefault(key, {})[row.step] = value
    return found


@pytest.fixture(scope="module")
def run() -> ByStep:
    return by_step(range(len(decoded("otel_rl"))))


def test_a_counter_has_its_growth_and_its_rate_at_each_step(run: ByStep) -> None:
    tokens = "trainer/tokens/prompt"
    grown = {step: TOKENS if step != STILL else 0 for step in range(STEPS)}
    assert run[f"{tokens}/per_step"] == grown
    took = run["trainer/iteration/duration"]
    assert run[f"{tokens}/rate"] == {n: pytest.approx(grown[n] / took[n], rel=1e-3) for n in grown}
    assert max(run[tokens].values()) == sum(grown.values()) + STEPS  # one is counted after each


def test_a_histogram_has_each_measurement_of_a_step_a_zero_too(run: ByStep) -> None:
    assert run["trainer/age/count"] == dict.fromkeys(range(STEPS), AGES)
    assert run["trainer/age"] == dict.fromkeys(range(STEPS), (AGES - 1) / 2)


def test_a_step_with_more_measurements_than_fit_has_their_count_mean_and_quantiles(
    run: ByStep,
) -> None:
    last = STEPS - 1
    assert run["trainer/length/count"] == {**dict.fromkeys(range(last), 2), last: MANY}
    assert run["trainer/length"][last] == pytest.approx((MANY + 1) / 2)
    assert run["trainer/length/max"][last] == MANY
    assert run["trainer/length/p50"][last] == pytest.approx(MANY / 2, rel=0.02)
    assert run["trainer/length/p99"][last] == pytest.approx(MANY * 0.99, rel=0.02)


def test_an_up_down_counter_is_a_level(run: ByStep) -> None:
    assert all(1 <= level <= STEPS for level in run["trainer/depth"].values())
    assert "trainer/depth/per_step" not in run


def test_requests_that_come_again_in_any_order_change_nothing(run: ByStep) -> None:
    whole = range(len(decoded("otel_rl")))
    again = by_step([*whole, *reversed(whole)])
    counts = [key for key in run if key.endswith(("/per_step", "/count", "/rate"))]
    assert {key: again[key] for key in counts} == {key: run[key] for key in counts}
