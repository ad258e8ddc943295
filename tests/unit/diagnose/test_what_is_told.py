"""What is told of a run, and what looks like trouble but is none. Sizes are for the drawn exams."""

import random

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind, Verdict
from tests.unit.diagnose.made import AT, Series, changed, made

Spans = dict[tuple[str, str, int], Series]


def kinds(history: RunHistory, steps: tuple[int, int] | None = None) -> set[Kind]:
    return {cause.kind for cause in diagnose(history, steps).causes}


def only(history: RunHistory) -> Cause:
    (cause,) = diagnose(history).causes
    return cause


def ranks(phase: str, *of: Series, role: str = "trainer") -> Spans:
    return {(role, phase, index): one for index, one in enumerate(of)}


# Phases that take longer.


def test_steady_work_that_takes_up_little_more_of_the_time_is_told() -> None:
    history = made(spans=ranks("train", *[changed(0.04, 0.13)] * 2))
    assert kinds(history) == {Kind.SLOW_TRAINING}


def test_the_slowest_of_workers_that_are_all_different_is_no_straggler() -> None:
    assert kinds(made(spans=ranks("train", *[changed(s, s) for s in (0.4, 0.7, 0.48)]))) == set()


# Between processes.


def test_who_starves_since_when_and_by_how_much_is_said() -> None:
    spans = ranks("fetch_samples", *[changed(0.05, 0.4)] * 2)
    cause = only(made(spans=spans, waits=["fetch_samples"]))
    assert (cause.kind, cause.role, cause.phase, cause.since) == (
        Kind.STARVATION,
        "trainer",
        "fetch_samples",
        AT,
    )
    assert (cause.evidence[0].before, cause.evidence[0].after) == (0.05, 0.4)


def test_samples_that_become_much_older_grow_stale() -> None:
    cause = only(made(rows={"trainer/policy/staleness/mean": changed(1.0, 9.0)}))
    assert (cause.kind, cause.role, cause.since) == (Kind.STALENESS_GROWTH, "trainer", AT)


def test_a_wait_that_grows_slowly_is_no_starvation() -> None:
    spans = ranks("fetch_samples", lambda step: 0.05 + step / 80)
    assert kinds(made(spans=spans, waits=["fetch_samples"])) == set()


# What is learned.


@pytest.mark.parametrize("usual", [0.1, 0.6, 1.0, 1.3, 2.0, 7.7])
def test_a_policy_that_did_not_change_at_all_has_changed_where_it_did(usual: float) -> None:
    rows = {"trainer/entropy": changed(usual, usual / 10)}
    assert [one.since for one in diagnose(made(rows=rows)).causes] == [AT]


def test_a_reward_that_comes_back_has_not_dropped() -> None:
    def reward(step: int) -> float:
        return 1.0 - max(0, 20 - abs(step - 40)) / 40

    assert kinds(made(rows={"trainer/reward/mean": reward})) == set()


# Processes.


def test_a_device_that_is_suddenly_throttled_is_told() -> None:
    workers = {("trainer/gpu/throttled", f"trainer/{n}"): changed(0.001, 0.4 * n) for n in range(2)}
    cause = only(made(workers=workers))
    assert (cause.kind, cause.worker, cause.since) == (Kind.THROTTLED, "trainer/1", AT)


def test_a_device_that_is_throttled_as_much_as_ever_is_how_it_is() -> None:
    workers = {("trainer/gpu/throttled", "trainer/0"): changed(0.4, 0.6)}
    assert kinds(made(workers=workers)) == set()


def test_a_device_that_works_at_its_power_limit_is_not_throttled() -> None:
    workers = {("trainer/gpu/throttled/power_cap", "trainer/0"): changed(0.1, 1.0)}
    assert kinds(made(workers=workers)) == set()


@pytest.mark.parametrize("seed", [5, 9, 11])
def test_a_power_limit_that_always_moves_is_not_lowered(seed: int) -> None:
    chance = random.Random(seed)
    watts = [chance.choice([600.0, 650.0, 700.0]) for _ in range(80)]
    workers = {("trainer/gpu/power/limit", "trainer/0"): lambda step: watts[step]}
    assert kinds(made(workers=workers)) == set()


# What a diagnosis comes to.


def test_a_phase_of_no_known_work_that_takes_longer_is_a_slow_phase() -> None:
    spans = ranks("crunch", *[changed(0.2, 0.6)] * 3, role="worker")
    cause = only(made(spans=spans))
    assert (cause.kind, cause.role, cause.phase, cause.since) == (
        Kind.SLOW_PHASE,
        "worker",
        "crunch",
        AT,
    )


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.4, Verdict.HEALTHY), (2.0, Verdict.NO_CLEAR_CAUSE)]
)
def test_a_machine_on_which_everything_takes_longer_has_no_clear_cause(
    factor: float, verdict: Verdict
) -> None:
    spans: Spans = {}
    for phase, seconds in (("forward", 0.2), ("backward", 0.3), ("optimize", 0.1), ("pack", 0.2)):
        spans |= ranks(phase, *[changed(seconds, factor * seconds)] * 2)
    report = diagnose(made(step_s=changed(1.0, factor), spans=spans))
    assert report.verdict is verdict
    assert report.causes == []
    assert bool(report.symptoms) is (verdict is Verdict.NO_CLEAR_CAUSE)


def test_a_busy_machine_that_slows_some_work_more_than_other_has_no_clear_cause() -> None:
    spans: Spans = {}
    factors = {"forward": 1.4, "backward": 1.6, "optimize": 2.2, "pack": 2.6, "generate": 3.0}
    for phase, factor in factors.items():
        spans |= ranks(phase, *[changed(0.2, 0.2 * factor)] * 2)
    assert kinds(made(step_s=changed(1.0, 2.4), spans=spans)) == set()


def test_work_that_is_too_short_to_be_interrupted_does_not_make_a_busy_machine_quiet() -> None:
    spans: Spans = {}
    for phase, seconds in (("forward", 0.2), ("backward", 0.3), ("optimize", 0.1), ("pack", 0.2)):
        spans |= ranks(phase, *[changed(seconds, 2 * seconds)] * 2)
    for phase in ("dispatch", "copy", "tokenize", "count", "log"):
        spans |= ranks(phase, *[changed(1e-4, 1e-4)] * 2)
    assert kinds(made(step_s=changed(1.0, 2.0), spans=spans)) == set()


def test_work_that_takes_longer_by_much_less_is_no_part_of_what_takes_longer() -> None:
    spans = ranks("train", *[changed(0.1, 0.3)] * 2) | ranks(
        "generate", *[changed(0.3, 1.1)] * 2, role="generator"
    )
    assert kinds(made(spans=spans)) == {Kind.SLOW_TRAINING, Kind.SLOW_GENERATION}


def test_in_a_range_of_many_steps_the_change_is_found_where_it_is() -> None:
    history = made(spans=ranks("train", *[changed(0.2, 0.6)] * 2))
    (cause,) = diagnose(history, (20, 60)).causes
    assert (cause.kind, cause.since) == (Kind.SLOW_TRAINING, AT)
