import numpy as np
import pytest

from otel_rl.demo import task

PROMPT = "reverse the digits : 3 1 4 ="


@pytest.mark.parametrize(
    ("completion", "ended", "reward"),
    [
        ("4 1 3", True, 1.0),
        ("4 1 3", False, 0.75),
        ("3 1 4", True, 0.5),
        ("4 1", True, 0.5),
        ("4 1 3 3", True, 0.6),
        ("", True, 0.0),
        ("9 9 9", False, 0.0),
        ("4 <pad> 3", True, 0.75),
    ],
)
def test_reward_is_the_share_of_right_places(completion: str, ended: bool, reward: float) -> None:
    assert task.score(PROMPT, completion, ended=ended) == pytest.approx(reward)


def test_every_prompt_can_be_tokenised_within_the_longest() -> None:
    rng = np.random.default_rng(0)
    lengths = {len(task.encode(task.prompt(rng, min_digits=2, max_digits=5))) for _ in range(200)}
    assert max(lengths) == task.longest_prompt(5)
    assert len(lengths) == 4


def test_the_right_answer_fits_the_longest_completion_and_scores_one() -> None:
    prompt = task.prompt(np.random.default_rng(1), min_digits=5, max_digits=5)
    answer = [*task.encode(prompt)[5:-1][::-1], task.END]
    assert len(answer) == task.longest_completion(5)
    assert task.score(prompt, task.decode(answer), ended=True) == 1.0


def test_text_survives_the_tokenizer() -> None:
    tokens = task.encode(PROMPT)
    assert tokens[0] == task.BEGIN
    assert task.decode(tokens[1:]) == PROMPT


def test_what_comes_after_the_end_mark_is_not_text() -> None:
    four, one = task.encode("4 1")[1:]
    assert task.decode([four, task.END, one]) == "4"


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(ValueError, match="sort"):
        task.encode("sort the digits")
