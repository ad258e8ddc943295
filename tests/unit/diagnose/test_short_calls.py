"""Work of which a worker does many short pieces in a step, as a scorer that is called by answer."""

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import AT, changed, made

CALLS = 15


def scored(slow: set[int], took_s: float) -> RunHistory:
    """A run whose trainers wait for three scorers, some of which take longer for a call."""
    longer_s = CALLS * (took_s - 0.004)
    return made(
        step_s=changed(0.7, 0.7 + longer_s),
        spans={
            **{("trainer", "train", index): lambda step: 0.5 for index in range(2)},
            **{("trainer", "reward", index): changed(0.03, 0.03 + longer_s) for index in range(2)},
            **{
                ("reward", "reward", index): changed(0.004, took_s if index in slow else 0.004)
                for index in range(3)
            },
        },
        times={"reward/reward": CALLS},
    )


@pytest.mark.parametrize(("slow", "worker"), [({0}, "reward/0"), ({0, 1, 2}, None)])
def test_the_worker_is_named_and_not_who_waits_for_it(slow: set[int], worker: str | None) -> None:
    report = diagnose(scored(slow, 0.02), passed=True)
    assert [(one.kind, one.role, one.worker, one.since) for one in report.causes] == [
        (Kind.SLOW_REWARD, "reward", worker, AT)
    ]


def test_short_calls_that_add_little_to_a_step_are_no_cause() -> None:
    spans = {("reward", "reward", n): changed(0.004, 0.004 if n else 0.0045) for n in range(3)}
    history = made(step_s=lambda step: 0.7, spans=spans, times={"reward/reward": CALLS})
    assert not diagnose(history, passed=True).causes
