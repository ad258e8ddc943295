"""The task: write the digits of the prompt backwards. Whoever can read can verify the answer.

    reverse the digits : 3 1 4 =        4 1 3

The policy starts from random weights and sees no example, only rewards.
"""

import numpy as np

__all__ = ["longest_completion", "longest_prompt", "prompt", "score"]

_INSTRUCTION = "reverse the digits :"


def prompt(rng: np.random.Generator, *, min_digits: int, max_digits: int) -> str:
    """A new prompt with a number of digits between the two, inclusive."""
    count = int(rng.integers(min_digits, max_digits + 1))
    digits = " ".join(str(digit) for digit in rng.integers(0, 10, count))
    return f"{_INSTRUCTION} {digits} ="


def score(prompt_text: str, completion_text: str, *, ended: bool) -> float:
    """Share of places at which the completion says what it should, from 0 to 1.

    The end is a place too. A completion that is too long or too short loses the places by which it
    is, and its end.

    Args:
        prompt_text: As :func:`prompt` made it.
        completion_text: Digits separated by spaces, without the end mark.
        ended: Whether the policy ended the completion, rather than being cut off.
    """
    expected = prompt_text.removeprefix(_INSTRUCTION).removesuffix("=").split()[::-1]
    given = completion_text.split()
    right = sum(want == have for want, have in zip(expected, given, strict=False))
    right += ended and len(given) == len(expected)
    return right / (max(len(expected), len(given)) + 1)


def longest_prompt(max_digits: int) -> int:
    """Tokens of the longest prompt, with its beginning mark."""
    return 1 + len(_INSTRUCTION.split()) + max_digits + 1


def longest_completion(max_digits: int) -> int:
    """Tokens of the longest right completion, with its end mark."""
    return max_digits + 1
