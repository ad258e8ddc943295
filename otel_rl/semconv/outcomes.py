"""How a sample ends: the words of ``rl.sample.outcome``."""

from enum import StrEnum
from typing import Final

__all__ = ["FAILED", "Outcome"]


class Outcome(StrEnum):
    """How a sample ended.

    Attributes:
        TRAINED: It carries the learning signal that it was generated for.
        MASKED: It is in the batch, and its tokens have no part in the loss.
        TRUNCATED: It reached its limit of tokens or turns before it had finished.
        FILTERED: A rule of the recipe left it out, such as a group without a signal.
        DROPPED: It was lost or thrown away without such a rule: too old, no room.
        TIMEOUT: It took longer than it may.
        GRADER_FAILED: It has no reward, because what computes rewards failed.
        ENVIRONMENT_FAILED: Its environment, sandbox or tool server failed.
        CANCELLED: It was stopped on purpose.
    """

    TRAINED = "trained"
    MASKED = "masked"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    DROPPED = "dropped"
    TIMEOUT = "timeout"
    GRADER_FAILED = "grader_failed"
    ENVIRONMENT_FAILED = "environment_failed"
    CANCELLED = "cancelled"


FAILED: Final = frozenset({Outcome.TIMEOUT, Outcome.GRADER_FAILED, Outcome.ENVIRONMENT_FAILED})
"""Outcomes by which infrastructure failed, not the policy: a reward of 0 says nothing of it."""
