"""Makes the batches of requests durable."""

from collections.abc import Callable, Sequence

from otel_rl.bridge.counters import Counter, Counters
from otel_rl.bridge.ingest.admission.journal_shares import JournalShares
from otel_rl.bridge.ingest.unstored_batches import UnstoredBatches
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.presence import JournalPresence
from otel_rl.bridge.journal.spool import Spool
from otel_rl.errors import JournalClosed, JournalError, JournalGone
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
            if isinstance(exc, JournalGone):
                self._presence.gone(exc)
            if not isinstance(exc, JournalClosed):  # a stop is no loss: all senders go on to retry
                self.unstored.add(batches, exc)
            raise
        self.unstored.came_again(batches)
        self._presence.there()
        self._counters.add(Counter.BATCHES_SPOOLED, len(batches))
        self._kept()
