"""Samples the next token of many sequences at once, each with its own temperature and top-p."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otel_rl.demo.model.parameters import Floats
from otel_rl.demo.model.transformer import softmax

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One token per sequence.

    Attributes:
        tokens: Token ids, (rows,).
        log_probabilities: Under the policy itself (temperature 1, no top-p), as GRPO's ratio needs.
    """

    tokens: npt.NDArray[np.int64]
    log_probabilities: Floats


def choose(logits: Floats, temperature: Floats, top_p: Floats, rng: np.random.Generator) -> Choice:
    """Sample one token per row.

    Args:
        logits: (rows, vocabulary).
        temperature: Per row, > 0.
        top_p: Per row, in (0, 1]: limits sampling to the smallest set of likeliest tokens that
            reaches this probability.
        rng: Source of randomness.
    """
    rows = np.arange(len(logits))
    tempered = softmax(logits / temperature[:, None])
    order = np.argsort(-tempered, axis=-1)
    descending = np.take_along_axis(tempered, order, axis=-1)
    before = np.cumsum(descending, axis=-1) - descending
    kept = np.where(before < top_p[:, None], descending, 0.0)
    threshold = rng.random((len(logits), 1)) * kept.sum(axis=-1, keepdims=True)
    place = (np.cumsum(kept, axis=-1) <= threshold).sum(axis=-1)
    # A threshold rounded up to the whole sum would point past the last kept token.
    place = np.minimum(place, (kept > 0).sum(axis=-1) - 1)
    tokens = order[rows, place]
    return Choice(tokens, np.log(softmax(logits)[rows, tokens] + 1e-20))
