"""Queues that are full: who fills them waits, and no step takes longer because of that."""

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, StepFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.records import ExperimentStatus

S = 1_000_000_000
STEPS, FULL = 60, 30


def _history(
    train_s: tuple[float, float],
    get_s: tuple[float, float],
    get: str = "POST /get",
    *,
    is_wait: bool = False,
) -> RunHistory:
    """Make a run whose calls to its buffer take long from a step on.

    Args:
        train_s: Time of a trainer's work before and since that step, in s.
        get_s: Time for which it waits for samples, in s.
        get: Name of its span for that.
        is_wait: Whether the span says that it only waits.
    """
    now_s, facts = 100.0, []
    for step in range(STEPS):
        since = int(step >= FULL)
        train, waited = (of[since] * (1 + 0.01 * (step % 3)) for of in (train_s, get_s))
        put = (0.01, 0.35)[since] * (1 + 0.02 * (step % 4))
        now_s += train + waited + 0.1
        at_ns = int(now_s * S)

        def span(role: str, index: int, phase: str, own_s: float, step: int = step) -> SpanFacts:
            return SpanFacts(step, role, phase, f"{role}/{index}", False, 1, own_s, own_s, 0)

        spans = [
            span("trainer", 0, get, waited)._replace(is_wait=is_wait),
            span("trainer", 0, "train", train),
            span("trainer", 0, "rl.loop", 0.1),
        ]
        for index in range(3):
            spans += [
                span("generator", index, "generate", 0.4),
                span("generator", index, "POST /put", put),
                span("buffer", 0, "POST /put", put - 0.005),
            ]
        path = [
            ("trainer", get, "trainer/0", waited),
            ("trainer", "train", "trainer/0", train),
        ]
        facts.append(
            Facts(
                at_ns,
                step,
                [RowFacts(step, at_ns, {"loss": 1.0})],
                [StepFacts(step, at_ns, path, path, [], "")],
                spans=spans,
                lags=[(worker, 0.01) for worker in ("trainer/0", "buffer/0", "generator/0")],
                status=ExperimentStatus.RUNNING,
            )
        )
    return RunHistory(facts)


@pytest.mark.parametrize("train_s", [(0.5, 0.5), (0.5, 0.56)], ids=["same", "busier host"])
def test_a_full_buffer_is_no_fault(train_s: tuple[float, float]) -> None:
    assert not diagnose(_history(train_s, (0.02, 0.02))).causes


@pytest.mark.parametrize("get", ["wait_for_generation", "wait_for_reward", "get_batch"])
def test_a_wait_is_one_whatever_its_name_is(get: str) -> None:
    causes = diagnose(_history((0.5, 0.5), (0.3, 0.6), get, is_wait=True)).causes
    assert "POST /put" in {cause.phase for cause in causes}


def test_a_slow_buffer_is_one_if_the_trainer_waits_for_it() -> None:
    causes = diagnose(_history((0.5, 0.5), (0.3, 0.6))).causes
    assert "POST /put" in {cause.phase for cause in causes}


def test_a_slow_trainer_is_named_and_not_the_queue_before_it() -> None:
    (cause,) = diagnose(_history((0.5, 1.2), (0.02, 0.02))).causes
    assert (cause.role, cause.phase) == ("trainer", "train")
