"""Remainder of one HTTP call: of its time, all of it together, and of the bytes of its answer.

A timeout of a socket is none for a call: it begins anew with each byte.
"""

from math import inf
from time import monotonic

from otel_rl.worker.export.reply import MAX_ANSWER_BYTES

__all__ = ["AnswerTooLong", "CallBudget"]


class AnswerTooLong(Exception):
    """More than ``MAX_ANSWER_BYTES``."""

    def __init__(self) -> None:
        super().__init__(f"an answer of over {MAX_ANSWER_BYTES} bytes")


class CallBudget:
    """Budget of one call at a time. One thread."""

    def __init__(self) -> None:
        self._until_s = inf
        self._left = MAX_ANSWER_BYTES

    def begin(self, timeout_s: float) -> None:
        """Start a call that may take ``timeout_s``."""
        self._until_s = monotonic() + timeout_s
        self._left = MAX_ANSWER_BYTES

    def left_s(self) -> float:
        """Return the remaining seconds, more than none.

        Raises:
            TimeoutError: There are none.
        """
        left_s = self._until_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("The time for the call is over.")
        return left_s

    def take(self, n_bytes: int) -> None:
        """Count bytes of the answer.

        Raises:
            AnswerTooLong: They are too many.
        """
        self._left -= n_bytes
        if self._left < 0:
            raise AnswerTooLong
