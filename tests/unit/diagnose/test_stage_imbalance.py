"""Pipelines whose stages are unequal, and those that are not."""

import math
import random
from collections.abc import Callable, Mapping

import pytest

from otel_rl.diagnose.advice import compared_with
from otel_rl.diagnose.costs import cost_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import AT, Series, changed, made

Seconds = Callable[[int, int], Series]
"""By stage and replica."""


def noisy(of: Series, *name: object) -> Series:
    return lambda step: of(step) * math.exp(random.Random(f"{name} {step}").gauss(0, 0.03))


def lengths(stages: Mapping[int, float]) -> Seconds:
    return lambda stage, replica: lambda step: stages[stage]


def by_roles(
    seconds: Seconds, stages: int = 4, replicas: int = 2, name: str = "stage"
) -> RunHistory:
    """Each stage is a role: it computes, and waits for the longest."""
    spans = {
        (f"trainer_{name}{stage}", part, replica): _part(seconds(stage, replica), share, replica)
        for stage in range(stages)
        for replica in range(replicas)
        for part, share in (("forward", 0.3), ("backward", 0.7))
    }
    return made(spans=spans, step_s=_longest(seconds, stages, replicas))


def _part(of: Series, share: float, replica: int) -> Series:
    return noisy(lambda step: share * of(step), share, replica)


def by_metric(seconds: Seconds, key: str = "pipeline_parallel/rank") -> RunHistory:
    """Ranks of one role tell their stages: two replicas of four."""
    place = {rank: divmod(rank, 2) for rank in range(8)}
    spans = {("trainer", "train", rank): noisy(seconds(*place[rank]), rank) for rank in place}
    told = {
        (f"trainer/{key}", f"trainer/{rank}"): (lambda step, stage=stage: float(stage))
        for rank, (stage, _) in place.items()
    }
    return made(spans=spans, workers=told, step_s=_longest(seconds, 4, 2))


def _longest(seconds: Seconds, stages: int, replicas: int) -> Series:
    return lambda step: (
        0.2
        + max(
            seconds(stage, replica)(step) for stage in range(stages) for replica in range(replicas)
        )
    )


def causes(history: RunHistory) -> list[tuple[Kind, str | None, str | None]]:
    return [(one.kind, one.role, one.worker) for one in diagnose(history).causes]


LAST = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.6}


@pytest.mark.parametrize("name", ["stage", "pp_", "pp_rank_", "pipeline_stage-"])
def test_a_long_stage_is_named_by_its_role(name: str) -> None:
    found = causes(by_roles(lengths(LAST), name=name))
    assert found == [(Kind.STAGE_IMBALANCE, f"trainer_{name}3", None)]


@pytest.mark.parametrize("key", ["pipeline_parallel/rank", "pp_rank", "dl/pipeline_parallel/rank"])
def test_a_long_stage_is_named_where_ranks_tell_theirs(key: str) -> None:
    (cause,) = diagnose(by_metric(lengths(LAST), key)).causes
    assert (cause.kind, cause.role) == (Kind.STAGE_IMBALANCE, "trainer")
    assert "stage 3 of the 4 stages of trainer takes 1.6 times as long" in cause.words
    assert compared_with(cause) == "the other stages in the same steps"


@pytest.mark.parametrize("make", [by_roles, by_metric])
def test_a_balanced_step_is_told(make: Callable[[Seconds], RunHistory]) -> None:
    history = make(lengths(LAST))
    (cause,) = diagnose(history).causes
    cost = cost_of(history, cause)
    assert cost is not None
    assert cost.step_s == pytest.approx(1.8)
    assert cost.without_s == pytest.approx(1.8 - (1.6 - 1.15), rel=0.05)
    assert "without it a step takes 1.3" in cause.words


@pytest.mark.parametrize(
    "stages", [{**LAST, 3: 1.12}, {0: 1.12, 1: 1.0, 2: 1.0, 3: 1.14}, dict.fromkeys(range(4), 1.0)]
)
@pytest.mark.parametrize("make", [by_roles, by_metric])
def test_embedding_and_loss_make_no_imbalance(
    make: Callable[[Seconds], RunHistory], stages: Mapping[int, float]
) -> None:
    assert causes(make(lengths(stages))) == []


@pytest.mark.parametrize("make", [by_roles, by_metric])
def test_a_slow_worker_is_no_long_stage(make: Callable[[Seconds], RunHistory]) -> None:
    def slow(stage: int, replica: int) -> Series:
        return changed(1.0, 2.0 if (stage, replica) == (2, 1) else 1.0, 0)

    assert Kind.STAGE_IMBALANCE not in {kind for kind, *_ in causes(make(slow))}


def test_a_stage_that_becomes_slow_is_slow() -> None:
    def slow(stage: int, replica: int) -> Series:
        return changed(1.0, 2.0 if stage == 2 else 1.0, AT // 2)

    (cause,) = diagnose(by_roles(slow)).causes
    assert (cause.kind, cause.role, cause.since) == (
        Kind.SLOW_TRAINING, "trainer_stage2", AT // 2,
    )  # fmt: skip


def test_roles_of_unlike_work_are_no_pipeline() -> None:
    spans = {
        ("stage_1", "generate", 0): lambda step: 1.0,
        ("stage_2", "train", 0): lambda step: 0.2,
    }
    assert causes(made(spans=spans)) == []


def test_the_only_worker_of_a_long_stage_is_no_straggler_besides() -> None:
    history = by_roles(lengths({**LAST, 3: 2.2}), replicas=1)
    (cause,) = diagnose(history).causes
    assert (cause.kind, cause.worker) == (Kind.STAGE_IMBALANCE, "trainer_stage3/0")
