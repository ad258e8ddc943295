import numpy as np

from otel_rl.demo.decoding import choose
from otel_rl.demo.transformer import softmax

LOGITS = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32)).repeat(4000, axis=0)
ROWS = np.ones(len(LOGITS), np.float32)


def frequencies(tokens: np.ndarray) -> np.ndarray:
    return np.bincount(tokens, minlength=4) / len(tokens)


def test_temperature_one_samples_the_policy_itself() -> None:
    choice = choose(LOGITS, ROWS, ROWS, np.random.default_rng(0))
    np.testing.assert_allclose(frequencies(choice.tokens), [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    choice = choose(LOGITS, ROWS, ROWS * 0.7, np.random.default_rng(0))
    np.testing.assert_allclose(frequencies(choice.tokens), [0.625, 0.375, 0, 0], atol=0.03)


def test_low_temperature_is_greedy() -> None:
    choice = choose(LOGITS, ROWS * 0.01, ROWS, np.random.default_rng(0))
    assert set(choice.tokens.tolist()) == {0}


def test_each_row_has_its_own_parameters() -> None:
    hot = np.arange(len(LOGITS)) % 2 == 0
    choice = choose(
        LOGITS, np.where(hot, 1.0, 0.01).astype(np.float32), ROWS, np.random.default_rng(0)
    )
    assert set(choice.tokens[~hot].tolist()) == {0}
    assert set(choice.tokens[hot].tolist()) == {0, 1, 2, 3}


def test_log_probabilities_are_the_policys_not_the_samplers() -> None:
    choice = choose(LOGITS, ROWS * 0.5, ROWS * 0.9, np.random.default_rng(0))
    expected = np.log(softmax(LOGITS))[np.arange(len(LOGITS)), choice.tokens]
    np.testing.assert_allclose(choice.log_probabilities, expected, atol=1e-6)
