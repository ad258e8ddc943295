"""Samples that wait longer for their use, and buffers that are full, which is no fault."""

from math import sin

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.result import Cause, Kind
from tests.unit.diagnose.made import AT, Series, made


def old_since(step: int, before: float, more: float, *, filling: int = 6) -> Series:
    """Return an age that grows from one level to another, as a queue becomes longer."""
    return lambda at: before + more * min(1.0, max(0.0, (at - step + 1) / filling))


def stale(ages: Series, waits: Series) -> list[Cause]:
    spans = {
        ("trainer", "collector_wait", 0): waits,
        ("trainer", "train", 0): lambda step: 1.0 + 0.02 * sin(7.3 * step),
    }
    history = made(
        rows={"trainer/sample/age/versions": ages}, spans=spans, waits=["collector_wait"]
    )
    return [one for one in diagnose(history).causes if one.kind is Kind.STALENESS_GROWTH]


@pytest.mark.parametrize(("wait_s", "is_found"), [(0.001, True), (0.2, False)])
def test_a_buffer_that_was_full_before_has_another_bound(wait_s: float, *, is_found: bool) -> None:
    """One whose trainers had to wait for samples has become full, as it should."""
    found = stale(old_since(AT, 2.8, 2.4), lambda _: wait_s)
    assert [abs(cause.since - AT) <= 3 for cause in found if cause.since] == [True] * is_found


def test_ages_that_repeat_from_push_to_push_are_compared_by_their_mean() -> None:
    def ages(step: int) -> float:
        young = (4.9, 4.0, 4.0, 8.0) if step >= AT else (0.0, 4.0, 4.0, 3.3)
        return young[step % 4]

    assert len(stale(ages, lambda _: 0.001)) == 1


def test_samples_that_are_older_by_less_than_two_versions_are_of_one_bound() -> None:
    assert not stale(old_since(AT, 1.8, 1.2), lambda _: 0.001)
