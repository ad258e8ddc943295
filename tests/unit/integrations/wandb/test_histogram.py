import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.integrations.wandb import Histogram

FINITE = st.floats(-1e9, 1e9)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=50))
def test_statistics_are_those_of_numpy(values: list[float]) -> None:
    expected = {
        "mean": np.mean(values),
        "min": min(values),
        "max": max(values),
        **{f"p{q}": np.percentile(values, q) for q in (50, 90, 99)},
    }
    assert Histogram(values).statistics == pytest.approx(expected, abs=1e-6)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=50))
def test_an_array_of_any_shape_is_as_good_as_a_list(values: list[float]) -> None:
    array = np.array(values).reshape(1, -1, 1)
    assert Histogram(array).statistics == pytest.approx(Histogram(values).statistics, abs=1e-6)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=200), st.integers(1, 40))
def test_bins_are_off_by_at_most_a_bin(values: list[float], bins: int) -> None:
    counts, edges = np.histogram(values, bins=bins)
    found = Histogram(np_histogram=(counts, edges)).statistics
    ordered = sorted(values)
    width = float(edges[1] - edges[0])
    assert found["min"] <= ordered[0] <= found["min"] + width * 1.001
    assert found["max"] - width * 1.001 <= ordered[-1] <= found["max"]
    assert abs(found["mean"] - float(np.mean(values))) <= width
    assert found["min"] <= found["p50"] <= found["p90"] <= found["p99"] <= found["max"]


@pytest.mark.parametrize("values", [[1.0, math.nan, 2.0], np.array([math.nan, 1.0])])
def test_one_nan_shows_in_every_statistic(values: object) -> None:
    assert all(math.isnan(value) for value in Histogram(values).statistics.values())


def test_infinities_are_extremes() -> None:
    found = Histogram([math.inf, 1.0, 2.0]).statistics
    assert (found["min"], found["p50"], found["max"]) == (1.0, 2.0, math.inf)


class Tensor:
    """As a half-precision tensor on a device: numpy takes it only after all of these."""

    def __init__(self, done: tuple[str, ...] = ()) -> None:
        self.done = done

    def detach(self) -> "Tensor":
        return Tensor((*self.done, "detach"))

    def float(self) -> "Tensor":
        return Tensor((*self.done, "float"))

    def cpu(self) -> "Tensor":
        return Tensor((*self.done, "cpu"))

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        if self.done != ("detach", "float", "cpu"):
            raise TypeError("cannot convert")
        return np.array([1.0, 3.0])


def test_a_tensor_on_a_device_is_read() -> None:
    assert Histogram(Tensor()).statistics["mean"] == 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence": "text"},
        {"sequence": [["a"]]},
        {"sequence": []},
        {"np_histogram": ([1, 2], [0, 1])},
        {"np_histogram": ([], [])},
        {"np_histogram": ([0], [0, 1])},
        {"np_histogram": 5},
        {},
    ],
)
def test_what_is_no_histogram_has_no_statistics_and_raises_nothing(
    wrong: dict[str, object],
) -> None:
    assert Histogram(**wrong).statistics == {}  # type: ignore[arg-type]  # wrong on purpose
