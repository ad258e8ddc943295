"""Ranks that get more work than their peers: they take longer, and are not slow."""

import math
import random
from collections.abc import Callable

import pytest

from otel_rl.diagnose.advice import compared_with
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import AT, Series, changed, made

Of = Callable[[int], Series]


def noisy(of: Series, name: object, sigma: float = 0.04) -> Series:
    return lambda step: of(step) * math.exp(random.Random(f"{name} {step}").gauss(0, sigma))


def run(
    tokens: Of, seconds: Of, *, name: str = "tokens", step_s: Series | None = None
) -> RunHistory:
    """Four ranks, each with its work and the time that it takes."""
    ranks = range(4)
    workers = {(f"trainer/{name}", f"trainer/{n}"): noisy(tokens(n), ("tokens", n)) for n in ranks}
    spans = {("trainer", "train", n): noisy(seconds(n), ("train", n)) for n in ranks}
    rows = {f"trainer/{name}": lambda step: sum(tokens(n)(step) for n in ranks)}
    slowest: Series = lambda step: max(seconds(n)(step) for n in ranks) + 0.4  # noqa: E731
    return made(workers=workers, spans=spans, rows=rows, step_s=step_s or slowest)


def of_one(before: float, after: float, at: int = AT) -> Of:
    return lambda rank: changed(before, after if rank == 2 else before, at)


def causes(history: RunHistory) -> list[tuple[Kind, str | None, int | None]]:
    return [(one.kind, one.worker, one.since) for one in diagnose(history).causes]


@pytest.mark.parametrize("name", ["tokens", "tokens_trained", "perf/total_num_tokens", "samples"])
def test_a_rank_that_gets_more_is_named_and_is_no_straggler(name: str) -> None:
    history = run(of_one(9e4, 18e4), of_one(0.5, 1.0), name=name)
    assert causes(history) == [(Kind.UNEVEN_WORK, "trainer/2", AT)]
    (cause,) = diagnose(history).causes
    assert compared_with(cause) == "other workers of trainer in the same steps"


def test_a_rank_that_always_gets_more_is_named() -> None:
    history = run(of_one(9e4, 18e4, at=0), of_one(0.5, 1.0, at=0))
    assert causes(history) == [(Kind.UNEVEN_WORK, "trainer/2", None)]


def test_a_rank_that_takes_longer_for_the_same_work_is_a_straggler() -> None:
    history = run(of_one(9e4, 9e4), of_one(0.5, 1.0))
    assert causes(history) == [(Kind.STRAGGLER, "trainer/2", AT)]


def test_a_rank_that_takes_longer_than_its_work_is_both() -> None:
    history = run(of_one(9e4, 13.5e4), of_one(0.5, 2.5))
    assert {one[:2] for one in causes(history)} == {
        (Kind.UNEVEN_WORK, "trainer/2"),
        (Kind.STRAGGLER, "trainer/2"),
    }


def all_of(before: float, after: float) -> Of:
    return lambda rank: changed(before, after)


def drawn(rank: int) -> Series:
    return lambda step: 9e4 * random.Random(f"{rank} {step}").uniform(0.6, 1.6)


INNOCENT: dict[str, tuple[Of, Of]] = {
    "all ranks get twice as much on purpose": (all_of(9e4, 18e4), all_of(0.5, 1.0)),
    "it is drawn anew in each step": (drawn, all_of(0.5, 0.5)),
    "more of it takes no longer": (of_one(9e4, 18e4), all_of(0.5, 0.5)),
    "the difference is small": (of_one(9e4, 10e4), of_one(0.5, 0.55)),
    "ranks get different amounts": (lambda n: changed(9e4 + 4e4 * n, 9e4 + 4e4 * n), all_of(1, 1)),
}


def test_environments_that_take_as_many_samples_as_they_can_are_no_fault() -> None:
    slow = {n: noisy(changed(0.5, 1.0 if n == 2 else 0.5), ("tool", n)) for n in range(4)}
    workers = {("env/samples", f"env/{n}"): changed(8.0, 16.0 if n == 2 else 8.0) for n in slow}
    spans = {("env", "tool_call", n): of for n, of in slow.items()}
    found = causes(made(workers=workers, spans=spans))
    assert Kind.UNEVEN_WORK not in {kind for kind, *_ in found}


@pytest.mark.parametrize(("tokens", "seconds"), INNOCENT.values(), ids=INNOCENT)
def test_work_is_no_fault_if(tokens: Of, seconds: Of) -> None:
    assert causes(run(tokens, seconds)) == []
