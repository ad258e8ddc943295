"""Converts text to token ids and back, word by word."""

import re
from collections.abc import Sequence

__all__ = ["BEGIN", "END", "PAD", "VOCABULARY", "decode", "encode"]

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
