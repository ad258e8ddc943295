"""Task: write the digits of the prompt backwards. A person can verify the answer. Tokens are words.

    reverse the digits : 3 1 4 =        4 1 3

The policy starts from random weights and receives rewards only, no example.
"""

import re
from collections.abc import Sequence

import numpy as np

ENVIRONMENT = "digits"
"""Name of the environment that the task is."""

_INSTRUCTION = "reverse the digits :"


def prompt(rng: np.random.Generator, *, min_digits: int, max_digits: int) -> str:
    """Return a new prompt with a number of digits between the two, inclusive."""
    count = int(rng.integers(min_digits, max_digits + 1))
    digits = " ".join(str(digit) for digit in rng.integers(0, 10, count))
    return f"{_INSTRUCTION} {digits} ="


def score(prompt_text: str, completion_text: str, *, ended: bool) -> float:
    """Return the share of correct positions of the completion, from 0 to 1.

    The end is a position too. A completion of wrong length loses the missing or extra positions,
    and its end.

    Args:
        prompt_text: From :func:`prompt`.
        completion_text: Digits separated by spaces, without the end mark.
        ended: True if the policy ended the completion, False if it was cut off.
    """
    expected = prompt_text.removeprefix(_INSTRUCTION).removesuffix("=").split()[::-1]
    given = completion_text.split()
    right = sum(want == have for want, have in zip(expected, given, strict=False))
    right += ended and len(given) == len(expected)
    return right / (max(len(expected), len(given)) + 1)


def longest_prompt(max_digits: int) -> int:
    """Return the number of tokens of the longest prompt, with its beginning mark."""
    return 1 + len(_INSTRUCTION.split()) + max_digits + 1


def longest_completion(max_digits: int) -> int:
    """Return the number of tokens of the longest correct completion, with its end mark."""
    return max_digits + 1


_WORDS = ("<pad>", "<begin>", "<end>", "reverse", "the", "digits", ":", "=", *map(str, range(10)))
_IDS = {word: place for place, word in enumerate(_WORDS)}
_WORD = re.compile(r"[a-z]+|\S")

PAD = _IDS["<pad>"]
BEGIN = _IDS["<begin>"]
END = _IDS["<end>"]
VOCABULARY = len(_WORDS)


def encode(text: str) -> list[int]:
    """Return the token ids of a prompt, after the beginning mark.

    Raises:
        ValueError: A word is not in the vocabulary.
    """
    try:
        return [BEGIN, *(_IDS[word] for word in _WORD.findall(text))]
    except KeyError as unknown:
        raise ValueError(f"not in the vocabulary: {unknown}") from None


def decode(tokens: Sequence[int]) -> str:
    """Return the text up to the end mark, words separated by a space."""
    words = []
    for token in tokens:
        if token == END:
            break
        words.append(_WORDS[token])
    return " ".join(words)
