"""Batches that the journal refused and that did not come again: lost once their senders end."""

import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from otel_rl.errors import JournalError
from otel_rl.records import Batch

__all__ = ["UnstoredBatches"]

_DIGEST_BYTES: Final = 16
_MAX_REMEMBERED: Final = 100_000  # 10 MB; a repetition of one beyond is not recognised


class UnstoredBatches:
    """Recognises repetitions by their bytes. Any thread may call any method.

    Args:
        max_remembered: Bound on the batches that are remembered.
    """

    def __init__(self, *, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        # _lock guards what follows.
        self._lock = threading.Lock()
        self._digests: set[bytes] = set()
        self._unremembered = 0
        self._reason = ""

    def add(self, batches: Sequence[Batch], error: JournalError) -> None:
        """Remember batches that were not stored.

        Args:
            batches: Of one request.
            error: Why they were not stored.
        """
        digests = [_digest(batch) for batch in batches]
        with self._lock:
            self._reason = str(error.args[0])  # without a hint about senders that retry
            for digest in digests:
                if digest in self._digests or len(self._digests) < self._max_remembered:
                    self._digests.add(digest)
                else:
                    self._unremembered += 1

    def came_again(self, batches: Sequence[Batch]) -> None:
        """Forget batches that are stored now."""
        if self._digests:  # hashing is only for those who were refused
            digests = [_digest(batch) for batch in batches]
            with self._lock:
                self._digests.difference_update(digests)

    @property
    def count(self) -> int:
        """Return the number of batches that were refused and not stored since."""
        with self._lock:
            return len(self._digests) + self._unremembered

    @property
    def reason(self) -> str:
        """Return why the last one was refused; empty if none was."""
        return self._reason


def _digest(batch: Batch) -> bytes:
    return blake2b(batch.payload, digest_size=_DIGEST_BYTES).digest()
