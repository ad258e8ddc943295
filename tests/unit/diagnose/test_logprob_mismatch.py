"""Inference and training that disagree about the same tokens, and gaps that widen by themselves."""

import math
import random
from collections.abc import Callable

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.result import Cause, Kind
from tests.unit.diagnose.made import AT, Series, changed, made
from tests.unit.diagnose.worlds import World

TRL = "trainer/sampling/sampling_logp_difference/mean"

# As the programs name it: a usual value, and one that is a fault.
NAMES = {
    "trainer/policy/kl/rollout": (0.0008, 0.02),
    "trainer/rollout_corr/kl": (-0.0006, 0.015),
    "trainer/rollout_corr/k3_kl": (0.0008, 0.02),
    "trainer/training/rollout_probs_diff_mean": (0.006, 0.05),
    TRL: (0.012, 0.09),
    "trainer/mismatch_kl/mean": (0.0009, 0.03),
    "trainer/train/train_rollout_logprob_abs_diff": (0.02, 0.2),
    "trainer/policy/rollout_train_logprobs_abs_diff_mean": (0.015, 0.15),
}


def noisy(of: Series, sigma: float = 0.15) -> Series:
    return lambda step: of(step) * math.exp(random.Random(f"gap {step}").gauss(0, sigma))


def gaps(history: RunHistory) -> list[Cause]:
    return [one for one in diagnose(history).causes if one.kind is Kind.LOGPROB_MISMATCH]


@pytest.mark.parametrize("key", NAMES)
def test_a_gap_that_opens_at_once_is_told_whatever_the_program_calls_it(key: str) -> None:
    (cause,) = diagnose(made(rows={key: noisy(changed(*NAMES[key]))})).causes
    assert (cause.kind, cause.since) == (Kind.LOGPROB_MISMATCH, AT)
    assert cause.evidence[0].key == key


@pytest.mark.parametrize("key", NAMES)
def test_a_gap_that_stays_as_it_is_is_no_fault(key: str) -> None:
    usual, _ = NAMES[key]
    assert diagnose(made(rows={key: noisy(lambda step: usual)})).causes == []


def test_a_gap_that_runs_away_is_told() -> None:
    runs = noisy(lambda step: 0.001 * math.exp(max(0, step - AT) / 8))
    (cause,) = diagnose(made(rows={"trainer/mismatch_kl/mean": runs})).causes
    assert cause.kind is Kind.LOGPROB_MISMATCH
    assert abs((cause.since or 0) - AT) <= 8


INNOCENT: dict[str, Callable[[int], float]] = {
    "drifts with the policy": lambda step: 0.012 * (1 + 2 * step / 80),
    "warms up with the learning rate": lambda step: 0.03 * min(1.0, (step + 1) / 12),
    "comes and goes": lambda step: 0.015 * (1 + 0.6 * math.sin(step / 3)),
    "has one spike": lambda step: 0.4 if step == AT else 0.012,
    "is too small to matter": changed(1e-6, 1e-4),
    "is twice as wide": changed(0.012, 0.024),
}


@pytest.mark.parametrize("of", INNOCENT.values(), ids=INNOCENT)
def test_a_gap_is_no_fault_if_it(of: Series) -> None:
    assert diagnose(made(rows={TRL: noisy(of)})).causes == []


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("trainer/sample/age/versions/mean", 1.0, 4.0), ("trainer/learning_rate", 1e-6, 3e-6)],
    ids=["older samples", "larger steps"],
)
def test_a_gap_that_follows_from_a_change_on_purpose_is_no_fault(
    key: str, before: float, after: float
) -> None:
    rows = {TRL: noisy(changed(0.012, 0.05)), key: noisy(changed(before, after), 0.01)}
    assert gaps(made(rows=rows)) == []


@pytest.mark.parametrize(("wide", "is_told"), [(0.05, False), (0.14, True)])
def test_a_longer_batch_on_purpose_explains_a_wider_gap_but_not_any(
    wide: float, *, is_told: bool
) -> None:
    tokens = noisy(changed(7e5, 14e5), 0.01)
    rows = {TRL: noisy(changed(0.012, wide)), "trainer/tokens": tokens}
    assert bool(gaps(made(rows=rows))) == is_told


@pytest.mark.parametrize(("usual", "is_told"), [(0.3, False), (1.3, True)])
def test_a_gap_that_is_wide_from_the_first_step_on_is_told(usual: float, *, is_told: bool) -> None:
    found = gaps(made(rows={TRL: noisy(lambda step: usual)}))
    assert [(one.since, one.evidence[0].before) for one in found] == [(None, 0.4)] * is_told


def test_the_only_rank_with_a_gap_is_named() -> None:
    workers = {
        (TRL, f"trainer/{index}"): noisy(changed(0.012, 0.5 if index == 2 else 0.012))
        for index in range(4)
    }
    mean = noisy(changed(0.012, 0.13))
    (cause,) = gaps(made(rows={TRL: mean}, workers=workers))
    assert cause.worker == "trainer/2"
    assert "not of its peers" in cause.words


def test_a_gap_explains_a_reward_that_falls_after_it() -> None:
    def values(key: str, step: int, usual: float) -> float:
        gone = max(0.0, min(1.0, (step - AT) / 12))
        return usual * (1 - 0.7 * gone) if key.endswith("reward/mean") else usual

    facts = World(values=values, noise=0.1).facts()
    of = noisy(changed(0.012, 0.2))
    for one in facts:
        one.rows[0].values[TRL.replace("trainer", "learner")] = of(one.step)  # type: ignore[index]
    (cause,) = diagnose(RunHistory(facts)).causes
    assert cause.kind is Kind.LOGPROB_MISMATCH


def test_a_gap_is_told_with_what_to_look_at_next() -> None:
    report = diagnose(made(rows={TRL: noisy(changed(0.012, 0.09))}))
    assert any("next: the last weight transfer" in line for line in in_words(report))


@pytest.mark.parametrize(("times", "found"), [(4.0, False), (12.0, True)])
def test_a_kl_grows_with_the_square_of_the_difference(times: float, *, found: bool) -> None:
    rows = {"trainer/mismatch_kl": noisy(changed(0.0018, 0.0018 * times))}
    assert bool(gaps(made(rows=rows))) == found
