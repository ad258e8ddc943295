"""Trainers that wait for samples, because too few prompts come: generators wait, too."""

import pytest

from otel_rl.diagnose.detectors.workload import changes
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.explain import unexplained
from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.result import Cause, Evidence, Kind
from tests.unit.diagnose.made import AT, changed, made
from tests.unit.diagnose.test_evidence import jittered


def test_generators_that_wait_for_prompts_are_no_slow_transfer() -> None:
    spans = {
        ("generator", phase, index): jittered(of)
        for index in range(3)
        for phase, of in {
            "sync_coordination": changed(3e-5, 8.0),
            "weight_pull": lambda _: 0.02,
            "generate": lambda _: 0.1,
        }.items()
    }
    spans |= {
        ("trainer", phase, index): jittered(of)
        for index in range(2)
        for phase, of in {"collector_wait": changed(0.1, 9.0), "train": lambda _: 1.0}.items()
    }
    waits = ["sync_coordination", "weight_pull", "collector_wait"]
    history = made(step_s=changed(2.0, 12.0), spans=spans, waits=waits)
    assert [cause.kind for cause in diagnose(history).causes] == [Kind.STARVATION]


def test_trainers_that_wait_in_steps_that_take_no_time_are_told() -> None:
    spans = {("trainer", "collector_wait", 0): jittered(changed(0.1, 9.0))}
    history = made(step_s=lambda _: 0.0, spans=spans, waits=["collector_wait"])
    (cause,) = diagnose(history).causes
    assert cause.kind == Kind.STARVATION
    assert " ms of a step before and 9" in cause.words
    assert " s now, " in cause.words


@pytest.mark.parametrize(
    ("age", "is_told"), [(7.0, False), (2.0, True)], ids=["a full buffer", "a small buffer"]
)
def test_trainers_wait_after_a_larger_batch_when_the_buffer_has_run_dry(
    age: float, *, is_told: bool
) -> None:
    spans = {
        ("trainer", "collector_wait", index): jittered(changed(0.01, 2.4)) for index in range(2)
    }
    rows = {"trainer/num_tokens": changed(1e4, 2e4, AT - 11), "trainer/staleness": lambda _: age}
    step_s = jittered(lambda step: 1.7 if step < AT - 11 else 3.2 if step < AT else 5.6)
    history = made(AT + 14, step_s=step_s, spans=spans, rows=rows, waits=["collector_wait"])
    found = [cause.kind for cause in diagnose(history).causes]
    assert found == [Kind.STARVATION] * is_told


@pytest.mark.parametrize(("until", "is_told"), [(AT + 1, True), (None, False)])
def test_what_is_over_explains_nothing_that_has_begun_and_lasts(
    until: int | None, *, is_told: bool
) -> None:
    slow = Cause(
        Kind.SLOW_GENERATION,
        "slow",
        role="generator",
        since=5,
        until=until,
        evidence=[Evidence("time", "phase/generator/generate", None, 0.1, 0.7, "s")],
    )
    starved = Cause(
        Kind.STARVATION,
        "starved",
        role="trainer",
        since=AT,
        evidence=[Evidence("wait", "phase/trainer/wait", None, 0.1, 9.0, "s")],
    )
    found = [cause.kind for cause in unexplained([slow, starved])]
    assert (Kind.STARVATION in found) == is_told


@pytest.mark.parametrize(("scatter", "is_change"), [(0.1, True), (0.9, False)])
def test_counts_that_scatter_more_than_they_change_tell_no_change_on_purpose(
    scatter: float, *, is_change: bool
) -> None:
    def tokens(step: int) -> float:
        return changed(100.0, 125.0)(step) * (1 + scatter * ((step * 7 % 11) / 11 - 0.5))

    assert bool([*changes(made(rows={"trainer/tokens": tokens}))]) == is_change


def test_work_that_is_told_in_each_step_is_known_better_than_shares_of_a_total() -> None:
    key = "generator/tokens"
    history = made(
        workers={(key, "generator/0"): lambda step: 100.0 * (step < 1) + 200.0 * (step % 2)},
        rows={
            key: lambda step: 100.0 * (step + 1),
            f"{key}/rate": lambda _: 1.0,
            "trainer/perf/total_num_tokens": jittered(changed(100.0, 200.0)),
        },
    )
    whole = history.rows[key]
    history.rows[key] = Track()
    for step in (0, *range(1, 80, 2)):
        history.rows[key].add(step, whole.times_s[step], whole.values[step])
    assert any("2.0 times the tokens" in one for one in changes(history))


@pytest.mark.parametrize(("step_s", "is_starved"), [(1.7, False), (3.0, True)])
def test_trainers_that_wait_for_a_larger_batch_whose_count_is_spread_are_not_starved(
    step_s: float, *, is_starved: bool
) -> None:
    """A counter is exported once in some steps, so that its growth seems gradual."""

    def tokens(step: int) -> float:
        return 100.0 + 100.0 * min(1.0, max(0.0, (step - AT - 1) / 9))

    waits = {("trainer", "collector_wait", 0): jittered(changed(0.01, step_s - 1.0))}
    history = made(
        steps=100,
        step_s=jittered(changed(1.0, step_s)),
        spans=waits,
        waits=["collector_wait"],
        rows={"trainer/tokens": jittered(tokens)},
    )
    found = [cause.kind for cause in diagnose(history).causes]
    assert (Kind.STARVATION in found) == is_starved
