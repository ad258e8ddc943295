"""Merging in any grouping and order gives what adding one by one gives."""

import math

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.rows.reduce import Distribution, Moments
from otel_rl.records import Buckets
from otel_rl.semconv.spec import Reduction

_values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
_samples = st.lists(
    st.tuples(st.integers(-1000, 1000), st.integers(0, 10_000)), min_size=1, max_size=60
)


def _close(left: float | None, right: float | None) -> bool:
    assert left is not None
    assert right is not None
    return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-3)


@given(_values, st.data())
def test_any_split_of_the_values_merges_to_the_same_moments(
    values: list[float], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(values)))
    whole, left, right = Moments(), Moments(), Moments()
    for place, value in enumerate(values):
        whole.add(value, place)
        (left if place < cut else right).add(value, place)
    right.merge(left)
    for reduction in Reduction:
        assert _close(right.result(reduction), whole.result(reduction)), reduction


@given(_samples, st.randoms(use_true_random=False))
def test_arrival_order_of_integers_changes_nothing(
    samples: list[tuple[int, int]], random: st.DataObject
) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # Hypothesis draws a random.Random
    first, second = Moments(), Moments()
    for value, time_ns in samples:
        first.add(value, time_ns)
    for value, time_ns in shuffled:
        second.add(value, time_ns)
    for reduction in (Reduction.MEAN, Reduction.SUM, Reduction.MIN, Reduction.MAX):
        assert first.result(reduction) == second.result(reduction)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_off_by_at_most_its_bucket(values: list[float], q: float) -> None:
    width = 1.5
    found = Distribution()
    for value in values:
        index = math.ceil(value / width)
        found.add(
            count=1,
            total=value,
            minimum=value,
            maximum=value,
            buckets=Buckets.of([((index - 1) * width, index * width, 1)]),
        )
    estimate = found.quantile(q)
    assert estimate is not None
    rank = max(math.ceil(q * len(values)), 1)
    exact = sorted(values)[rank - 1]
    assert abs(estimate - exact) <= width + 1e-9
