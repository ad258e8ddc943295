"""A diagnosis of a run of which nothing is known but its spans."""

from collections.abc import Callable

import pytest

from otel_rl.bridge.diagnosis.trace_replay import retrace
from otel_rl.bridge.otlp.spans import decode_spans
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Diagnosis, Kind
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.unit.diagnose.traced import Traced

KEY = ExperimentKey("grpo", "traced")
BEGUN_NS = 1_700_000_000_000_000_000


def told(slower: Callable[[str, int, int], float], seed: int = 0) -> tuple[RunHistory, Diagnosis]:
    run = Traced(KEY, BEGUN_NS, slower=slower, seed=seed)
    batches = [
        Batch(KEY, Signal.TRACES, request.SerializeToString(), 0) for request in run.requests()
    ]
    history = RunHistory(
        Facts.decode(body) for body in retrace(map(decode_spans, reversed(batches)))
    )
    return history, diagnose(history)


@pytest.mark.parametrize(
    ("slower", "kind", "who"),
    [
        (lambda role, _, step: 8 if role == "judge" and step >= 25 else 1, Kind.SLOW_REWARD, None),
        (
            lambda role, index, step: 4 if (role, index) == ("learner", 1) and step >= 20 else 1,
            Kind.STRAGGLER,
            "learner/1",
        ),
        (
            lambda role, _, step: 3 if role == "actor" and step >= 30 else 1,
            Kind.SLOW_GENERATION,
            None,
        ),
    ],
    ids=["judges", "rank", "actors"],
)
def test_who_is_slow_is_named(
    slower: Callable[[str, int, int], float], kind: Kind, who: str | None
) -> None:
    history, report = told(slower)
    assert history.last == 49
    assert [step.step for step in history.steps] == list(range(50))
    assert report.causes[0].kind is kind
    assert report.causes[0].worker == who or who is None
    assert {worker for of in history.spans.values() for worker in of} == {
        *(f"actor/{n}" for n in range(3)),
        *(f"judge/{n}" for n in range(2)),
        *(f"learner/{n}" for n in range(2)),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_run_in_which_nothing_happens_is_healthy(seed: int) -> None:
    _, report = told(lambda _role, _index, _step: 1.0, seed)
    assert report.causes == []


def test_nothing_comes_of_nothing() -> None:
    assert retrace([]) == []
