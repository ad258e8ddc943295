"""Runs that are killed: what made somebody kill them comes first, and then the crash."""

from dataclasses import replace

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from otel_rl.records import ExperimentStatus, WorkerFailure
from tests.unit.diagnose.made import AT, changed, made

S = 1_000_000_000
LAST = 79
RANKS = range(4)
WORKERS = [f"trainer/{rank}" for rank in RANKS]


def ended(history: RunHistory, *, error: str | None = None) -> RunHistory:
    """The run after all of its workers have gone at once, each without a word or by this error."""
    history.failures = [WorkerFailure(one, 2_000 * S, error, step=LAST) for one in WORKERS]
    history.status = ExperimentStatus.CRASHED
    return history


def slow(slow_at: int = AT) -> RunHistory:
    spans = {("trainer", "train", rank): changed(1.0, 3.0, slow_at) for rank in RANKS}
    return made(spans=spans, step_s=changed(1.0, 3.0, slow_at), lags=dict.fromkeys(WORKERS, 0.1))


def standing(for_s: int = 60) -> RunHistory:
    """All wait for one that does not end its work, and say so until they are gone."""
    spans = {("trainer", "train", rank): lambda step: 1.0 for rank in RANKS}
    after = [
        (
            float(second),
            Facts(
                0,
                LAST,
                workers={
                    "worker/phase/age/train": [WorkerFacts("trainer/2", None, 1, float(second), 0)]
                },
                lags=[(worker, 0.1) for worker in WORKERS],
                status="running",
            ),
        )
        for second in range(1, for_s)
    ]
    return made(spans=spans, lags=dict.fromkeys(WORKERS, 0.1), after=after)


def kinds(history: RunHistory) -> list[Kind]:
    return [one.kind for one in diagnose(history).causes]


def test_who_kills_a_slow_run_does_so_because_it_is_slow() -> None:
    assert kinds(ended(slow())) == [Kind.SLOW_TRAINING, Kind.CRASH]


def test_an_error_is_no_consequence_of_slow_work() -> None:
    assert kinds(ended(slow(), error="RuntimeError"))[0] is Kind.CRASH


def test_who_kills_a_run_that_stands_does_so_because_it_stands() -> None:
    stall, crash = diagnose(ended(standing())).causes
    assert (stall.kind, stall.worker, stall.phase) == (Kind.STALL, "trainer/2", "train")
    assert (crash.kind, crash.since) == (Kind.CRASH, LAST)
    assert "without it" not in stall.words


def test_a_timeout_that_ends_a_run_that_stands_comes_after_it() -> None:
    history = ended(standing(), error="DistBackendError")
    assert kinds(history) == [Kind.STALL, Kind.CRASH]


def test_a_run_that_was_killed_at_once_has_not_stood() -> None:
    assert kinds(ended(standing(3))) == [Kind.CRASH]


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_who_was_asked_to_end_is_no_fault(by: str) -> None:
    assert kinds(ended(standing(3), error=by)) == []
    assert kinds(ended(standing(), error=by)) == [Kind.STALL]


def test_an_error_comes_before_the_signals_that_answer_it() -> None:
    signals = [WorkerFailure(one, 1_000 * S, "SIGTERM", step=LAST) for one in WORKERS]
    error = replace(signals[3], error="ValueError", time_ns=1_001 * S)
    assert WorkerFailure.first_cause([*signals[:3], error]) == error
    assert signals[0].as_crash == f"interrupted by SIGTERM: trainer/0 after step {LAST}"
