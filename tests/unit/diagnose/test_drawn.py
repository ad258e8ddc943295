"""Faults drawn from seeds, in runs of any names, shape and instrumentation: how many are right."""

import random
from collections.abc import Callable

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.result import Diagnosis, Kind, Verdict
from tests.support.slow import examples, slow_after
from tests.unit.diagnose.drawn import Drawn, Style, drawn

RUNS = 15

Made = tuple[Drawn, str]
"""A run, and its faulty worker."""


def some(kind: str, seed: int, *, styles: tuple[Style, ...] = (Style.SPANS, Style.PHASES)) -> Made:
    chance = random.Random(f"{kind} {seed}")
    run = drawn(10_000 + seed, chance.choice(styles))
    at = int(run.steps * chance.uniform(0.3, 0.6))
    factor = chance.uniform(2.2, 5)
    rare = {step for step in range(run.steps) if chance.random() < 0.1}
    when: dict[str, Callable[[int], bool]] = {
        "from then on": lambda step: step >= at,
        "every third": lambda step: step >= at and step % 3 == 0,
        "every third from the start": lambda step: step % 3 == 1,
        "rarely": lambda step: step in rare,
        "for a while": lambda step: at <= step < at + 12,
    }
    if kind in when:
        place = chance.randrange(3)
        if run.has_queue:  # work that takes less than others' is not felt
            place = max(range(3), key=lambda part: run.parts[part].usual_s)
        index, by = chance.randrange(run.parts[place].size), factor * (1 + (kind == "rarely"))
        run.slower = lambda p, i, s: by if (p, i) == (place, index) and when[kind](s) else 1.0
        return run, f"{run.parts[place].role}/{index}"
    run.steps = at + 10
    part = chance.choice(run.parts)
    worker = f"{part.role}/{chance.randrange(part.size)}"
    run.gone, run.hung_s = (worker, run.steps - 1), max(15.0, 16 * run.usual_s)
    return run, worker


def diagnosed(run: Drawn) -> Diagnosis:
    return diagnose(run.history(), passed=True)


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("from then on", 15),
        ("every third", 13),
        ("every third from the start", 15),
        ("rarely", 9),
        ("for a while", 14),
    ],
)
def test_a_slow_worker_is_named_first_however_often_it_is_slow(kind: str, least: int) -> None:
    found = 0
    for seed in range(RUNS):
        run, worker = some(kind, seed)
        causes = diagnosed(run).causes
        found += bool(causes) and causes[0].worker == worker
    assert found >= least


def test_what_has_passed_is_told_as_passed_and_only_if_it_is_asked_for() -> None:
    for seed in range(RUNS):
        run, worker = some("for a while", seed)
        history = run.history()
        (cause,) = [one for one in diagnose(history, passed=True).causes if one.worker == worker]
        if cause.until is None or cause.since is None:
            continue
        assert cause.until - cause.since <= 16
        assert worker not in {one.worker for one in diagnose(history).causes}


def test_a_run_that_hangs_is_told_in_any_style_with_the_worker_that_stopped_first() -> None:
    told = right = 0
    for seed in range(RUNS):
        run, worker = some("hangs", seed, styles=tuple(Style))
        first = diagnosed(run).causes[0]
        told += first.kind is Kind.STALL
        right += first.worker == worker
    assert (told, right) >= (15, 15)


def test_a_run_that_is_over_does_not_hang() -> None:
    for status in ("complete", "aborted", ""):
        run, _ = some("hangs", 1)
        history = run.history()
        history.status = status
        assert Kind.STALL not in {cause.kind for cause in diagnose(history).causes}


@pytest.mark.parametrize("style", slow_after(1, Style))
def test_nothing_is_said_of_healthy_runs_that_warm_up_and_save(style: Style) -> None:
    told = [
        (seed, cause.words)
        for seed in range(examples(40))
        for cause in diagnosed(drawn(20_000 + seed, style)).causes
    ]
    assert told == []


def test_a_checkpoint_that_takes_ten_times_as_long_is_named() -> None:
    right = 0
    for seed in range(RUNS):
        run = drawn(30_000 + seed, Style.SPANS)
        run.checkpoint_every = 10
        usual_s, at = run.usual_s, run.steps // 2
        run.extra_s = lambda step, usual_s=usual_s, at=at: 7.2 * usual_s * (step >= at)  # type: ignore[misc]
        causes = diagnosed(run).causes
        right += bool(causes) and causes[0].phase == "save_state"
    assert right >= 14


def test_a_counter_that_begins_with_the_fault_was_0_before() -> None:
    for seed in range(RUNS):
        run = drawn(40_000 + seed)
        at = run.steps // 2
        run.counted = lambda step, at=at: 20.0 + step % 3 if step >= at else -1.0
        first = diagnosed(run).causes[0]
        assert (first.kind, first.since) == (Kind.KV_THRASH, at)


def test_healthy_is_said_of_healthy_runs() -> None:
    verdicts = {diagnosed(drawn(50_000 + seed)).verdict for seed in range(RUNS)}
    assert verdicts == {Verdict.HEALTHY}
