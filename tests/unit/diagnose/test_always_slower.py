"""Workers that are slower than their peers from the first step on, and pipelines made so."""

from collections.abc import Mapping, Sequence

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind, Verdict
from tests.unit.diagnose.made import Series, made
from tests.unit.diagnose.test_evidence import jittered

RANKS = 4


def constant(value: float) -> Series:
    return lambda step: value


def ranks(
    times: Mapping[int, float],
    phase: str = "train",
    role: str = "trainer",
    workers: Mapping[tuple[str, str], Series] | None = None,
    more: Sequence[str] = (),
) -> RunHistory:
    """Ranks that take so many times as long; further phases take all the same."""
    spans = {
        (role, phase, rank): jittered(constant(0.5 * times.get(rank, 1.0))) for rank in range(RANKS)
    }
    spans |= {(role, name, rank): jittered(constant(0.4)) for name in more for rank in range(RANKS)}
    return made(spans=spans, workers=workers)


def told(history: RunHistory) -> list[tuple[Kind, str | None, int | None]]:
    return [(one.kind, one.worker, one.since) for one in diagnose(history).causes]


@pytest.mark.parametrize("rank", [0, RANKS - 1], ids=["embedding", "loss"])
def test_an_end_of_a_pipeline_takes_longer_by_design_as_far_as_anyone_knows(rank: int) -> None:
    found = diagnose(ranks({rank: 1.6}))
    assert (found.verdict, [*found.causes]) == (Verdict.CANNOT_TELL, [])
    (doubt,) = found.doubts
    assert doubt.startswith(f"train of trainer/{rank} takes 1.6 times as long as that of its peers")
    assert doubt.endswith(": it is slow, or has more to do as the end of a pipeline (no pp_rank)")


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_between_others_is_slow(rank: int) -> None:
    assert told(ranks({rank: 1.6})) == [(Kind.STRAGGLER, f"trainer/{rank}", None)]


@pytest.mark.parametrize("rank", [0, RANKS - 1])
def test_no_pipeline_is_made_so_that_its_end_takes_more_than_twice_as_long(rank: int) -> None:
    assert told(ranks({rank: 2.2})) == [(Kind.STRAGGLER, f"trainer/{rank}", None)]


def test_replicas_that_generate_are_no_pipeline() -> None:
    history = ranks({RANKS - 1: 1.6}, "generate", "generator")
    assert told(history) == [(Kind.SLOW_GENERATION, "generator/3", None)]


def in_stages(stage_of: Sequence[int]) -> Mapping[tuple[str, str], Series]:
    return {
        ("trainer/pp_rank", f"trainer/{rank}"): constant(stage)
        for rank, stage in enumerate(stage_of)
    }


def test_the_only_worker_of_a_long_stage_has_no_peers() -> None:
    history = ranks({RANKS - 1: 2.2}, workers=in_stages(range(RANKS)))
    assert told(history) == [(Kind.STAGE_IMBALANCE, "trainer/3", None)]


def test_a_slow_worker_of_an_end_is_slower_than_its_peers_there() -> None:
    history = ranks({RANKS - 1: 1.6}, workers=in_stages([0, 1, 1, 1]))
    assert told(history) == [(Kind.STRAGGLER, "trainer/3", None)]


@pytest.mark.parametrize("phase", ["crunch", "step_fn"])
def test_a_slow_worker_is_named_whatever_its_program_calls_the_work(phase: str) -> None:
    assert told(ranks({1: 1.6}, phase, "worker")) == [(Kind.STRAGGLER, "worker/1", None)]


@pytest.mark.parametrize("phase", ["save_checkpoint", "log_metrics", "crunch"])
def test_a_first_worker_does_more_for_all(phase: str) -> None:
    found = diagnose(ranks({0: 1.9}, phase, "worker", more=["train"]))
    assert found.verdict is Verdict.HEALTHY
