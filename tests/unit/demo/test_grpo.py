from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.demo.grpo import Batch, Objective, group_advantages, loss_and_gradient
from otel_rl.demo.transformer import Floats, softmax

PLAIN = Objective(clip=0.2, kl_weight=0.0)
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 5, 6))
TOKENS = RNG.integers(0, 6, (3, 5))


def log_probabilities(logits: Floats) -> Floats:
    chosen = np.take_along_axis(softmax(logits[:, :-1]), TOKENS[:, 1:, None], axis=-1)
    logs: Floats = np.log(chosen[..., 0])
    return logs


ON_POLICY = Batch(
    tokens=TOKENS,
    mask=np.ones((3, 4)),
    behaviour=log_probabilities(LOGITS),
    advantages=np.array([[1.0], [-1.0], [0.5]]).repeat(4, axis=1),
)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_advantages_of_a_group_have_mean_zero(rewards: list[float]) -> None:
    assert group_advantages(np.array(rewards)).mean() == pytest.approx(0, abs=1e-6)


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    assert not group_advantages(np.full(8, 0.7, np.float32)).any()


def test_the_better_sample_has_the_greater_advantage() -> None:
    low, high = group_advantages(np.array([0.2, 0.9]))
    assert (low, high) == pytest.approx((-1, 1))


def test_on_policy_the_loss_is_minus_the_mean_advantage() -> None:
    outcome, _ = loss_and_gradient(LOGITS, LOGITS, ON_POLICY, PLAIN)
    assert outcome.loss == pytest.approx(-ON_POLICY.advantages.mean())
    assert outcome.ratio == pytest.approx(1)
    assert outcome.clipped == 0


def test_kl_to_itself_is_zero() -> None:
    outcome, _ = loss_and_gradient(LOGITS, LOGITS, ON_POLICY, PLAIN)
    assert outcome.kl == pytest.approx(0, abs=1e-12)


def test_kl_to_another_policy_is_positive() -> None:
    outcome, _ = loss_and_gradient(LOGITS, LOGITS[::-1], ON_POLICY, PLAIN)
    assert outcome.kl > 0.1


def test_entropy_of_an_undecided_policy_is_the_logarithm_of_its_choices() -> None:
    outcome, _ = loss_and_gradient(np.zeros_like(LOGITS), LOGITS, ON_POLICY, PLAIN)
    assert outcome.entropy == pytest.approx(np.log(6))


def test_a_ratio_beyond_the_clip_moves_nothing_further() -> None:
    """The policy has grown likelier than the clip allows, on samples that were good."""
    far = replace(
        ON_POLICY, behaviour=ON_POLICY.behaviour - 1.0, advantages=np.abs(ON_POLICY.advantages)
    )
    outcome, gradient = loss_and_gradient(LOGITS, LOGITS, far, PLAIN)
    assert outcome.clipped == 1
    assert not gradient.any()


def test_a_ratio_beyond_the_clip_still_moves_back() -> None:
    far = replace(
        ON_POLICY, behaviour=ON_POLICY.behaviour - 1.0, advantages=-np.abs(ON_POLICY.advantages)
    )
    outcome, gradient = loss_and_gradient(LOGITS, LOGITS, far, PLAIN)
    assert outcome.clipped == 0
    assert gradient[:, :-1].any()


def test_prompt_and_padding_have_no_gradient() -> None:
    mask = np.zeros((3, 4))
    mask[:, 1:3] = 1
    _, gradient = loss_and_gradient(LOGITS, LOGITS, replace(ON_POLICY, mask=mask), PLAIN)
    assert not gradient[:, [0, 3, 4]].any()
    assert gradient[:, 1:3].any()


def test_a_hopeless_ratio_stays_finite() -> None:
    hopeless = replace(ON_POLICY, behaviour=np.full((3, 4), -1e4))
    outcome, gradient = loss_and_gradient(LOGITS, LOGITS, hopeless, PLAIN)
    assert np.isfinite(outcome.loss)
    assert np.isfinite(gradient).all()
