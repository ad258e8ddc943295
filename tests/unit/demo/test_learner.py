import numpy as np
import pytest

from otel_rl.demo import DemoSettings, task
from otel_rl.demo.grpo import Learner, learning_rate, pack
from otel_rl.demo.messages import Completions, Group
from otel_rl.demo.transformer import Adam, Parameters

SETTINGS = DemoSettings(group_size=2, width=16)
PROMPT = tuple(task.encode("reverse the digits : 3 1 4 ="))
GOOD = (*task.encode("4 1 3")[1:], task.END)
BAD = (task.PAD, task.END)


def group() -> Group:
    completions = Completions(
        prompt="",
        prompt_tokens=PROMPT,
        tokens=(GOOD, BAD),
        log_probabilities=((-2.0, -2.5, -3.0, -3.5), (-1.0, -1.5)),
        policy_version=0,
    )
    return Group(completions, (1.0, 0.0))


def test_a_sample_is_laid_out_so_that_each_place_is_about_the_next_token() -> None:
    batch = pack([group()], length=SETTINGS.shape.positions)
    choosing = len(PROMPT) - 1
    assert batch.tokens[0, : len(PROMPT) + 4].tolist() == [*PROMPT, *GOOD]
    assert np.flatnonzero(batch.mask[0]).tolist() == list(range(choosing, choosing + 4))
    assert batch.behaviour[1, choosing : choosing + 2].tolist() == [-1.0, -1.5]
    assert batch.advantages[0, choosing] == pytest.approx(1)
    assert batch.advantages[1, choosing] == pytest.approx(-1)
    assert set(batch.tokens[1, len(PROMPT) + 2 :].tolist()) == {task.PAD}


def test_what_is_on_the_device_is_a_copy_of_the_batch() -> None:
    batch = pack([group()], length=SETTINGS.shape.positions)
    on_device = batch.copied()
    before = on_device.tokens.copy()
    batch.tokens[:] = 0
    np.testing.assert_array_equal(on_device.tokens, before)


def test_updates_make_the_rewarded_completion_likelier() -> None:
    checkpoint = Parameters.random(SETTINGS.shape, np.random.default_rng(0)).to_bytes()
    learner = Learner(SETTINGS, checkpoint)
    batch = pack([group()], length=SETTINGS.shape.positions)
    reference = learner.reference_logits(batch)
    losses = []
    for step in range(1, 6):
        outcome, gradient = learner.gradient(batch, reference)
        learner.update(gradient, step=step)
        losses.append(outcome.loss)
    assert losses[-1] < losses[0]


def test_flops_count_three_forward_passes_over_the_real_tokens() -> None:
    checkpoint = Parameters.random(SETTINGS.shape, np.random.default_rng(0)).to_bytes()
    batch = pack([group()], length=SETTINGS.shape.positions)
    tokens = 2 * len(PROMPT) + len(GOOD) + len(BAD)
    mean_context = tokens // 2 // 2
    expected = 3 * tokens * SETTINGS.shape.flops_per_token(mean_context)
    assert Learner(SETTINGS, checkpoint).flops(batch) == expected


def test_the_learning_rate_warms_up_peaks_and_ends_at_a_fifth() -> None:
    rates = [learning_rate(step, steps=100, peak=1.0) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.25)
    assert max(rates) == rates[3] == 1.0
    assert rates[-1] == pytest.approx(0.2)


def test_adam_never_follows_a_longer_gradient_than_allowed() -> None:
    """Adam forgets scale, so the clip shows in the second step, after a small gradient."""

    def second_change(max_norm: float) -> float:
        adam, weights = Adam(2), np.zeros(2, np.float32)
        adam.step(weights, np.array([1e-3, 1e-3]), rate=0.1, max_norm=max_norm)
        return adam.step(weights, np.array([-1e3, -1e3]), rate=0.1, max_norm=max_norm)

    assert second_change(max_norm=1e-3) < second_change(max_norm=1e6)
