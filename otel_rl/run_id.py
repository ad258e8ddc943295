"""Stable id of a run, equal in every worker and in the bridge."""

from functools import lru_cache
from hashlib import sha256

_LENGTH = 16
"""80 bits: a billion runs of one project collide with a chance of one in two million."""

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # base 32 of RFC 4648
_BITS = 5  # of a character

_MAX_CACHED = 1024  # default limit of experiments in a bridge; called per batch


@lru_cache(maxsize=_MAX_CACHED)
def run_id(experiment: str, trial: str) -> str:
    """Return a digest of (experiment, trial) in ``[a-z2-7]{16}``, safe in paths, URLs and ids.

    A length precedes each name, so that ("a", "bc") and ("ab", "c") differ.

    Args:
        experiment: ``rl.experiment.name``.
        trial: ``rl.trial.name``.
    """
    digest = sha256()
    for name in (experiment, trial):
        encoded = name.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    number = int.from_bytes(digest.digest()[: _LENGTH * _BITS // 8])
    places = range(_BITS * (_LENGTH - 1), -1, -_BITS)
    return "".join(_ALPHABET[number >> place & 31] for place in places)
