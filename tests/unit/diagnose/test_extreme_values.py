"""Values of a program that are near the largest float: no diagnosis ends by their sums."""

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.result import Verdict
from tests.unit.diagnose.made import AT, changed, made

LARGEST = 1.7e308


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1e200, float("inf")])
@pytest.mark.parametrize(
    "key", ["trainer/loss", "phase/trainer/train", "count/tokens", "trainer/rl.samples", "reward"]
)
def test_a_run_with_values_near_the_largest_is_diagnosed(key: str, value: float) -> None:
    series = changed(1.0, value)
    history = made(rows={key: series}, workers={(key, "trainer/0"): series, (key, "t/1"): series})
    assert diagnose(history, passed=True).verdict in Verdict


@pytest.mark.parametrize("value", [LARGEST, float("nan"), float("inf")])
def test_a_number_of_workers_that_is_none_expects_nobody(value: float) -> None:
    rows = {"service/trainer/expected": changed(2.0, value)}
    history = made(rows=rows, lags={"trainer/0": 1.0, "trainer/1": 1.0})
    assert diagnose(history, passed=True).verdict in Verdict


def test_a_slower_phase_is_found_beside_extreme_values() -> None:
    history = made(
        step_s=changed(1.0, 3.0),
        rows={"trainer/loss": changed(1.0, LARGEST, 10)},
        spans={("trainer", "train", 0): changed(0.8, 2.8, AT)},
    )
    assert diagnose(history, passed=True).verdict is not Verdict.HEALTHY
