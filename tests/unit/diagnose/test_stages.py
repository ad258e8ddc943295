"""Stage of the pipeline that a phase of an own name belongs to."""

import pytest

from otel_rl.diagnose.classify import stage_of


@pytest.mark.parametrize(
    ("role", "phase", "stage"),
    [
        ("trainer", "rollout_wait", "generator"),
        ("trainer", "wait_for_samples", "generator"),
        ("learner", "wait", "generator"),
        ("trainer", "sleep", "idle"),
        ("rollout", "request_wait", "idle"),
        ("trainer", "my_barrier", "trainer"),
        ("trainer", "update", "trainer"),
        ("trainer", "rank_barrier", "trainer"),
        ("trainer", "collector_wait", "generator"),
    ],
)
def test_a_wait_is_of_the_stage_that_it_is_for(role: str, phase: str, stage: str) -> None:
    assert stage_of(role, phase, "trainer") == stage
