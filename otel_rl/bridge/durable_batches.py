"""Makes the batches of requests durable."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from otel_rl.bridge.counters import Counter, Counters
from otel_rl.bridge.ingest.admission.journal_shares import JournalShares
from otel_rl.bridge.ingest.unstored_batches import UnstoredBatches
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.presence import JournalPresence
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalClosed, JournalError, JournalFull, JournalGone
from otel_rl.records import Batch

__all__ = ["DurableBatches"]


class DurableBatches:
    """Last step before a request is acknowledged. Any thread may call any method.

    Args:
        spool: Where batches are kept.
        room: Holds tenants to their shares.
        presence: Told whether the journal is there.
        counters: Of the bridge.
        kept: Called after each request of ``keep``.

    Attributes:
        unstored: Batches that were not stored, except by a closed journal.
    """

    def __init__(
        self,
        spool: Spool,
        room: JournalShares,
        presence: JournalPresence,
        counters: Counters,
        kept: Callable[[], None],
    ) -> None:
        self._spool = spool
        self._room = room
        self._presence = presence
        self._counters = counters
        self._kept = kept
        self.unstored = UnstoredBatches()

    def keep(
        self, batches: Sequence[Batch], also: Callable[[Connection], None] | None = None
    ) -> None:
        """Store the batches of a request: they are durable when this returns.

        Args:
            batches: Of the request.
            also: Run in the same transaction, see ``Spool.append``.

        Raises:
            JournalFull: No room, or none in a tenant's share; the sender retries.
            JournalClosed: The bridge is stopping; the sender retries.
            JournalGone: The journal was removed; the sender retries.
        """
        try:
            self._room.take(batches)
            self._spool.append(batches, also)
        except JournalError as exc:
            self._not_kept(batches, exc)
            raise
        self._were_kept(batches)
        self._kept()

    def keep_together(
        self, requests: Sequence[Sequence[Batch]]
    ) -> Future[Sequence[JournalFull | None]] | None:
        """Begin to store the batches of several requests in one transaction, without waiting.

        Whoever waits for it notifies the stage that makes rows, after the senders are answered: two
        threads that wake up at once wait for each other.

        Returns:
            Done once they are durable, or with an error as of ``keep``; it cannot be cancelled. The
            result has a JournalFull for each request that found no room. None where this journal,
            or shares of it, make the caller wait: nothing was begun.

        Raises:
            JournalClosed: The bridge is stopping; the sender retries.
        """
        if self._room.is_shared:
            return None
        appended = self._spool.append_together(requests)
        if appended is None:
            return None
        kept: Future[Sequence[JournalFull | None]] = Future()
        kept.set_running_or_notify_cancel()
        appended.add_done_callback(partial(self._settle, kept, requests))
        return kept

    def _settle(
        self,
        kept: Future[Sequence[JournalFull | None]],
        requests: Sequence[Sequence[Batch]],
        appended: Future[Sequence[JournalFull | None]],
    ) -> None:
        error = appended.exception()
        if error is not None:
            if isinstance(error, JournalError):
                self._not_kept([batch for batches in requests for batch in batches], error)
            kept.set_exception(error)
            return
        found = appended.result()
        stored: list[Batch] = []
        for batches, full in zip(requests, found, strict=True):
            if full is None:
                stored += batches
            else:
                self._not_kept(batches, full)
        if stored:
            self._were_kept(stored)
        kept.set_result(found)

    def _not_kept(self, batches: Sequence[Batch], error: JournalError) -> None:
        if isinstance(error, JournalGone):
            self._presence.gone(error)
        if not isinstance(error, JournalClosed):  # a stop is no loss: all senders go on to retry
            self.unstored.add(batches, error)

    def _were_kept(self, batches: Sequence[Batch]) -> None:
        self.unstored.came_again(batches)
        self._presence.there()
        self._counters.add(Counter.BATCHES_SPOOLED, len(batches))
