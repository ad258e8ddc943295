"""Runs of stock SDKs that stand: a push that nobody answers, a rank that loads for ever."""

from collections.abc import Iterator

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from otel_rl.records import ExperimentStatus

S = 1_000_000_000
STEPS, AHEAD_S, SILENT_S = 30, 4, 45
RANKS, MAKERS = range(3), range(3)


def _spans(second: int, answered: int) -> Iterator[SpanFacts]:
    """Yield the spans of a second: a step takes one, and the last step's push is not answered.

    Generators are served from a queue: they go on until it is full.
    """
    step = min(second, STEPS - 1)

    def span(role: str, index: int, phase: str, own_s: float, *, waits: bool = False) -> SpanFacts:
        return SpanFacts(step, role, phase, f"{role}/{index}", waits, 1, own_s, own_s, 0)

    if second < STEPS + AHEAD_S:
        for index in MAKERS:
            yield span("generator", index, "generate", 0.6)
        yield span("reward", 0, "reward", 0.1)
    if second < STEPS + AHEAD_S - 1:  # its last export comes earlier
        yield span("buffer", 0, "POST /put", 0.01)
        yield span("buffer", 0, "POST /put", 0.01)
    if second >= STEPS:
        return
    is_cut = second == STEPS - 1
    for rank in RANKS:
        yield span("trainer", rank, "train", 0.4)
        yield span("trainer", rank, "param_sync", 0.1)
        if not (is_cut and rank == 0):
            yield span("trainer", rank, "rl.loop", 0.01)
    if not is_cut:
        yield span("trainer", 0, "weight_sync", 0.01, waits=True)
    for index in MAKERS:
        if not is_cut or index < answered:
            yield span("generator", index, "POST /weights", 0.02)


def _history(answered: int) -> RunHistory:
    workers = [*(f"trainer/{i}" for i in RANKS), *(f"generator/{i}" for i in MAKERS), "reward/0"]
    return RunHistory(
        Facts(
            (100 + second) * S,
            min(second, STEPS - 1),
            [RowFacts(second, (100 + second) * S, {"loss": 1.0})] if second < STEPS - 1 else [],
            spans=[*_spans(second, answered)],
            lags=[(worker, 0.01) for worker in workers],
            status=ExperimentStatus.RUNNING,
        )
        for second in range(STEPS + SILENT_S)
    )


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_who_does_not_answer_a_push_is_named_and_not_who_pushes(answered: int) -> None:
    (cause,) = diagnose(_history(answered)).causes
    assert cause.kind is Kind.STALL
    assert cause.phase == "POST /weights"
    assert cause.role == "generator"
    assert cause.worker == ("generator/2" if answered == 2 else None)
    assert all(one in cause.words for one in [f"generator/{i}" for i in MAKERS[answered:]])
    assert "trainer/0" not in cause.words.partition(";")[2]


def test_all_ranks_that_are_held_up_are_named_if_two_snapshots_share_a_step() -> None:
    """The root of a broadcast waits with the rank that does not come; another rank goes on."""

    def spans(second: int) -> Iterator[SpanFacts]:
        for rank in RANKS:
            # Of the step that stands, one rank tells its part while the one before is in progress.
            step = second if second < STEPS else STEPS - 1
            if second < STEPS or (second == STEPS and rank == 2):
                yield SpanFacts(
                    step - (rank == 0), "trainer", "train", f"trainer/{rank}", False, 1, 0.5, 0.5, 0
                )

    (cause,) = diagnose(
        RunHistory(
            Facts(
                (100 + second) * S,
                min(second, STEPS),
                [RowFacts(second, (100 + second) * S, {"loss": 1.0})] if second < STEPS else [],
                spans=[*spans(second)],
                lags=[(f"trainer/{rank}", 0.01) for rank in RANKS],
                status=ExperimentStatus.RUNNING,
            )
            for second in range(STEPS + SILENT_S)
        )
    ).causes
    assert (cause.kind, cause.worker, cause.phase) == (Kind.STALL, None, "train")
    assert "trainer/0, trainer/1 came to no end of train" in cause.words


def test_a_rank_that_loads_for_ever_is_named_and_not_those_in_a_barrier() -> None:
    """The phases in which ranks are tell who waits for peers, and who for data."""
    opened = {0: ("collector_wait", "rank_barrier"), 1: ("collector_wait",), 2: ("param_sync",)}

    def facts(second: int) -> Facts:
        stands_s = second - STEPS + 0.5
        ages = {
            f"trainer/worker/phase/age/{phase}": [
                WorkerFacts(f"trainer/{rank}", None, 1, stands_s, 0)
                for rank in RANKS
                if phase in opened[rank]
            ]
            for phase in ("collector_wait", "rank_barrier", "param_sync")
        }
        has_train = RANKS if second < STEPS else (2,) if second == STEPS else ()
        step = min(second, STEPS)
        return Facts(
            (100 + second) * S,
            step,
            [RowFacts(second, (100 + second) * S, {"loss": 1.0})] if second < STEPS else [],
            workers=ages if second >= STEPS else {},
            spans=[
                SpanFacts(step, "trainer", "train", f"trainer/{rank}", False, 1, 0.5, 0.5, 0)
                for rank in has_train
            ],
            lags=[(f"trainer/{rank}", 0.01) for rank in RANKS],
            status=ExperimentStatus.RUNNING,
        )

    (cause,) = diagnose(RunHistory(map(facts, range(STEPS + SILENT_S)))).causes
    assert (cause.kind, cause.worker) == (Kind.STALL, "trainer/1")
    assert cause.phase == "collector_wait"
