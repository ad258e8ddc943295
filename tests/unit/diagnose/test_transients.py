"""Slowdowns of a live run with short steps: a host that is busy for a moment is no cause."""

import random
from collections.abc import Callable, Iterator

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, SpanFacts, StepFacts
from otel_rl.diagnose.history.run_history import GrowingHistory, RunHistory
from otel_rl.diagnose.result import Kind
from otel_rl.records import ExperimentStatus
from tests.support.slow import slow_after

STEP_S = 0.2
RUNNING, COMPLETE = ExperimentStatus.RUNNING, ExperimentStatus.COMPLETE

Took = Callable[[int, int], float]
"""Seconds that a step of a worker takes, by its index and the step."""


def snapshots(steps: int, took_s: Took, status: str) -> Iterator[Facts]:
    """Of three trainers that train and wait for each other, one a second or a step."""
    now_s, told_s, new = 1_000.0, 0.0, list[tuple[int, list[float]]]()
    for step in range(steps):
        new.append((step, [took_s(worker, step) for worker in range(3)]))
        now_s += max(new[-1][1])
        if now_s - told_s < 1 and step < steps - 1:
            continue
        time_ns, told_s = int(now_s * 1e9), now_s
        yield Facts(
            time_ns,
            step,
            steps=[
                StepFacts(
                    at, time_ns, [("trainer", "train", "trainer/0", max(of))], [], [], f"{at:032x}"
                )
                for at, of in new
            ],
            spans=[
                SpanFacts(at, "trainer", "train", f"trainer/{worker}", False, 1, one, one, 0)
                for at, of in new
                for worker, one in enumerate(of)
            ],
            status=status,
        )
        new.clear()


def slow_since(since: int) -> Took:
    noise = random.Random(4)
    return lambda worker, step: (
        STEP_S * noise.uniform(0.97, 1.03) * (3 if worker == 1 and step >= since else 1)
    )


@pytest.mark.parametrize(
    ("slow_steps", "status", "silent_s", "is_told"),
    [
        pytest.param(6, RUNNING, 0.0, False, id="for four seconds: it may be over in a moment"),
        pytest.param(20, RUNNING, 0.0, True, id="for twelve seconds"),
        pytest.param(6, COMPLETE, 0.0, True, id="at the end: no more will be known"),
        pytest.param(6, RUNNING, 30.0, True, id="then silence: no more may be known"),
    ],
)
def test_slowdown_of_a_run_that_goes_on_has_to_last(
    slow_steps: int, status: str, silent_s: float, *, is_told: bool
) -> None:
    history = RunHistory(snapshots(200, slow_since(200 - slow_steps), status))

    found = [(one.kind, one.worker) for one in diagnose(history, silent_s=silent_s).causes]

    assert (found == [(Kind.STRAGGLER, "trainer/1")]) == is_told
    assert is_told or not found


@pytest.mark.parametrize("seed", slow_after(2, range(6)))
def test_moments_of_a_busy_host_are_no_cause_of_a_live_run(seed: int) -> None:
    """Each slows another worker for one to four seconds."""
    chance = random.Random(seed)
    factors = {
        (worker, step): by
        for worker, first in enumerate((60, 150, 240))
        for by in [chance.uniform(1.5, 4)]
        for step in range(first, first + int(chance.uniform(1, 4) / (by * STEP_S)))
    }

    def took_s(worker: int, step: int) -> float:
        return STEP_S * chance.uniform(0.95, 1.05) * factors.get((worker, step), 1.0)

    growing = GrowingHistory()
    for seen, facts in enumerate(snapshots(300, took_s, RUNNING)):
        growing.add(facts)
        assert [one.words for one in diagnose(growing.history()).causes] == [], seen
