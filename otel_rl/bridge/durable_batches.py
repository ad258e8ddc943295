"""Makes the batches of requests durable, and remembers those that the journal refused."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from typing import Final

from otel_rl.bridge.counters import Counter, Counters
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.receive.journal_shares import JournalShares
from otel_rl.errors import JournalClosed, JournalError, JournalFull
from otel_rl.records import Batch

_DIGEST_BYTES: Final = 16
_MAX_REMEMBERED: Final = 100_000  # 10 MB; a repetition of one beyond is not recognised


class DurableBatches:
    """Last step before a request is acknowledged. Any thread may call any method.

    Args:
        kept: Called after each call of ``keep``.

    Attributes:
        unstored: Batches that the journal did not store, unless it was closed.
    """

    def __init__(
        self,
        spool: Spool,
        room: JournalShares,
        counters: Counters,
        kept: Callable[[], None],
    ) -> None:
        self._spool = spool
        self._room = room
        self._counters = counters
        self._kept = kept
        self.unstored = UnstoredBatches()

    def keep(
        self, batches: Sequence[Batch], also: Callable[[Connection], None] | None = None
    ) -> Future[None]:
        """Store the batches of a request: they are durable when the future is done.

        Args:
            also: Function that runs in the same transaction, see ``Spool.submit``.

        Returns:
            A future that cannot be cancelled. It may fail with one of these errors, after which the
            sender retries:

            JournalFull: There is no room, or none in a tenant's share.
            JournalClosed: The bridge is stopping.
            JournalGone: The journal was removed.
        """
        kept: Future[None] = Future()
        kept.set_running_or_notify_cancel()

        def settle(stored: Future[JournalFull | None]) -> None:
            error = stored.exception() or stored.result()
            try:
                self._settle(batches, error)
            except Exception as exc:  # noqa: BLE001  # for who waits
                error = exc
            # Not raised here: it would hold this frame, and with it the batches.
            if error is None:
                kept.set_result(None)
            else:
                kept.set_exception(error)

        # Shares are asked in the transaction, since that may read the journal.
        self._spool.submit(batches, admit=self._room.take, also=also).add_done_callback(settle)
        return kept

    def _settle(self, batches: Sequence[Batch], error: BaseException | None) -> None:
        if error is None:
            self.unstored.came_again(batches)
            self._counters.add(Counter.BATCHES_SPOOLED, len(batches))
            self._kept()
            return
        # A stop is no loss: all senders go on to retry.
        if isinstance(error, JournalError) and not isinstance(error, JournalClosed):
            self.unstored.add(batches, error)


class UnstoredBatches:
    """Batches that were refused and not sent again: they are lost once their senders end.

    The bytes of a batch identify it. Any thread may call any method.

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
        digests = [_digest(batch) for batch in batches]
        with self._lock:
            self._reason = str(error.args[0])  # without a hint about senders that retry
            for digest in digests:
                if digest in self._digests or len(self._digests) < self._max_remembered:
                    self._digests.add(digest)
                else:
                    self._unremembered += 1

    def came_again(self, batches: Sequence[Batch]) -> None:
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
        return self._reason


def _digest(batch: Batch) -> bytes:
    return blake2b(batch.payload, digest_size=_DIGEST_BYTES).digest()
