import numpy as np
import pytest

from otel_rl.demo.grpo import Batch, loss_and_gradient
from otel_rl.demo.transformer import Floats, Parameters, Shape, forward

SHAPE = Shape(vocabulary=7, positions=6, width=8, heads=2)
OBJECTIVE = {"clip": 0.2, "kl_weight": 0.3}


def policy(seed: int) -> Parameters:
    """Float64, and far enough from zero that every path through the network matters."""
    drawn = Parameters.random(SHAPE, np.random.default_rng(seed))
    return Parameters(SHAPE, drawn.flat.astype(np.float64) * 4)


def batch(rng: np.random.Generator) -> Batch:
    rows, length = 4, SHAPE.positions
    mask = np.zeros((rows, length - 1))
    mask[:, 2:] = 1
    mask[0, 4:] = 0
    return Batch(
        tokens=rng.integers(0, SHAPE.vocabulary, (rows, length)),
        mask=mask,
        behaviour=rng.normal(-2.0, 0.1, (rows, length - 1)),
        advantages=rng.normal(size=(rows, 1)).repeat(length - 1, axis=1),
    )


def test_the_hand_written_gradient_of_the_grpo_loss_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    weights, samples = policy(1), batch(rng)
    reference, _ = forward(policy(2), samples.tokens)

    def loss(flat: Floats) -> float:
        logits, _ = forward(Parameters(SHAPE, flat), samples.tokens)
        return loss_and_gradient(logits, reference, samples, **OBJECTIVE)[0].loss

    logits, backward = forward(weights, samples.tokens)
    _, by_logits = loss_and_gradient(logits, reference, samples, **OBJECTIVE)
    by_hand = backward(by_logits).flat

    step = 1e-5
    for place in rng.choice(len(weights.flat), 300, replace=False):
        nudge = np.zeros_like(weights.flat)
        nudge[place] = step
        measured = (loss(weights.flat + nudge) - loss(weights.flat - nudge)) / (2 * step)
        assert by_hand[place] == pytest.approx(measured, rel=1e-4, abs=1e-8)


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    weights = policy(3)
    tokens = np.array([[1, 2, 3, 4, 5, 6]])
    padded = np.array([[1, 2, 3, 0, 0, 0]])
    np.testing.assert_allclose(
        forward(weights, tokens)[0][:, :3], forward(weights, padded)[0][:, :3], atol=1e-12
    )


def test_parameters_survive_the_way_over_the_wire() -> None:
    sent = Parameters.random(SHAPE, np.random.default_rng(4))
    received = Parameters.from_bytes(SHAPE, sent.to_bytes())
    np.testing.assert_array_equal(received.flat, sent.flat)
    assert received.flat.flags.writeable


def test_a_view_and_the_flat_vector_are_one_memory() -> None:
    weights = Parameters.random(SHAPE, np.random.default_rng(5))
    before = weights.flat.copy()
    weights.mlp_out[:] = 7
    assert (weights.flat != before).sum() == weights.mlp_out.size
