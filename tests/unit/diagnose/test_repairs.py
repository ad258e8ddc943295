"""Findings of runs that were not tuned on: each was wrong once."""

import pytest

from otel_rl.diagnose.classify import Work, work_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Kind, Verdict
from tests.unit.diagnose.made import AT, Series, changed, made


def versions(roles: tuple[str, str], behind: int) -> RunHistory:
    """The second role has each version of the first at once, and from AT on only later."""
    leader, follower = roles
    workers: dict[tuple[str, str], Series] = {
        (f"{follower}/policy/version", f"{follower}/0"): lambda step: float(
            step - behind if AT <= step < 78 else step
        ),
        (f"{leader}/policy/version", f"{leader}/0"): float,
    }
    return made(workers=workers)


@pytest.mark.parametrize("roles", [("trainer", "generator"), ("zeta", "alpha"), ("alpha", "zeta")])
def test_who_has_new_weights_first_leads_though_all_end_with_the_same(
    roles: tuple[str, str],
) -> None:
    first = diagnose(versions(roles, behind=6)).causes[0]
    assert (first.kind, first.role) == (Kind.STALE_POLICY, roles[1])


def calls(series: int, late: int, *, felt_s: float = 0.0) -> RunHistory:
    """So many callers, of which some wait longer from AT on, while the answer takes as long."""
    workers: dict[tuple[str, str], Series] = {
        ("judge/rpc/server/call/duration/Score", "judge/0"): lambda step: 0.01
    }
    for caller in range(series):
        waits = changed(0.02, 0.08 if caller < late else 0.02)
        workers["actor/rpc/client/call/duration/Score", f"actor/{caller}"] = waits
    return made(step_s=changed(1.0, 1.0 + felt_s), workers=workers)


@pytest.mark.parametrize(
    ("series", "late", "felt_s", "is_told"),
    [(35, 1, 0.0, False), (35, 1, 0.06, True), (35, 5, 0.0, True), (8, 1, 0.0, True)],
)
def test_one_odd_series_of_many_is_no_slow_network_unless_steps_feel_it(
    series: int, late: int, felt_s: float, *, is_told: bool
) -> None:
    kinds = [one.kind for one in diagnose(calls(series, late, felt_s=felt_s)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


def transfer(pull_longer_s: float) -> RunHistory:
    spans: dict[tuple[str, str, int], Series] = {
        ("trainer", "weight_push", 0): changed(0.1, 0.9),
        ("generator", "weight_pull", 0): changed(0.08, 0.08 + pull_longer_s),
    }
    return made(step_s=changed(1.0, 1.8), spans=spans)


@pytest.mark.parametrize(("pull_longer_s", "listed"), [(0.8, 1), (0.3, 2)])
def test_one_slow_transfer_of_weights_is_listed_once(pull_longer_s: float, listed: int) -> None:
    kinds = [cause.kind for cause in diagnose(transfer(pull_longer_s)).causes]
    assert kinds == [Kind.SLOW_SYNC] * listed


@pytest.mark.parametrize(
    ("role", "phase", "work"),
    [
        ("trainer", "checkpoint", Work.OTHER),
        ("learner", "save_state", Work.OTHER),
        ("rollout", "evaluate", Work.OTHER),
        ("trainer", "save_weights", Work.SYNC),
        ("trainer", "crunch", Work.TRAINING),
        ("trainer", "h2d_copy", Work.TRAINING),
    ],
)
def test_the_checkpoint_of_a_trainer_is_no_training(role: str, phase: str, work: Work) -> None:
    assert work_of(PhaseKey(role, phase)) is work


def test_most_of_the_time_of_a_step_is_that_since_it_changed() -> None:
    history = made(step_s=changed(1.0, 2.5, at=70))
    for step in history.steps:
        phase, seconds = ("sync", 1.5) if step.step >= 70 else ("train", 0.0)
        step.path.append(("trainer", phase, "trainer/0", seconds))  # type: ignore[attr-defined]
    report = diagnose(history)
    assert report.verdict is not Verdict.HEALTHY
    assert report.bound is not None
    assert report.bound[1] == "rl.loop"
    assert report.bound[2] == pytest.approx(2.5 / 4)
